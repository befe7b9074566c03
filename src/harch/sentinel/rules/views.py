"""What do `/api/v1/rules` and `/api/v1/alerts` answer? The shapes of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta

from harch.base.errors import HarchError
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.rules.alerting import ActiveAlert, AlertState
from harch.sentinel.rules.definitions import Rule, RuleGroup
from harch.sentinel.rules.group_state import GroupState, RuleState
from harch.sentinel.rules.templates.go_format import show_float

Shown = dict[str, object]
RULE_TYPES = {"alert": True, "record": False}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time


def rules_view(
    groups: Iterable[tuple[RuleGroup, GroupState]],
    *,
    kind: str = "",
    rule_names: Collection[str] = (),
    group_names: Collection[str] = (),
    files: Collection[str] = (),
    matchers: Collection[Collection[Matcher]] = (),
    without_alerts: bool = False,
    group_limit: int = 0,
    group_next_token: str = "",
) -> Shown:
    """The `data` of the answer. Groups without rules that were asked for are left out. Raises E0201: a bad filter."""
    if kind and kind not in RULE_TYPES:
        raise HarchError("E0201", f"`{kind}` is not a type of rules", hint="ask for `alert` or `record`", field="type")
    shown: list[Shown] = []
    found = sorted(groups, key=lambda pair: (pair[0].file, pair[0].name))
    filtered = bool(kind or rule_names or matchers)
    for group, state in found:
        if (group_names and group.name not in group_names) or (files and group.file not in files):
            continue
        if group_next_token and group.key <= group_next_token:
            continue
        if group_limit and len(shown) >= group_limit:
            return {"groups": shown, "groupNextToken": _last_key(shown)}
        rules = [
            _rule_view(rule, rule_state, without_alerts=without_alerts)
            for rule, rule_state in zip(group.rules, state.rules, strict=True)
            if _is_wanted(rule, kind, rule_names, matchers)
        ]
        if rules or not filtered:
            shown.append(_group_view(group, state, rules))
    return {"groups": shown}


def _last_key(shown: list[Shown]) -> str:
    return f"{shown[-1]['file']};{shown[-1]['name']}"


def _is_wanted(rule: Rule, kind: str, rule_names: Collection[str], matchers: Collection[Collection[Matcher]]) -> bool:
    if kind and rule.is_alert is not RULE_TYPES[kind]:
        return False
    if rule_names and rule.name not in rule_names:
        return False
    if not matchers:
        return True
    return any(all(one.matches(rule.labels.get(one.name, "")) for one in together) for together in matchers)


def _group_view(group: RuleGroup, state: GroupState, rules: list[Shown]) -> Shown:
    return {
        "name": group.name,
        "file": group.file,
        "rules": rules,
        "interval": group.interval_ms / 1000,
        "limit": group.limit,
        "evaluationTime": state.evaluation_s,
        "lastEvaluation": rfc3339(state.last_turn_ms),
    }


def _rule_view(rule: Rule, state: RuleState, *, without_alerts: bool) -> Shown:
    common: Shown = {
        "name": rule.name,
        "query": rule.expression,
        "labels": rule.labels,
        "health": state.health,
        "evaluationTime": state.evaluation_s,
        "lastEvaluation": rfc3339(state.evaluated_at_ms),
        "type": rule.kind,
    }
    if state.last_error:
        common["lastError"] = state.last_error
    if not rule.is_alert:
        return common
    return {
        "state": _worst(state),
        "duration": rule.for_ms / 1000,
        "keepFiringFor": rule.keep_firing_for_ms / 1000,
        "annotations": rule.annotations,
        "alerts": [] if without_alerts else [alert_view(alert) for alert in _active(state)],
        **common,
    }


def _worst(state: RuleState) -> AlertState:
    states = {alert.state for alert in state.alerts.values()}
    for worst in (AlertState.FIRING, AlertState.PENDING):
        if worst in states:
            return worst
    return AlertState.INACTIVE


def _active(state: RuleState) -> list[ActiveAlert]:
    return [alert for alert in state.alerts.values() if alert.is_active]


def alerts_view(
    groups: Iterable[tuple[RuleGroup, GroupState]], wanted: Callable[[ActiveAlert], bool] = lambda _: True
) -> Shown:
    active = (alert for _, state in groups for rule in state.rules for alert in _active(rule))
    return {"alerts": [alert_view(alert) for alert in active if wanted(alert)]}


def alert_view(alert: ActiveAlert) -> Shown:
    shown: Shown = {
        "labels": dict(alert.labels),
        "annotations": alert.annotations,
        "state": alert.state,
        "activeAt": rfc3339(alert.active_at_ms),
        "value": show_float(alert.value, "e"),
    }
    if alert.keep_firing_since_ms:
        shown["keepFiringSince"] = rfc3339(alert.keep_firing_since_ms)
    return shown


def rfc3339(at_ms: int) -> str:
    """As Go writes a time in JSON: no zeros at the end, and a zero time in the year 1."""
    if at_ms == 0:
        return _NEVER
    moment = _EPOCH + timedelta(milliseconds=at_ms)
    fraction = f".{moment.microsecond // 1000:03d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
