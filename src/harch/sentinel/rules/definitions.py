"""What is a rule? A recording or an alert, in a group that is evaluated in order."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field


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
