"""What is known of a group between two evaluations? Alerts, health, and the series that were written last."""

# harch: pure

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harch.sentinel.model.labels import Labels
from harch.sentinel.rules.alert_state import ActiveAlert, KeptRule, restored_from_state
from harch.sentinel.rules.definitions import RuleGroup


class RuleHealth(StrEnum):
    UNKNOWN = "unknown"
    GOOD = "ok"
    BAD = "err"


@dataclass(slots=True)
class RuleState:
    alerts: Mapping[Labels, ActiveAlert] = field(default_factory=dict)
    series: frozenset[Labels] = frozenset()  # written by the last evaluation; what vanishes gets a stale marker
    health: RuleHealth = RuleHealth.UNKNOWN
    last_error: str = ""
    evaluated_at_ms: int = 0
    evaluation_s: float = 0.0


@dataclass(slots=True)
class GroupState:
    """One entry of `rules` per rule of the group, in its order."""

    rules: list[RuleState]
    last_turn_ms: int = 0
    evaluation_s: float = 0.0
    evaluations: int = 0
    missed: int = 0
    failures: int = 0
    is_restored: bool = True  # whether ALERTS may be written: not before the state of long waits was looked up
    orphans: frozenset[Labels] = frozenset()  # series of rules that are gone


def rule_keys(group: RuleGroup) -> list[str]:
    """A name for each rule that survives edits of others: its name, labels, and its number among equals."""
    seen: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
    keys = []
    for rule in group.rules:
        own = (rule.name, tuple(sorted(rule.labels.items())))
        keys.append(f"{rule.kind}:{rule.name}:{own[1]}:{seen[own]}")
        seen[own] += 1
    return keys


def fresh(group: RuleGroup) -> GroupState:
    return GroupState([RuleState() for _ in group.rules])


def restored(group: RuleGroup, kept: Iterable[KeptRule], *, now_ms: int) -> GroupState:
    """The state that a restart goes on with. Rules of which nothing was kept may still be found in the series."""
    by_key = {one.rule: one for one in kept if one.group == group.key}
    state = fresh(group)
    for rule, key, rule_state in zip(group.rules, rule_keys(group), state.rules, strict=True):
        if rule.is_alert and key in by_key:
            rule_state.alerts = restored_from_state(rule, by_key[key], now_ms=now_ms)
    state.is_restored = not any(
        rule.is_alert and key not in by_key for rule, key in zip(group.rules, rule_keys(group), strict=True)
    )
    return state


def carried_over(before_group: RuleGroup, before: GroupState, group: RuleGroup) -> GroupState:
    """The state after the file was changed: rules that are still there keep theirs."""
    by_key = dict(zip(rule_keys(before_group), before.rules, strict=True))
    rules = [by_key.pop(key) if key in by_key else RuleState() for key in rule_keys(group)]
    gone = frozenset(series for state in by_key.values() for series in state.series)
    last_turn_ms = before.last_turn_ms if group.interval_ms == before_group.interval_ms else 0
    return GroupState(
        rules,
        last_turn_ms=last_turn_ms,
        evaluations=before.evaluations,
        missed=before.missed,
        failures=before.failures,
        is_restored=before.is_restored,
        orphans=before.orphans | gone,
    )


def kept_rules(group: RuleGroup, state: GroupState) -> list[KeptRule]:
    """What the state file has to hold."""
    return [
        KeptRule(
            group=group.key,
            rule=key,
            evaluated_at_ms=rule_state.evaluated_at_ms,
            alerts=tuple(rule_state.alerts.values()),
        )
        for rule, key, rule_state in zip(group.rules, rule_keys(group), state.rules, strict=True)
        if rule.is_alert and rule_state.evaluated_at_ms
    ]
