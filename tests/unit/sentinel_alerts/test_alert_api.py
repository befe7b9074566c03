"""What does Alertmanager's API answer?"""

from __future__ import annotations

import pytest
from desk_world import CONFIG, MINUTE, T0, DeskWorld

from harch.base.errors import HarchError
from harch.sentinel.alerts import api, api_silences
from harch.sentinel.alerts.api import AlertFilter, format_time, read_time_ms

SILENCE = {
    "matchers": [{"name": "alertname", "value": "Down", "isRegex": False}],
    "startsAt": "2026-01-01T10:00:00Z",
    "endsAt": "2026-01-01T12:00:00+01:00",
    "createdBy": "amina",
    "comment": "planned",
}


def post(world: DeskWorld, body: object, new_id: str = "id-1") -> str:
    answer = api_silences.post_silence(world.machine, body, new_id=new_id, now_ms=world.now_ms)
    assert isinstance(answer, dict)
    return str(answer["silenceID"])


def alerts(world: DeskWorld, **query: object) -> list[dict]:
    found = api.get_alerts(world.machine, AlertFilter(**query), now_ms=world.now_ms)
    assert isinstance(found, list)
    return found


def test_an_alert_has_exactly_the_fields_of_alertmanager():
    world = DeskWorld()
    body = [
        {
            "labels": {"alertname": "Down", "instance": "a", "empty": ""},
            "annotations": {"summary": "it is down"},
            "generatorURL": "http://g/",
        }
    ]
    assert api.post_alerts(world.machine, body, now_ms=T0 + 5) is None
    assert alerts(world) == [
        {
            "annotations": {"summary": "it is down"},
            "endsAt": "2026-01-01T10:05:00.005Z",
            "fingerprint": "b095cbba435360b4",
            "receivers": [{"name": "team"}],
            "startsAt": "2026-01-01T10:00:00.005Z",
            "status": {"inhibitedBy": [], "mutedBy": [], "silencedBy": [], "state": "active"},
            "updatedAt": "2026-01-01T10:00:00.005Z",
            "generatorURL": "http://g/",
            "labels": {"alertname": "Down", "instance": "a"},
        }
    ]


def test_valid_alerts_of_a_request_are_kept_and_the_others_are_told():
    world = DeskWorld()
    body = [
        {"labels": {"alertname": "Good"}},
        {"labels": {}},
        {"labels": {"a": "b"}, "startsAt": "2026-01-01T10:00:00Z", "endsAt": "2026-01-01T09:00:00Z"},
        {"labels": {"a": 5}},
        "text",
    ]
    with pytest.raises(HarchError) as refused:
        api.post_alerts(world.machine, body, now_ms=T0)
    assert refused.value.code == "E0647"
    assert refused.value.message.count(";") == 3
    assert [alert["labels"]["alertname"] for alert in alerts(world)] == ["Good"]


