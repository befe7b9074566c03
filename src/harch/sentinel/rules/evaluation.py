"""What does one turn of a group do? Its rules in order, each seeing what those before it recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import STALE
from harch.sentinel.model.labels import Labels
from harch.sentinel.rules.alerting import ActiveAlert, advanced, marked_sent, state_samples
from harch.sentinel.rules.definitions import Rule, RuleGroup
from harch.sentinel.rules.group_state import GroupState, Health, RuleState
from harch.sentinel.rules.ports import Append, Evaluate, ForStates, Sample
from harch.sentinel.rules.recording import recorded
from harch.sentinel.rules.restoring import OUTAGE_MS_MAX, restored_from_series
from harch.sentinel.rules.schedule import Turn
from harch.sentinel.rules.templates.alert_text import World


class Tools(Struct, frozen=True, kw_only=True):
    """What an evaluation works with. `elapsed_s` is a monotonic clock, for the figures of how long it took."""

    evaluate: Evaluate
    append: Append
    elapsed_s: Callable[[], float]
    for_states: ForStates | None = None
    external_labels: dict[str, str] = {}
    external_url: str = ""


class SentAlert(Struct, frozen=True):
    """An alert that is to be sent, with the rule that it comes from."""

    rule: Rule
    alert: ActiveAlert


@dataclass(slots=True)
class Evaluated:
    sent: list[SentAlert] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)  # rule and reason


def evaluate_group(group: RuleGroup, state: GroupState, turn: Turn, tools: Tools) -> Evaluated:
    """Runs the turn and changes `state`. A rule that fails does not stop the others; only its own health suffers."""
    began_s = tools.elapsed_s()
    outcome = Evaluated()
    for rule, rule_state in zip(group.rules, state.rules, strict=True):
        rule_began_s = tools.elapsed_s()
        try:
            _evaluate_rule(group, rule, rule_state, turn, tools, outcome, is_restored=state.is_restored)
        except HarchError as error:
            rule_state.health, rule_state.last_error = Health.BAD, error.message
            outcome.failures.append((rule.name, error.message))
        else:
            rule_state.health, rule_state.last_error = Health.GOOD, ""
        rule_state.evaluated_at_ms = turn.at_ms
        rule_state.evaluation_s = tools.elapsed_s() - rule_began_s
    _end_orphans(state, turn, tools, outcome)
    if not state.is_restored:
        _restore(group, state, turn, tools, outcome)
    state.evaluations += 1 + turn.missed
    state.missed += turn.missed
    state.failures += len(outcome.failures)
    state.last_turn_ms = turn.at_ms
    state.evaluation_s = tools.elapsed_s() - began_s
    return outcome


def _evaluate_rule(
    group: RuleGroup, rule: Rule, state: RuleState, turn: Turn, tools: Tools, outcome: Evaluated, *, is_restored: bool
) -> None:
    sample_ms = turn.at_ms - group.query_offset_ms
    vector = tools.evaluate(rule.expression, sample_ms)
    if not rule.is_alert:
        _write(state, recorded(rule, vector, at_ms=sample_ms, limit=group.limit), sample_ms, tools)
        return
    world = World(evaluate=tools.evaluate, external_labels=tools.external_labels, external_url=tools.external_url)
    try:
        alerts = advanced(rule, state.alerts, vector, at_ms=turn.at_ms, limit=group.limit, world=world)
    except HarchError as error:
        if error.meta.get("dropped"):
            state.alerts = {}
        raise
    state.alerts, sent = marked_sent(alerts, at_ms=turn.at_ms, interval_ms=group.interval_ms)
    outcome.sent += [SentAlert(rule, alert) for alert in sent]
    if is_restored:
        _write(state, state_samples(state.alerts.values(), at_ms=sample_ms), sample_ms, tools)


def _write(state: RuleState, samples: list[Sample], at_ms: int, tools: Tools) -> None:
    """Writes the samples, and ends the series of the last turn that did not come again."""
    series = frozenset(sample.labels for sample in samples)
    ended = [Sample(labels, at_ms, STALE) for labels in sorted(state.series - series)]
    if samples or ended:
        tools.append([*samples, *ended])
    state.series = series


def _end_orphans(state: GroupState, turn: Turn, tools: Tools, outcome: Evaluated) -> None:
    if not state.orphans:
        return
    still_written: set[Labels] = {labels for rule in state.rules for labels in rule.series}
    try:
        tools.append([Sample(labels, turn.at_ms, STALE) for labels in sorted(state.orphans - still_written)])
    except HarchError as error:
        outcome.failures.append(("", error.message))
    else:
        state.orphans = frozenset()


def _restore(group: RuleGroup, state: GroupState, turn: Turn, tools: Tools, outcome: Evaluated) -> None:
    """After the first turn, when it is known what is active: looks up since when it was active before the restart."""
    for rule, rule_state in zip(group.rules, state.rules, strict=True):
        if tools.for_states is None or not rule.is_alert or not rule_state.alerts:
            continue
        try:
            samples = tools.for_states(rule.name, turn.at_ms - OUTAGE_MS_MAX)
        except HarchError as error:
            outcome.failures.append((rule.name, error.message))
            continue
        rule_state.alerts = restored_from_series(rule, rule_state.alerts, samples, now_ms=turn.at_ms)
    state.is_restored = True
