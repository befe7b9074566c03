"""What is a rule, and what does it need of others?

A recording or an alert in a group that is evaluated in order; queries, a place for samples, fingerprints of label
sets.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from msgspec import Struct, field

from harch.sentinel.model.labels import Labels, labels


class RuleKind(StrEnum):
    RECORDING = "recording"
    ALERTING = "alerting"


class Rule(Struct, frozen=True, kw_only=True):
    kind: RuleKind
    name: str  # of the recorded metric, or of the alert
    expression: str
    labels: dict[str, str] = field(default_factory=dict)  # with those of the group; templates in alerts
    annotations: dict[str, str] = field(default_factory=dict)
    for_ms: int = 0
    keep_firing_for_ms: int = 0
    line: int = 0

    @property
    def is_alert(self) -> bool:
        return self.kind is RuleKind.ALERTING


class RuleGroup(Struct, frozen=True, kw_only=True):
    file: str
    name: str
    interval_ms: int
    rules: tuple[Rule, ...]
    limit: int = 0  # results of one rule; 0: no limit
    query_offset_ms: int = 0

    @property
    def key(self) -> str:
        return f"{self.file};{self.name}"


class RuleFile(Struct, frozen=True, kw_only=True):
    name: str
    groups: tuple[RuleGroup, ...]
    remarks: tuple[str, ...] = ()  # allowed, but hardly meant


# What do rules need of others? Queries, a place for samples, and somebody who takes alerts.


Vector = list[tuple[dict[str, str], float]]


class RuleSample(Struct, frozen=True):
    """One value of a series. `STALE` of the model as value says that the series ended."""

    labels: Labels
    at_ms: int
    value: float


class Evaluate(Protocol):
    """An instant query. A scalar is one element without labels. Raises HarchError when the query fails."""

    def __call__(self, expression: str, at_ms: int, /) -> Vector: ...


class Append(Protocol):
    """Stores samples of one rule at once. Raises HarchError when they are refused; nothing of them is stored then."""

    def __call__(self, samples: Sequence[RuleSample], /) -> None: ...


class CheckExpression(Protocol):
    """Parses an expression. Raises HarchError with what is wrong in it."""

    def __call__(self, expression: str, /) -> object: ...


class ForStates(Protocol):
    """The last ALERTS_FOR_STATE sample of each series of an alert since `since_ms`.

    Series whose last sample is a stale marker are left out: that alert was over.
    """

    def __call__(self, alertname: str, since_ms: int, /) -> Sequence[RuleSample]: ...


# Which alert is it? The fingerprint of a label set: 64-bit FNV-1a over sorted names and values, as in Prometheus.


_OFFSET, _PRIME, _MASK = 14695981039346656037, 1099511628211, 2**64 - 1
_SEPARATOR = b"\xff"  # no byte of UTF-8


def fnv1a(content: bytes) -> int:
    total = _OFFSET
    for byte in content:
        total = ((total ^ byte) * _PRIME) & _MASK
    return total


@lru_cache(maxsize=16_384)  # the same alerts come back every evaluation
def fingerprint_of(pairs: Labels) -> str:
    content = b"".join(name.encode() + _SEPARATOR + value.encode() + _SEPARATOR for name, value in pairs)
    return f"{fnv1a(content):016x}"


def fingerprint(pairs: Mapping[str, str]) -> str:
    """Sixteen hex digits, e.g. for the API and for links."""
    return fingerprint_of(labels(pairs))