def test_too_many_alerts_are_refused_as_such(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harch.sentinel.alerts.machine.ALERTS_MAX", 1)
    world = DeskWorld()
    body = [{"labels": {"alertname": name}} for name in ("A", "B")]
    status, text = api.answered(lambda: api.post_alerts(world.machine, body, now_ms=T0))
    assert status == 429
    assert str(text).startswith("E0649")
    assert len(alerts(world)) == 1


def test_alerts_are_filtered_by_label_state_and_receiver():
    world = DeskWorld(CONFIG + "inhibit_rules: [{source_matchers: [s=big], target_matchers: [s=small]}]\n")
    world.fire(alertname="Down", instance="a")
    world.fire(alertname="Full", instance="b", s="big")
    world.fire(alertname="Slow", instance="c", s="small")
    silence_id = post(world, SILENCE)
    names = {alert["labels"]["alertname"]: alert["status"] for alert in alerts(world)}
    assert names["Down"] == {"inhibitedBy": [], "mutedBy": [], "silencedBy": [silence_id], "state": "suppressed"}
    assert names["Slow"]["state"] == "suppressed"
    assert len(names["Slow"]["inhibitedBy"]) == 1

    def found(**query: object) -> set[str]:
        return {alert["labels"]["alertname"] for alert in alerts(world, **query)}

    assert found(silenced=False) == {"Full", "Slow"}
    assert found(inhibited=False) == {"Down", "Full"}
    assert found(active=False) == {"Down", "Slow"}
    assert found(filter=('alertname=~"D.*|F.*"', "instance!=a")) == {"Full"}
    assert found(filter=('s=""',)) == {"Down"}
    assert found(receiver="te.m") == {"Down", "Full", "Slow"}
    assert found(receiver="te") == set()
    world.now_ms += 601 * MINUTE
    assert found() == set()


def test_groups_are_shown_with_their_labels_and_receiver():
    world = DeskWorld()
    world.fire(alertname="Down", instance="b")
    world.fire(alertname="Down", instance="a")
    world.fire(alertname="Full", instance="a")
    groups = api.get_alert_groups(world.machine, AlertFilter(), now_ms=world.now_ms)
    assert [(g["labels"], g["receiver"], len(g["alerts"])) for g in groups] == [
        ({"alertname": "Down"}, {"name": "team"}, 2),
        ({"alertname": "Full"}, {"name": "team"}, 1),
    ]


def test_a_silence_is_made_changed_shown_and_ended():
    world = DeskWorld()
    first = post(world, SILENCE)
    shown = api_silences.get_silence(world.machine, first, now_ms=T0)
    assert shown == {
        "id": "id-1",
        "status": {"state": "active"},
        "updatedAt": "2026-01-01T10:00:00.000Z",
        "comment": "planned",
        "createdBy": "amina",
        "endsAt": "2026-01-01T11:00:00.000Z",
        "matchers": [{"isEqual": True, "isRegex": False, "name": "alertname", "value": "Down"}],
        "startsAt": "2026-01-01T10:00:00.000Z",
    }
    world.now_ms += MINUTE
    longer = {**SILENCE, "id": first, "endsAt": "2026-01-01T20:00:00Z"}
    assert post(world, longer, "unused") == first
    other = {**longer, "matchers": [{"name": "alertname", "value": "F.+", "isRegex": True, "isEqual": True}]}
    second = post(world, other, "id-2")
    assert second == "id-2"  # other matchers make another silence, and end the old one
    listed = api_silences.get_silences(world.machine, now_ms=world.now_ms)
    assert [(one["id"], one["status"]["state"]) for one in listed] == [("id-2", "active"), ("id-1", "expired")]
    assert [one["id"] for one in api_silences.get_silences(world.machine, ["alertname=Down"], now_ms=T0)] == ["id-1"]
    api_silences.delete_silence(world.machine, second, now_ms=world.now_ms)
    assert api_silences.get_silence(world.machine, second, now_ms=world.now_ms)["status"]["state"] == "expired"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"matchers": []}, "E0645"),
        ({"matchers": [{"name": "a", "value": "", "isRegex": False}]}, "E0645"),
        ({"matchers": [{"name": "a", "value": ".*", "isRegex": True}]}, "E0645"),
        ({"matchers": [{"name": "a", "value": "(", "isRegex": True}]}, "E0644"),
        ({"matchers": [{"name": "", "value": "x"}]}, "E0644"),
        ({"matchers": ["a=b"]}, "E0644"),
        ({"endsAt": "2026-01-01T09:00:00Z"}, "E0645"),
        ({"endsAt": "2025-01-01T09:00:00Z", "startsAt": "2025-01-01T08:00:00Z"}, "E0645"),
        ({"createdBy": " "}, "E0645"),
        ({"endsAt": "tomorrow"}, "E0201"),
        ({"id": "no-such-id"}, "E0646"),
        ({"comment": "x" * 5000}, "E0645"),
    ],
)
def test_a_silence_that_makes_no_sense_is_refused(change: dict, code: str):
    world = DeskWorld()
    status, text = api.answered(lambda: post(world, {**SILENCE, **change}))
    assert status in (400, 404)
    assert str(text).startswith(code)
    assert world.machine.shared.silences() == []


def test_an_acknowledgement_says_who_and_why_and_appears_at_the_alert():
    world = DeskWorld()
    alert = world.fire(alertname="Down", instance="a")
    api.post_ack(world.machine, alert.fingerprint, {"by": "amina", "comment": "on it"}, now_ms=T0)
    assert alerts(world)[0]["acknowledgedBy"] == {"by": "amina", "comment": "on it", "at": format_time(T0)}
    assert api.answered(lambda: api.post_ack(world.machine, alert.fingerprint, {}, now_ms=T0))[0] == 400
    assert api.answered(lambda: api.post_ack(world.machine, "0" * 16, {"by": "a"}, now_ms=T0))[0] == 404


def test_status_and_receivers_have_alertmanagers_shape():
    world = DeskWorld()
    status = api.get_status(world.machine, started_at_ms=T0, version="0.1.0", name="dakhla", peers=[("dakar", "x:1")])
    assert set(status) == {"cluster", "config", "uptime", "versionInfo"}
    assert status["cluster"] == {
        "name": "dakhla",
        "status": "ready",
        "peers": [{"name": "dakar", "address": "x:1"}],
    }
    assert "receiver: team" in status["config"]["original"]
    assert api.get_status(world.machine, started_at_ms=T0, version="")["cluster"]["status"] == "disabled"
    assert api.get_receivers(world.machine) == [{"name": "team"}]


def test_times_are_read_in_any_zone_and_gos_zero_time_is_none():
    assert read_time_ms("2026-01-01T12:00:00.123456789+02:00", "x") == T0 + 123
    assert read_time_ms("0001-01-01T00:00:00.000Z", "x") == 0
    with pytest.raises(HarchError, match="E0201"):
        read_time_ms("2026-01-01T12:00:00", "x")
