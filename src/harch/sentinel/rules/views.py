"""How do rules look from outside?

The shapes of Prometheus for `/api/v1/rules` and `/api/v1/alerts`, and their counters as series under Prometheus'
names.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME, Matcher, labels
from harch.sentinel.rules.alert_state import ActiveAlert, AlertState
from harch.sentinel.rules.definitions import Rule, RuleGroup, RuleSample
from harch.sentinel.rules.group_state import GroupState, RuleState
from harch.sentinel.rules.templates.values import show_float

JsonView = dict[str, object]
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
) -> JsonView:
    """The `data` of the answer. Groups without rules that were asked for are left out. Raises E0201: a bad filter."""
    if kind and kind not in RULE_TYPES:
        raise HarchError("E0201", f"`{kind}` is not a type of rules", hint="use `alert` or `record`", field="type")
    views: list[JsonView] = []
    found = sorted(groups, key=lambda pair: (pair[0].file, pair[0].name))
    filtered = bool(kind or rule_names or matchers)
    for group, state in found:
        if (group_names and group.name not in group_names) or (files and group.file not in files):
            continue
        if group_next_token and group.key <= group_next_token:
            continue
        if group_limit and len(views) >= group_limit:
            return {"groups": views, "groupNextToken": _last_key(views)}
        rules = [
            _rule_view(rule, rule_state, without_alerts=without_alerts)
            for rule, rule_state in zip(group.rules, state.rules, strict=True)
            if _is_wanted(rule, kind, rule_names, matchers)
        ]
        if rules or not filtered:
            views.append(_group_view(group, state, rules))
    return {"groups": views}


def _last_key(views: list[JsonView]) -> str:
    return f"{views[-1]['file']};{views[-1]['name']}"


def _is_wanted(rule: Rule, kind: str, rule_names: Collection[str], matchers: Collection[Collection[Matcher]]) -> bool:
    if kind and rule.is_alert is not RULE_TYPES[kind]:
        return False
    if rule_names and rule.name not in rule_names:
        return False
    if not matchers:
        return True
    return any(all(one.matches(rule.labels.get(one.name, "")) for one in together) for together in matchers)


def _group_view(group: RuleGroup, state: GroupState, rules: list[JsonView]) -> JsonView:
    return {
        "name": group.name,
        "file": group.file,
        "rules": rules,
        "interval": group.interval_ms / 1000,
        "limit": group.limit,
        "evaluationTime": state.evaluation_s,
        "lastEvaluation": rfc3339(state.last_turn_ms),
    }


def _rule_view(rule: Rule, state: RuleState, *, without_alerts: bool) -> JsonView:
    common: JsonView = {
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
) -> JsonView:
    active = (alert for _, state in groups for rule in state.rules for alert in _active(rule))
    return {"alerts": [alert_view(alert) for alert in active if wanted(alert)]}


def alert_view(alert: ActiveAlert) -> JsonView:
    views: JsonView = {
        "labels": dict(alert.labels),
        "annotations": alert.annotations,
        "state": alert.state,
        "activeAt": rfc3339(alert.active_at_ms),
        "value": show_float(alert.value, "e"),
    }
    if alert.keep_firing_since_ms:
        views["keepFiringSince"] = rfc3339(alert.keep_firing_since_ms)
    return views


def rfc3339(at_ms: int) -> str:
    """As Go writes a time in JSON: no zeros at the end, and a zero time in the year 1."""
    if at_ms == 0:
        return _NEVER
    moment = _EPOCH + timedelta(milliseconds=at_ms)
    fraction = f".{moment.microsecond // 1000:03d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


# How are the rules themselves? Their counters as series, under Prometheus' names, so that rules can watch rules.


class SelfMetric(Struct, frozen=True):
    """A number of SENTINEL about itself."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    def at(self, at_ms: int) -> RuleSample:
        return RuleSample(labels([(METRIC_NAME, self.name), *self.labels]), at_ms, self.value)


def group_metrics(groups: Iterable[tuple[RuleGroup, GroupState]]) -> list[SelfMetric]:
    found: list[SelfMetric] = []
    for group, state in groups:
        own = (("rule_group", group.key),)
        found += [
            SelfMetric("prometheus_rule_evaluations_total", float(state.evaluations * len(group.rules)), own),
            SelfMetric("prometheus_rule_evaluation_failures_total", float(state.failures), own),
            SelfMetric("prometheus_rule_group_iterations_total", float(state.evaluations), own),
            SelfMetric("prometheus_rule_group_iterations_missed_total", float(state.missed), own),
            SelfMetric("prometheus_rule_group_last_duration_seconds", state.evaluation_s, own),
            SelfMetric("prometheus_rule_group_interval_seconds", group.interval_ms / 1000, own),
            SelfMetric("prometheus_rule_group_rules", float(len(group.rules)), own),
        ]
    return found
