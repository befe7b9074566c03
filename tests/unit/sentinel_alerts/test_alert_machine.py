"""Who is told what, and when?"""

from __future__ import annotations

import pytest
from desk_world import CONFIG, HOUR, MINUTE, SECOND, T0, DeskWorld, told

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert, joined
from harch.sentinel.alerts.delivery import Why
from harch.sentinel.alerts.shared_state import SharedState
from harch.sentinel.alerts.silences import acknowledge, expire_silence
from harch.sentinel.model.labels import labels


def test_alerts_of_a_group_are_told_together_after_the_wait():
    world = DeskWorld()
    world.fire(alertname="Down", instance="a")
    world.run(10 * SECOND)
    world.fire(alertname="Down", instance="b")
    world.fire(alertname="Full", instance="a")
    assert world.run(19 * SECOND) == []
    first = world.run(SECOND)
    assert [told(one) for one in first] == [("firing", ["a:firing", "b:firing"])]
    assert first[0].notice.group_key == '{}:{alertname="Down"}'
    assert [told(one)[1] for one in world.run(15 * SECOND)] == [["a:firing"]]  # Full, 30 s after its own first


def test_news_waits_for_the_group_interval_and_nothing_new_for_the_repeat_interval():
    world = DeskWorld()
    world.fire(alertname="Down", instance="a")
    world.run(MINUTE)
    world.fire(alertname="Down", instance="b")
    assert [one.why for one in world.run(5 * MINUTE)] == [Why.NEW_ALERTS]
    assert world.heard[-1][0] == T0 + 30 * SECOND + 5 * MINUTE
    assert world.run(4 * HOUR - 10 * MINUTE) == []
    assert [one.why for one in world.run(20 * MINUTE)] == [Why.REPEAT]


def test_a_clock_that_is_set_back_makes_no_group_wait_for_its_old_future():
    world = DeskWorld()
    world.fire(alertname="Down", instance="a")
    world.run(MINUTE)
    world.now_ms -= HOUR
    world.fire(alertname="Down", instance="b")
    assert [one.why for one in world.run(5 * MINUTE)] == [Why.NEW_ALERTS]


def test_an_alert_that_waited_elsewhere_is_told_at_once_in_a_new_group_and_in_turn_in_an_old_one():
    world = DeskWorld()

    def waited(instance: str) -> Alert:
        return Alert(
            labels=labels({"alertname": "Down", "instance": instance}),
            starts_at_ms=world.now_ms - HOUR,
            ends_at_ms=world.now_ms + HOUR,
            updated_at_ms=world.now_ms,
        )

    world.machine.put([waited("a")], now_ms=world.now_ms)
    assert len(world.run(SECOND)) == 1
    world.machine.put([waited("b")], now_ms=world.now_ms)
    assert world.run(4 * MINUTE) == []
    assert len(world.run(MINUTE)) == 1


def test_the_end_is_told_once_and_the_group_is_forgotten():
    world = DeskWorld()
    world.fire(alertname="Down", instance="a")
    world.fire(alertname="Down", instance="b")
    world.run(MINUTE)
    world.resolve(alertname="Down", instance="a")
    assert [told(one) for one in world.run(5 * MINUTE)] == [("firing", ["a:resolved", "b:firing"])]
    world.resolve(alertname="Down", instance="b")
    assert [told(one) for one in world.run(5 * MINUTE)] == [("resolved", ["b:resolved"])]
    assert world.run(5 * HOUR) == []
    assert list(world.machine.dispatcher.groups) == []
    assert world.machine.alerts == {}


def test_an_alert_that_nobody_sends_any_more_resolves_by_itself():
    world = DeskWorld()
    world.fire(minutes=3, alertname="Down", instance="a")
    assert [told(one)[0] for one in world.run(10 * MINUTE)] == ["firing", "resolved"]


def test_what_fired_and_ended_within_the_wait_is_not_told():
    world = DeskWorld()
    world.fire(alertname="Down", instance="a")
    world.run(10 * SECOND)
    world.resolve(alertname="Down", instance="a")
    assert world.run(HOUR) == []


