"""When does an alert wait, fire, go on and end?"""

from __future__ import annotations

import math

import pytest
from rule_world import MINUTE_MS, RuleWorld

from harch.sentinel.model.histograms import STALE
from harch.sentinel.model.labels import labels
from harch.sentinel.rules.alert_state import AlertState
from harch.sentinel.rules.definitions import RuleSample
from harch.sentinel.rules.evaluation import first_turn_ms, next_turn, slot_at_or_before
from harch.sentinel.rules.group_state import RuleHealth, carried_over, kept_rules, restored

RULES = """
groups:
- name: g
  interval: 1m
  rules:
  - alert: Down
    expr: up == 0
    for: 5m
    keep_firing_for: {keep}
    labels: {{severity: page}}
    annotations: {{text: "{{{{ $labels.instance }}}} at {{{{ $value }}}}"}}
"""
T0 = 1_700_000_000_000
DOWN = [({"__name__": "up", "instance": "a"}, 0.0)]


def world(keep: str = "0s") -> RuleWorld:
    made = RuleWorld(RULES.format(keep=keep))
    made.answers["up == 0"] = DOWN
    return made


def state_of(made: RuleWorld) -> str:
    alerts = list(made.states["g"].rules[0].alerts.values())
    return alerts[0].state if alerts else "none"


def test_an_alert_waits_fires_and_ends_and_its_end_is_told_once():
    made = world()
    assert made.turn(T0).sent == []
    assert state_of(made) == "pending"
    assert made.turn(T0 + 4 * MINUTE_MS).sent == []
    fired = made.turn(T0 + 5 * MINUTE_MS).sent[0].alert
    assert fired.state is AlertState.FIRING
    assert fired.fired_at_ms == T0 + 5 * MINUTE_MS
    assert fired.annotations == {"text": "a at 0"}
    assert dict(fired.labels) == {"alertname": "Down", "instance": "a", "severity": "page"}
    made.answers["up == 0"] = []
    ended = made.turn(T0 + 6 * MINUTE_MS).sent[0].alert
    assert (ended.state, ended.resolved_at_ms) == (AlertState.INACTIVE, T0 + 6 * MINUTE_MS)
    assert made.turn(T0 + 7 * MINUTE_MS).sent == []  # the delay for sending again is one minute, and not over
    assert len(made.turn(T0 + 9 * MINUTE_MS).sent) == 1
    made.turn(T0 + 22 * MINUTE_MS)
    assert state_of(made) == "none"  # 15 minutes after its end it is forgotten


def test_a_pending_alert_that_vanishes_is_forgotten_and_waits_anew():
    made = world()
    made.turn(T0)
    made.answers["up == 0"] = []
    made.turn(T0 + MINUTE_MS)
    assert state_of(made) == "none"
    made.answers["up == 0"] = DOWN
    made.turn(T0 + 2 * MINUTE_MS)
    made.turn(T0 + 6 * MINUTE_MS)
    assert state_of(made) == "pending"


def test_keep_firing_for_bridges_gaps_and_counts_from_the_last_one():
    made = world(keep="3m")
    made.turn(T0)
    made.turn(T0 + 5 * MINUTE_MS)
    made.answers["up == 0"] = []
    made.turn(T0 + 6 * MINUTE_MS)
    made.turn(T0 + 8 * MINUTE_MS)
    assert state_of(made) == "firing"
    made.answers["up == 0"] = DOWN
    made.turn(T0 + 9 * MINUTE_MS)
    made.answers["up == 0"] = []
    made.turn(T0 + 10 * MINUTE_MS)
    made.turn(T0 + 12 * MINUTE_MS)
    assert state_of(made) == "firing"
    made.turn(T0 + 13 * MINUTE_MS)
    assert state_of(made) == "inactive"


