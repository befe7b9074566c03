"""What may an operator change about SENTINEL?

Limits, time window, retention, queries, logs, traces and questions of other hubs, in one TOML file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.archive.limits import MIB, ArchivePolicy, ArchiveSettings, LogLimits, SpanLimits
from harch.sentinel.collect.redaction.rules import RedactionRule, RuleText, read_rules, with_shipped
from harch.sentinel.federated.disclosure.policy import (
    CROSS_BORDER_AGGREGATIONS,
    CROSS_BORDER_FUNCTIONS,
    CROSS_BORDER_LABELS,
    KEYS,
    TelemetryPolicy,
)
from harch.sentinel.model.durations import parse_duration_ms
from harch.sentinel.promql.evaluate.context import EngineOptions, QueryLimits
from harch.sentinel.store.blocks.planning import BlockPolicy, Downsampling
from harch.sentinel.store.limits import TenantLimits


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keep: str = "15d"  # empty: forever
    size_bytes_max: int | None = None
    memory_bytes_max: int = 256 * MIB
    flush_bytes: int = 64 * MIB
    flush_after: str = "30m"
    free_bytes_min: int = 256 * MIB

    def policy(self) -> ArchivePolicy:
        if not 0 < self.flush_bytes <= self.memory_bytes_max:
            raise ValueError("`flush_bytes` must be above 0 and at most `memory_bytes_max`")
        return ArchivePolicy(
            keep_ns=parse_duration_ms(self.keep) * 1_000_000 if self.keep else None,
            size_bytes_max=self.size_bytes_max,
            flush_bytes=self.flush_bytes,
            flush_after_s=parse_duration_ms(self.flush_after) / 1000,
            memory_bytes_max=self.memory_bytes_max,
            free_bytes_min=self.free_bytes_min,
        )


class LogsTable(_Kept, frozen=True, forbid_unknown_fields=True):
    limits: LogLimits = LogLimits()


class TracesTable(_Kept, frozen=True, forbid_unknown_fields=True):
    limits: SpanLimits = SpanLimits()


def archive_settings(logs: LogsTable, traces: TracesTable) -> ArchiveSettings:
    """Raises ValueError for figures that make no sense together."""
    return ArchiveSettings(logs.limits, logs.policy(), traces.limits, traces.policy())


# What may an operator change about questions of other hubs? The table `[federated]` of SENTINEL's settings file.


@dataclass(frozen=True, slots=True)
class FederatedSettings:
    """`answers` off: other hubs get no answers. Asking them is not changed by it; they decide for themselves."""

    answers: bool = True
    policy: TelemetryPolicy = field(default_factory=TelemetryPolicy)


class FederatedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=KEYS):
    """`labels_abroad` replaces the shipped list, `labels_abroad_more` adds to it.

    That other countries count as the own one cannot be set: a border is one of countries, for the hub as well.
    """

    answers: bool = True
    k: int = 5
    cross_border_labels: frozenset[str] = CROSS_BORDER_LABELS
    more_cross_border_labels: frozenset[str] = frozenset()
    cross_border_aggregations: frozenset[str] = CROSS_BORDER_AGGREGATIONS
    cross_border_functions: frozenset[str] = CROSS_BORDER_FUNCTIONS
    metrics_at_home: frozenset[str] = frozenset()
    cross_border_tenants: frozenset[str] | None = None
    quantum_s: int = 60
    log_quantum_s: int = 300
    span_quantum_s: int = 900
    settling_s: int = 900
    closing_s: int = 30
    remembered_days: int = 30

    def settings(self) -> FederatedSettings:
        """Raises E0696 for a value that would give too much away."""
        return FederatedSettings(
            answers=self.answers,
            policy=TelemetryPolicy(
                k=self.k,
                cross_border_labels=self.cross_border_labels | self.more_cross_border_labels,
                cross_border_aggregations=self.cross_border_aggregations,
                cross_border_functions=self.cross_border_functions,
                metrics_at_home=self.metrics_at_home,
                cross_border_tenants=self.cross_border_tenants,
                quantum_s=self.quantum_s,
                log_quantum_s=self.log_quantum_s,
                span_quantum_s=self.span_quantum_s,
                settling_s=self.settling_s,
                closing_s=self.closing_s,
                remembered_days=self.remembered_days,
            ),
        )


# What may an operator change about SENTINEL? Limits, time window, retention and queries, in one TOML file.


ANY_ORDER = TenantLimits(
    out_of_order_ms=None
)  # samples are taken in any order and of any age unless a file says otherwise
_HINT = "docs/sentinel/settings.md lists the fields"


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    samples_max: int = 50_000_000
    points_max: int = 50_000_000
    timeout_s: float = 120.0
    lookback_s: float = 300.0
    type_and_unit_labels: bool = False


class _Downsample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One value every `every`, from the age `after` on, kept for `keep` (forever without it)."""

    every: str
    after: str
    keep: str = ""


class _Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keep: str = "15d"
    size_bytes_max: int | None = None
    downsample: tuple[_Downsample, ...] = ()
    free_bytes_min: int = 256 << 20

    def policy(self) -> BlockPolicy:
        return BlockPolicy(
            keep_ms=parse_duration_ms(self.keep) if self.keep else None,
            size_bytes_max=self.size_bytes_max,
            downsampling=tuple(
                Downsampling(
                    parse_duration_ms(one.every),
                    parse_duration_ms(one.after),
                    parse_duration_ms(one.keep) if one.keep else None,
                )
                for one in self.downsample
            ),
            free_bytes_min=self.free_bytes_min,
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limits: TenantLimits = ANY_ORDER
    retention: _Retention = _Retention()
    query: _Query = _Query()
    redaction: tuple[RuleText, ...] = ()
    logs: LogsTable = LogsTable()
    traces: TracesTable = TracesTable()
    federated: FederatedTable = FederatedTable()


@dataclass(frozen=True, slots=True)
class SentinelSettings:
    store: TenantLimits = ANY_ORDER
    retention: BlockPolicy = field(default_factory=lambda: _Retention().policy())
    engine: EngineOptions = field(default_factory=EngineOptions)
    redaction: tuple[RedactionRule, ...] = field(default_factory=lambda: read_rules(with_shipped(())))
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    federated: FederatedSettings = field(default_factory=FederatedSettings)


def read_settings(path: Path | None) -> SentinelSettings:
    """Raises E0673 with what is wrong in the file, E0683 for a rule of redaction."""
    if path is None:
        return SentinelSettings()
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
        retention = found.retention.policy()
        archive = archive_settings(found.logs, found.traces)
        federated = found.federated.settings()
    except (OSError, ValueError, HarchError) as problem:  # TOML, types and text encoding are all ValueErrors
        raise HarchError("E0673", f"{path}: {problem}", hint=_HINT) from problem
    query = found.query
    engine = EngineOptions(
        limits=QueryLimits(samples_max=query.samples_max, points_max=query.points_max, timeout_s=query.timeout_s),
        lookback_ms=round(query.lookback_s * 1000),
        type_and_unit_labels=query.type_and_unit_labels,
    )
    redaction = read_rules(with_shipped(found.redaction))
    return SentinelSettings(found.limits, retention, engine, redaction, archive, federated)