def test_a_receiver_without_send_resolved_hears_of_fires_only_and_of_the_next_one_again():
    world = DeskWorld(CONFIG.replace("url: http://127.0.0.1:1/", "url: http://127.0.0.1:1/\n    send_resolved: false"))
    world.fire(alertname="Down", instance="a")
    world.run(MINUTE)
    world.resolve(alertname="Down", instance="a")
    assert world.run(10 * MINUTE) == []
    world.fire(alertname="Down", instance="a")
    assert [told(one)[0] for one in world.run(10 * MINUTE)] == ["firing"]


def test_what_could_not_be_told_is_told_by_the_next_look():
    world = DeskWorld()
    world.works = False
    world.fire(alertname="Down", instance="a")
    world.run(2 * MINUTE)
    world.works = True
    assert [told(one)[0] for one in world.run(5 * MINUTE)] == ["firing"]
    world.works = False
    world.resolve(alertname="Down", instance="a")
    world.run(6 * MINUTE)
    world.works = True
    assert [told(one) for one in world.run(6 * MINUTE)] == [("resolved", ["a:resolved"])]


def test_a_receiver_that_may_have_heard_of_an_end_is_told_when_it_fires_again():
    world = DeskWorld()
    world.fire(alertname="Down", instance="a")
    world.run(MINUTE)
    world.resolve(alertname="Down", instance="a")
    world.works = False  # the answer gets lost: whether the receiver heard of the end, nobody knows
    world.run(5 * MINUTE)
    world.works = True
    world.fire(alertname="Down", instance="a")
    assert [(one.why, told(one)[0]) for one in world.run(6 * MINUTE)] == [(Why.IN_DOUBT, "firing")]
    assert world.run(HOUR) == []


def test_a_crash_on_the_way_tells_again_what_fires_and_what_is_over():
    for ends in (False, True):
        world = DeskWorld()
        world.fire(alertname="Down", instance="a")
        world.now_ms += 31 * SECOND
        (lost,) = world.machine.tick(world.now_ms)
        assert lost.why is Why.FIRST
        again = DeskWorld(now_ms=world.now_ms + MINUTE)
        again.machine.shared.load(world.machine.shared.export_changes()[0], now_ms=again.now_ms)
        again.machine.restore(world.machine.alerts.values(), now_ms=again.now_ms)
        if ends:
            again.resolve(alertname="Down", instance="a")
        assert [told(one)[0] for one in again.run(6 * MINUTE)] == ["resolved" if ends else "firing"]


ROUTES = """
route:
  receiver: default
  group_by: [alertname]
  routes:
  - matchers: ['severity = "page"']
    receiver: pager
    group_wait: 0s
    continue: true
  - match: {team: db}
    receiver: database
    group_by: ['...']
    routes:
    - match_re: {instance: 'test-.*'}
      receiver: nobody
receivers:
- name: default
  webhook_configs: [{url: 'http://127.0.0.1:1/'}]
- name: pager
  webhook_configs: [{url: 'http://127.0.0.1:1/'}]
- name: database
  webhook_configs: [{url: 'http://127.0.0.1:1/'}]
- name: nobody
"""


def test_the_tree_of_routes_decides_who_is_told():
    world = DeskWorld(ROUTES)
    world.fire(alertname="A", severity="page", team="db", instance="1")
    world.fire(alertname="A", severity="page", team="db", instance="2")
    world.fire(alertname="A", team="web", instance="3")
    world.fire(alertname="A", severity="page", instance="4")
    world.fire(alertname="A", team="db", instance="test-5")
    heard = {(one.notice.receiver, tuple(told(one)[1])) for one in world.run(MINUTE)}
    assert heard == {
        ("pager", ("1:firing", "2:firing", "4:firing")),
        ("database", ("1:firing",)),
        ("database", ("2:firing",)),
        ("default", ("3:firing",)),
    }


INHIBIT = (
    CONFIG
    + """
inhibit_rules:
- source_matchers: [severity="critical"]
  target_matchers: [severity=~"warning|critical"]
  equal: [site]
"""
)