def test_alerts_are_series_and_series_that_change_state_or_end_are_marked_stale():
    made = world()
    made.turn(T0)
    pending = labels(
        {"__name__": "ALERTS", "alertname": "Down", "alertstate": "pending", "instance": "a", "severity": "page"}
    )
    since = labels({"__name__": "ALERTS_FOR_STATE", "alertname": "Down", "instance": "a", "severity": "page"})
    assert made.samples == [RuleSample(pending, T0, 1.0), RuleSample(since, T0, T0 / 1000)]
    made.samples.clear()
    made.turn(T0 + 5 * MINUTE_MS)
    values = {dict(s.labels).get("alertstate", "since"): s.value for s in made.samples}
    assert (values["firing"], values["since"]) == (1.0, T0 / 1000)
    assert math.isnan(values["pending"])
    made.samples.clear()
    made.answers["up == 0"] = []
    made.turn(T0 + 6 * MINUTE_MS)
    assert [math.isnan(s.value) for s in made.samples] == [True, True]
    assert repr(made.samples[0].value) == repr(STALE)


def test_a_failed_query_changes_no_alert_and_shows_in_the_rules_health():
    made = world()
    made.turn(T0)
    written = len(made.samples)
    del made.answers["up == 0"]
    outcome = made.turn(T0 + MINUTE_MS)
    rule = made.states["g"].rules[0]
    assert (rule.health, rule.last_error) == (RuleHealth.BAD, "no answer for up == 0")
    assert outcome.failures == [("Down", "no answer for up == 0")]
    assert state_of(made) == "pending"
    assert len(made.samples) == written
    made.answers["up == 0"] = DOWN
    made.turn(T0 + 5 * MINUTE_MS)
    assert (rule.health, state_of(made)) == (RuleHealth.GOOD, "firing")


def test_an_alert_is_sent_even_when_its_series_cannot_be_stored():
    made = world()
    made.turn(T0)
    made.refuses_samples = True
    outcome = made.turn(T0 + 5 * MINUTE_MS)
    assert [sent.alert.state for sent in outcome.sent] == [AlertState.FIRING]
    assert outcome.failures == [("Down", "no space left")]


def test_equal_labels_and_too_many_alerts_fail_the_rule():
    made = RuleWorld(
        "groups:\n- name: g\n  limit: 1\n  rules:\n  - alert: A\n    expr: x\n    labels: {instance: same}\n"
    )
    made.answers["x"] = [({"instance": "a"}, 1.0), ({"instance": "b"}, 1.0)]
    assert "same labels" in made.turn(T0).failures[0][1]
    made.answers["x"] = [({"zone": "a"}, 1.0), ({"zone": "b"}, 1.0)]
    assert "allows 1" in made.turn(T0 + MINUTE_MS).failures[0][1]
    assert made.states["g"].rules[0].alerts == {}


def test_recorded_series_feed_later_rules_of_the_group_at_the_offset_time():
    made = RuleWorld(
        "groups:\n- name: g\n  query_offset: 1m\n  rules:\n  - record: a\n    expr: x\n    labels: {drop: '', k: v}\n"
        "  - record: b\n    expr: a\n"
    )
    made.answers["x"] = [({"__name__": "x", "drop": "1", "host": "h"}, 2.0)]
    made.answers["a"] = [({}, 3.0)]
    made.turn(T0)
    at_ms = T0 - MINUTE_MS
    assert made.asked == [("x", at_ms), ("a", at_ms)]
    assert made.samples == [
        RuleSample(labels({"__name__": "a", "host": "h", "k": "v"}), at_ms, 2.0),
        RuleSample(labels({"__name__": "b"}), at_ms, 3.0),
    ]


def test_a_restart_goes_on_waiting_without_counting_the_time_that_nobody_watched():
    made = world()
    made.turn(T0)
    made.turn(T0 + 4 * MINUTE_MS)
    kept = kept_rules(made.group(), made.states["g"])
    again = world()
    again.states["g"] = restored(again.group(), kept, now_ms=T0 + 20 * MINUTE_MS)
    again.turn(T0 + 20 * MINUTE_MS)
    assert state_of(again) == "pending"
    again.turn(T0 + 21 * MINUTE_MS)
    assert state_of(again) == "firing"


