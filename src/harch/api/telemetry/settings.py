"""What may an operator change about SENTINEL? Limits, time window, retention and queries, in one TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harch.api.telemetry.archive_settings import LogsTable, TracesTable, archive_settings
from harch.api.telemetry.federated_settings import FederatedSettings, FederatedTable
from harch.base.errors import HarchError
from harch.sentinel.archive.limits import ArchiveSettings
from harch.sentinel.collect.redaction.rule import Rule, RuleText, read_rules
from harch.sentinel.collect.redaction.shipped import with_shipped
from harch.sentinel.model.durations import parse_duration_ms
from harch.sentinel.promql.evaluate.options import EngineOptions
from harch.sentinel.promql.evaluate.options import Limits as QueryLimits
from harch.sentinel.store.blocks.policy import BlockPolicy, Downsampling
from harch.sentinel.store.limits import Limits

ANY_ORDER = Limits(out_of_order_ms=None)  # samples are taken in any order and of any age unless a file says otherwise
_HINT = "docs/sentinel/settings.md lists the fields"


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    samples_max: int = 50_000_000
    points_max: int = 50_000_000
    timeout_s: float = 120.0
    lookback_s: float = 300.0
    type_and_unit_labels: bool = False


class _Downsample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One value every `every`, from the age `after` on, kept for `keep` (for ever without it)."""

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
    limits: Limits = ANY_ORDER
    retention: _Retention = _Retention()
    query: _Query = _Query()
    redaction: tuple[RuleText, ...] = ()
    logs: LogsTable = LogsTable()
    traces: TracesTable = TracesTable()
    federated: FederatedTable = FederatedTable()


@dataclass(frozen=True, slots=True)
class SentinelSettings:
    store: Limits = ANY_ORDER
    retention: BlockPolicy = field(default_factory=lambda: _Retention().policy())
    engine: EngineOptions = field(default_factory=EngineOptions)
    redaction: tuple[Rule, ...] = field(default_factory=lambda: read_rules(with_shipped(())))
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