def test_a_larger_trouble_keeps_smaller_ones_of_the_same_site_quiet():
    world = DeskWorld(INHIBIT)
    world.fire(alertname="SiteDown", severity="critical", site="x", instance="site")
    world.fire(alertname="Slow", severity="warning", site="x", instance="quiet")
    world.fire(alertname="Slow", severity="warning", site="y", instance="loud")
    assert sorted(told(one)[1] for one in world.run(MINUTE)) == [["loud:firing"], ["site:firing"]]
    world.resolve(alertname="SiteDown", severity="critical", site="x", instance="site")
    heard = [told(one)[1] for one in world.run(6 * MINUTE)]
    assert ["site:resolved"] in heard
    assert any("quiet:firing" in one for one in heard)


def test_two_alerts_that_are_source_and_target_do_not_silence_each_other():
    world = DeskWorld(INHIBIT)
    world.fire(alertname="A", severity="critical", site="x", instance="1")
    world.fire(alertname="B", severity="critical", site="x", instance="2")
    assert len(world.run(MINUTE)) == 2


def test_a_silence_keeps_alerts_quiet_until_it_ends_or_is_ended():
    world = DeskWorld()
    silence = world.silence(minutes=60, alertname="Down")
    world.fire(alertname="Down", instance="a")
    assert world.run(30 * MINUTE) == []
    expire_silence(world.machine.shared, silence.id, now_ms=world.now_ms)
    assert [told(one)[0] for one in world.run(6 * MINUTE)] == ["firing"]
    with pytest.raises(HarchError, match="already expired"):
        expire_silence(world.machine.shared, silence.id, now_ms=world.now_ms)
    other = DeskWorld()
    other.silence(minutes=10, alertname="Down")
    other.fire(alertname="Down", instance="a")
    assert [told(one)[0] for one in other.run(20 * MINUTE)] == ["firing"]
    assert other.heard[0][0] >= T0 + 10 * MINUTE


def test_an_acknowledged_alert_is_not_repeated_but_news_and_its_end_are_told():
    world = DeskWorld()
    alert = world.fire(minutes=6000, alertname="Down", instance="a")
    world.run(MINUTE)
    acknowledge(world.machine.shared, alert, by="amina", why="I am on it", now_ms=world.now_ms)
    assert world.run(13 * HOUR) == []
    world.fire(minutes=6000, alertname="Down", instance="b")
    assert [one.why for one in world.run(6 * MINUTE)] == [Why.NEW_ALERTS]
    world.resolve(alertname="Down", instance="b")
    world.resolve(alertname="Down", instance="a")
    assert [one.why for one in world.run(6 * MINUTE)] == [Why.ALL_RESOLVED]
    world.run(HOUR)
    world.fire(minutes=6000, alertname="Down", instance="a")
    assert [one.why for one in world.run(9 * HOUR)] == [Why.NEW_ALERTS, Why.REPEAT, Why.REPEAT]  # a new story


def test_an_acknowledgement_ends_at_its_time_or_when_it_is_withdrawn():
    world = DeskWorld()
    alert = world.fire(minutes=6000, alertname="Down", instance="a")
    world.run(MINUTE)
    acknowledge(world.machine.shared, alert, by="amina", why="", until_ms=T0 + 6 * HOUR, now_ms=world.now_ms)
    assert world.run(6 * HOUR - 5 * MINUTE) == []
    assert [one.why for one in world.run(10 * MINUTE)] == [Why.REPEAT]
    acknowledge(world.machine.shared, alert, by="amina", why="", now_ms=world.now_ms)
    acknowledge(world.machine.shared, alert, by="amina", why="", now_ms=world.now_ms, withdraw=True)
    assert [one.why for one in world.run(5 * HOUR)] == [Why.REPEAT]


NIGHTS = """
route:
  receiver: team
  routes:
  - receiver: team
    matchers: [severity="low"]
    group_by: [alertname]
    group_wait: 0s
    {kind}: [{name}]
receivers:
- name: team
  webhook_configs: [{{url: 'http://127.0.0.1:1/'}}]
time_intervals:
- name: nights
  time_intervals: [{{times: [{{start_time: '10:30', end_time: '12:00'}}], weekdays: ['monday:friday']}}]
- name: office
  time_intervals: [{{times: [{{start_time: '11:00', end_time: '17:00'}}], location: 'Africa/Casablanca'}}]
"""