def test_a_restart_keeps_the_start_of_a_firing_alert_and_tells_its_end():
    made = world()
    made.turn(T0)
    made.turn(T0 + 5 * MINUTE_MS)
    kept = kept_rules(made.group(), made.states["g"])
    again = world()
    again.answers["up == 0"] = []
    again.states["g"] = restored(again.group(), kept, now_ms=T0 + 10 * MINUTE_MS)
    ended = again.turn(T0 + 10 * MINUTE_MS).sent[0].alert
    assert (ended.state, ended.fired_at_ms) == (AlertState.INACTIVE, T0 + 5 * MINUTE_MS)
    forgotten = restored(again.group(), kept, now_ms=T0 + 90 * MINUTE_MS)
    assert forgotten.rules[0].alerts == {}


@pytest.mark.parametrize(
    ("waited_min", "down_min", "fires_after_min"),
    [
        (70, 5, 0),  # it was firing
        (57, 5, 10),  # nearly: a grace period is left
        (20, 5, 40),  # what is left of the hour
    ],
)
def test_without_a_state_file_the_series_tell_since_when_an_alert_waits(waited_min, down_min, fires_after_min):
    made = RuleWorld("groups:\n- name: g\n  rules:\n  - alert: Slow\n    expr: x\n    for: 1h\n")
    made.answers["x"] = [({"host": "h"}, 1.0)]
    down_at = T0 + waited_min * MINUTE_MS
    series = labels({"__name__": "ALERTS_FOR_STATE", "alertname": "Slow", "host": "h"})
    made.history = [RuleSample(series, down_at, T0 / 1000)]
    now = down_at + down_min * MINUTE_MS
    made.states["g"] = restored(made.group(), [], now_ms=now)
    made.turn(now)
    assert made.samples == []  # a first ALERTS_FOR_STATE would overwrite what is looked up
    if fires_after_min:
        made.turn(now + (fires_after_min - 1) * MINUTE_MS)
        assert state_of(made) == "pending"
    made.turn(now + max(fires_after_min, 1) * MINUTE_MS)
    assert state_of(made) == "firing"
    assert made.samples


def test_groups_have_places_of_their_own_and_missed_turns_are_counted():
    group = world().group()
    first = first_turn_ms(group, T0)
    assert T0 <= first < T0 + MINUTE_MS
    assert first == first_turn_ms(group, first)
    assert slot_at_or_before(group, first + 59_999) == first
    assert next_turn(group, first, first + 59_999) is None
    turn = next_turn(group, first, first + 3 * MINUTE_MS + 5)
    assert turn is not None
    assert (turn.at_ms, turn.missed) == (first + 3 * MINUTE_MS, 2)
    back = next_turn(group, first, first - 24 * 60 * MINUTE_MS)
    assert back is not None
    assert back.at_ms <= first - 24 * 60 * MINUTE_MS


def test_an_edited_file_keeps_what_its_rules_knew_and_ends_the_series_of_those_that_left():
    made = world()
    made.turn(T0)
    edited = RuleWorld(
        "groups:\n- name: g\n  rules:\n  - record: new\n    expr: y\n" + RULES.format(keep="0s").split("rules:\n")[1]
    )
    edited.answers = {"y": [], "up == 0": DOWN}
    edited.states["g"] = carried_over(made.group(), made.states["g"], edited.group())
    edited.turn(T0 + 5 * MINUTE_MS)
    assert [alert.state for alert in edited.states["g"].rules[1].alerts.values()] == ["firing"]
    left = RuleWorld("groups:\n- name: g\n  rules: []\n")
    left.states["g"] = carried_over(edited.group(), edited.states["g"], left.group())
    left.turn(T0 + 6 * MINUTE_MS)
    assert len(left.samples) == 2
    assert all(math.isnan(sample.value) for sample in left.samples)
    left.turn(T0 + 7 * MINUTE_MS)
    assert len(left.samples) == 2
