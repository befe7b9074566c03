"""What does one evaluation of a group do, and when is it due?

Its rules in order, each seeing what those before it recorded, at the group's own offset in the interval.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import STALE
from harch.sentinel.model.labels import METRIC_NAME, Labels, labels
from harch.sentinel.rules.alert_state import (
    OUTAGE_MS_MAX,
    ActiveAlert,
    advanced,
    marked_sent,
    restored_from_series,
    state_samples,
)
from harch.sentinel.rules.definitions import Append, Evaluate, ForStates, Rule, RuleGroup, RuleSample, Vector, fnv1a
from harch.sentinel.rules.group_state import GroupState, RuleHealth, RuleState
from harch.sentinel.rules.templates.expansion import TemplateContext


def recorded(rule: Rule, vector: Vector, *, at_ms: int, limit: int) -> list[RuleSample]:
    """Raises E0642: two results with the same labels, or more than `limit`. Empty labels of the rule remove labels."""
    found: dict[Labels, RuleSample] = {}
    for metric, value in vector:
        key = labels({**metric, METRIC_NAME: rule.name, **rule.labels})
        if key in found:
            raise HarchError(
                "E0642",
                f"two results of `{rule.name}` have the same labels once the rule's labels are set",
                hint="keep a label in the expression that distinguishes them",
            )
        found[key] = RuleSample(key, at_ms, value)
    if 0 < limit < len(found):
        raise HarchError(
            "E0642",
            f"`{rule.name}` returns {len(found)} series, but its group allows {limit}",
            hint="raise the group's `limit`, or aggregate labels away; nothing was recorded",
        )
    return list(found.values())


# When is a group due? At a place of its own in the interval, so that groups do not all query at once.


class ScheduledEvaluation(Struct, frozen=True):
    """An evaluation: the time that it is for, and how many were left out before it."""

    at_ms: int
    missed: int = 0


def slot_at_or_before(group: RuleGroup, now_ms: int) -> int:
    """The last time that the group was due. The offset depends on its name and file only, so it survives restarts."""
    offset_ms = fnv1a(group.key.encode()) % group.interval_ms
    return (now_ms - offset_ms) // group.interval_ms * group.interval_ms + offset_ms


def first_turn_ms(group: RuleGroup, now_ms: int) -> int:
    """The next slot: a group waits for its place instead of starting with all others."""
    last_ms = slot_at_or_before(group, now_ms)
    return last_ms if last_ms == now_ms else last_ms + group.interval_ms


def next_turn(group: RuleGroup, last_ms: int, now_ms: int) -> ScheduledEvaluation | None:
    """The turn that is due by now, None if it is not yet time. Turns that nobody can make up for are counted.

    A clock that was set back makes the group wait for its next slot instead of for its old future.
    """
    if now_ms < last_ms - group.interval_ms:
        return ScheduledEvaluation(slot_at_or_before(group, now_ms))
    passed = (now_ms - last_ms) // group.interval_ms
    return ScheduledEvaluation(last_ms + passed * group.interval_ms, passed - 1) if passed > 0 else None


# What does one turn of a group do? Its rules in order, each seeing what those before it recorded.


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


def evaluate_group(group: RuleGroup, state: GroupState, turn: ScheduledEvaluation, tools: Tools) -> Evaluated:
    """Runs the turn and changes `state`. A rule that fails does not stop the others; only its own health suffers."""
    began_s = tools.elapsed_s()
    outcome = Evaluated()
    for rule, rule_state in zip(group.rules, state.rules, strict=True):
        rule_began_s = tools.elapsed_s()
        try:
            _evaluate_rule(group, rule, rule_state, turn, tools, outcome, is_restored=state.is_restored)
        except HarchError as error:
            rule_state.health, rule_state.last_error = RuleHealth.BAD, error.message
            outcome.failures.append((rule.name, error.message))
        else:
            rule_state.health, rule_state.last_error = RuleHealth.GOOD, ""
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
    group: RuleGroup,
    rule: Rule,
    state: RuleState,
    turn: ScheduledEvaluation,
    tools: Tools,
    outcome: Evaluated,
    *,
    is_restored: bool,
) -> None:
    sample_ms = turn.at_ms - group.query_offset_ms
    vector = tools.evaluate(rule.expression, sample_ms)
    if not rule.is_alert:
        _write(state, recorded(rule, vector, at_ms=sample_ms, limit=group.limit), sample_ms, tools)
        return
    world = TemplateContext(
        evaluate=tools.evaluate, external_labels=tools.external_labels, external_url=tools.external_url
    )
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


def _write(state: RuleState, samples: list[RuleSample], at_ms: int, tools: Tools) -> None:
    """Writes the samples, and ends the series of the last turn that did not come again."""
    series = frozenset(sample.labels for sample in samples)
    ended = [RuleSample(labels, at_ms, STALE) for labels in sorted(state.series - series)]
    if samples or ended:
        tools.append([*samples, *ended])
    state.series = series


def _end_orphans(state: GroupState, turn: ScheduledEvaluation, tools: Tools, outcome: Evaluated) -> None:
    if not state.orphans:
        return
    still_written: set[Labels] = {labels for rule in state.rules for labels in rule.series}
    try:
        tools.append([RuleSample(labels, turn.at_ms, STALE) for labels in sorted(state.orphans - still_written)])
    except HarchError as error:
        outcome.failures.append(("", error.message))
    else:
        state.orphans = frozenset()


def _restore(group: RuleGroup, state: GroupState, turn: ScheduledEvaluation, tools: Tools, outcome: Evaluated) -> None:
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