def test_muted_times_hold_back_what_begins_and_tell_the_end_of_what_was_told_before():
    world = DeskWorld(NIGHTS.format(kind="mute_time_intervals", name="nights"))
    world.fire(alertname="Early", severity="low", instance="a")
    assert len(world.run(29 * MINUTE)) == 1
    world.run(2 * MINUTE)
    world.resolve(alertname="Early", severity="low", instance="a")
    world.fire(alertname="Late", severity="low", instance="b")
    assert world.run(85 * MINUTE) == []
    heard = [told(one) for one in world.run(15 * MINUTE)]
    assert sorted(heard) == [("firing", ["b:firing"]), ("resolved", ["a:resolved"])]


def test_active_times_hold_back_what_comes_outside_of_them():
    world = DeskWorld(NIGHTS.format(kind="active_time_intervals", name="office"))
    world.fire(alertname="A", severity="low", instance="a")
    # 10:00 UTC is 11:00 in Casablanca, which is an hour ahead of UTC in January.
    assert len(world.run(MINUTE)) == 1
    late = DeskWorld(NIGHTS.format(kind="active_time_intervals", name="office"), now_ms=T0 + 8 * HOUR)
    late.fire(alertname="A", severity="low", instance="a")
    assert late.run(HOUR) == []


def test_a_restart_repeats_nothing_and_does_not_take_silence_for_the_end():
    world = DeskWorld()
    world.fire(minutes=4, alertname="Down", instance="a")
    world.run(MINUTE)
    again = DeskWorld(now_ms=world.now_ms + 30 * MINUTE)
    again.machine.shared.load(world.machine.shared.export_changes()[0], now_ms=again.now_ms)
    again.machine.restore(world.machine.alerts.values(), now_ms=again.now_ms)
    assert again.run(4 * MINUTE) == []
    again.fire(minutes=60, alertname="Down", instance="a")
    assert again.run(20 * MINUTE) == []
    again.resolve(alertname="Down", instance="a")
    assert [told(one)[0] for one in again.run(6 * MINUTE)] == ["resolved"]


def test_a_new_configuration_keeps_alerts_and_log():
    world = DeskWorld()
    world.fire(alertname="Down", instance="a")
    world.run(MINUTE)
    world.machine.reconfigure(world.machine.config, now_ms=world.now_ms)
    assert world.run(30 * MINUTE) == []
    assert len(world.machine.alerts) == 1


def test_reports_of_one_alert_are_joined_as_alertmanager_does():
    def report(start: int, end: int, at: int, *, timeout: bool = False) -> Alert:
        return Alert(
            labels=labels({"a": "b"}), starts_at_ms=start, ends_at_ms=end, updated_at_ms=at, is_timeout=timeout
        )

    now = 100
    assert joined(report(10, 200, 20), report(15, 150, 30), now_ms=now) == report(10, 200, 30)
    assert joined(report(10, 200, 20, timeout=True), report(15, 150, 30), now_ms=now) == report(10, 150, 30)
    assert joined(report(10, 200, 20), report(15, 90, 30), now_ms=now) == report(10, 90, 30)  # it is over
    assert joined(report(10, 50, 20), report(60, 200, 30), now_ms=now) == report(60, 200, 30)  # a new story


def test_groups_and_records_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harch.sentinel.alerts.machine.GROUPS_MAX", 2)
    world = DeskWorld()
    world.fire(alertname="A")
    world.fire(alertname="B")
    alert = Alert(labels=labels({"alertname": "C"}), starts_at_ms=T0, ends_at_ms=T0 + 1, updated_at_ms=T0)
    assert [problem.code for problem in world.machine.put([alert], now_ms=T0)] == ["E0649"]
    monkeypatch.setattr("harch.sentinel.alerts.shared_state.LIMITS", dict.fromkeys(SharedState()._counts, 1))
    world.silence(alertname="A")
    with pytest.raises(HarchError, match="E0649"):
        world.silence(alertname="B")
