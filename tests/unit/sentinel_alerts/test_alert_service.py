"""Does alerting survive restarts and bad disks? The service with a simulated clock and a real file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from desk_world import CONFIG

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import alert_of
from harch.sentinel.alerts.api import AlertFilter
from harch.sentinel.alerts.config_file import parse_config
from harch.sentinel.alerts.delivery import Delivery
from harch.sentinel.alerts.service import AlertService
from harch.sentinel.alerts.store import AlertStore
from harch.sentinel.model.labels import labels
from harch.sentinel.rules.alert_state import ActiveAlert
from harch.sentinel.rules.definitions import RuleFile, RuleSample, Vector
from harch.sentinel.rules.evaluation import SentAlert, Tools
from harch.sentinel.rules.file import parse_rules
from harch.sentinel.rules.runner import RuleRunner
from harch.testing.clock import SimClock

RULES = """
groups:
- name: g
  interval: 30s
  rules:
  - alert: Down
    expr: up == 0
    for: 1m
    labels: {severity: page}
    annotations: {summary: "{{ $labels.instance }} is down"}
"""
SILENCE = {
    "matchers": [{"name": "alertname", "value": "Down"}],
    "endsAt": "2026-01-01T20:00:00Z",
    "createdBy": "amina",
    "comment": "",
}


class Heard:
    def __init__(self) -> None:
        self.list: list[Delivery] = []

    async def send(self, delivery: Delivery) -> None:
        self.list.append(delivery)

    def statuses(self) -> list[str]:
        return [delivery.notice.status for delivery in self.list]


async def at_once(function, *arguments):
    """Instead of a thread, so that a simulated clock sees the end of it."""
    return function(*arguments)


class World:
    """One SENTINEL's rules and alerts over a state folder; `start` again for a restart."""

    def __init__(self, folder: Path, rules: str = RULES) -> None:
        self.folder, self.clock, self.heard = folder, SimClock(), Heard()
        self.answer: Vector = []
        self.rules: list[RuleFile] = [parse_rules(rules, name="r.yaml")]
        self.samples: list[RuleSample] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.store = AlertStore(self.folder / "alerts.db")
        self.service = AlertService(
            parse_config(CONFIG), self.store, self.heard, self.clock, version="0", offload=at_once
        )
        tools = Tools(
            evaluate=lambda expression, at_ms: self.answer,
            append=self.samples.extend,
            elapsed_s=self.clock.monotonic_s,
            external_labels={"hub": "dakhla"},
        )

        async def notify(sent: list[SentAlert]) -> None:
            now_ms = self.service.now_ms()
            await self.service.put_alerts(
                alert_of(one, now_ms=now_ms, external_labels={"hub": "dakhla"}) for one in sent
            )

        self.runner = RuleRunner(
            tools,
            self.clock,
            notify=notify,
            keep=self.service.keep_rules,
            kept=self.service.kept_rules,
            offload=at_once,
        )
        self.runner.load(self.rules)
        self.tasks = [asyncio.create_task(self.service.run()), asyncio.create_task(self.runner.run())]

    async def stop(self) -> None:
        """As a crash: nothing is flushed, nothing is told."""
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.store.close()

    def alerts(self) -> list[dict]:
        status, body = self.service.get_alerts(AlertFilter())
        assert status == 200
        assert isinstance(body, list)
        return body


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    made.start()
    yield made
    await made.stop()


async def test_from_a_query_result_to_a_notification_and_its_end(world: World):
    world.answer = [({"instance": "a"}, 0.0)]
    await world.clock.advance(60)
    assert world.heard.list == []
    await world.clock.advance(90)
    (delivery,) = world.heard.list
    alert = delivery.notice.alerts[0]
    assert dict(alert.labels) == {"alertname": "Down", "hub": "dakhla", "instance": "a", "severity": "page"}
    assert alert.annotations == {"summary": "a is down"}
    assert alert.generator_url == "/graph?g0.expr=up+%3D%3D+0&g0.tab=1"
    assert world.alerts()[0]["status"]["state"] == "active"
    world.answer = []
    await world.clock.advance(400)
    assert world.heard.statuses() == ["firing", "resolved"]
    assert world.alerts() == []


async def test_a_restart_forgets_nothing_and_repeats_nothing(world: World):
    world.answer = [({"instance": "a"}, 0.0)]
    await world.clock.advance(200)
    assert world.heard.statuses() == ["firing"]
    status, body = await world.service.post_silence({**SILENCE, "matchers": [{"name": "x", "value": "y"}]})
    assert status == 200
    started = world.alerts()[0]["startsAt"]
    await world.stop()
    await world.clock.advance(300)
    world.start()
    assert world.alerts()[0]["startsAt"] == started
    assert world.service.get_silence(body["silenceID"])[0] == 200
    await world.clock.advance(900)
    assert world.heard.statuses() == ["firing"]
    world.answer = []
    await world.clock.advance(400)
    assert world.heard.statuses() == ["firing", "resolved"]


async def test_a_wait_goes_on_after_a_restart(tmp_path: Path):
    world = World(tmp_path, RULES.replace("for: 1m", "for: 5m"))
    world.start()
    world.answer = [({"instance": "a"}, 0.0)]
    await world.clock.advance(270)
    await world.stop()
    await world.clock.advance(20)
    world.start()
    await world.clock.advance(130)
    await world.stop()
    assert world.heard.statuses() == ["firing"]


async def test_a_change_is_answered_when_it_is_on_disk_and_refused_when_it_cannot_be(world: World):
    status, body = await world.service.post_silence(SILENCE)
    with sqlite3.connect(world.folder / "alerts.db") as other:
        assert other.execute("SELECT key FROM kept WHERE kind = 'silence'").fetchall() == [(body["silenceID"],)]
    fingerprint = (await world.service.post_alerts([{"labels": {"a": "b"}}]), world.alerts()[0]["fingerprint"])[1]
    assert (await world.service.post_ack(fingerprint, {"by": "amina"}))[0] == 200
    assert (await world.service.delete_silence(body["silenceID"]))[0] == 200
    assert (await world.service.delete_silence("nope"))[0] == 404
    world.store.close()
    status, text = await world.service.post_silence(SILENCE)
    assert status == 503
    assert str(text).startswith("E0652")
    world.store = world.service.saver._store = AlertStore(world.folder / "alerts.db")
    assert (await world.service.post_silence(SILENCE))[0] == 200
    kept = world.store.load()
    assert len([record for record in kept.records if record.__struct_config__.tag == "silence"]) == 3


async def test_a_rule_without_alerts_is_written_once_and_one_with_alerts_after_every_turn(world: World):
    written: list[int] = []
    keep = world.runner._keep

    async def counted(rules):
        written.append(len(rules))
        await keep(rules)

    world.runner._keep = counted
    await world.clock.advance(300)
    assert written == [1]
    world.answer = [({"instance": "a"}, 0.0)]
    await world.clock.advance(120)
    assert written == [1] * 5
    world.answer = []
    await world.clock.advance(1500)  # resolved, and forgotten after a quarter of an hour
    known = len(written)
    await world.clock.advance(300)
    assert len(written) == known
    assert world.store.load().rules[0].alerts == ()


async def test_records_of_a_peer_are_kept_and_told_on(world: World, tmp_path: Path):
    (tmp_path / "other").mkdir()
    other = World(tmp_path / "other")
    other.start()
    await other.service.post_silence(SILENCE)
    records, cursor = other.service.export_changes()
    assert await world.service.merge(records) == records
    assert await world.service.merge(records) == []
    world.answer = [({"instance": "a"}, 0.0)]
    await world.clock.advance(600)
    assert world.heard.list == []
    assert world.service.export_changes()[0] == records
    assert other.service.export_changes(cursor)[0] == []
    await other.stop()
    assert len(world.store.load().records) == 1


async def test_reloaded_rules_keep_their_alerts_and_rules_that_leave_end_their_series(world: World):
    world.answer = [({"instance": "a"}, 0.0)]
    await world.clock.advance(200)
    more = RULES + "  - record: copy\n    expr: x\n"
    world.runner.load([parse_rules(more, name="r.yaml")])
    await world.clock.advance(60)
    group, state = world.runner.groups[0]
    assert [alert.state for alert in state.rules[0].alerts.values()] == ["firing"]
    assert group.rules[1].name == "copy"
    world.samples.clear()
    world.runner.load([])
    assert {dict(sample.labels)["__name__"] for sample in world.samples} == {"ALERTS", "ALERTS_FOR_STATE", "copy"}
    assert world.runner.groups == []


async def test_a_fault_in_one_group_or_in_one_look_does_not_end_the_others(world: World, monkeypatch):
    faults = ["look", "group"]

    def broken(expression: str, at_ms: int) -> Vector:
        if "group" in faults:
            faults.remove("group")
            raise ZeroDivisionError
        return [({"instance": "a"}, 0.0)]

    tick = world.service.machine.tick

    def broken_tick(now_ms: int, *, position: int):
        if "look" in faults:
            faults.remove("look")
            raise IndexError
        return tick(now_ms, position=position)

    world.runner._tools = msgspec.structs.replace(world.runner._tools, evaluate=broken)
    monkeypatch.setattr(world.service.machine, "tick", broken_tick)
    await world.clock.advance(240)
    assert faults == []
    assert world.heard.statuses() == ["firing"]
    assert world.runner.groups[0][1].failures == 1


async def test_files_that_change_during_a_turn_wait_for_its_end(world: World):
    under_way, go_on = asyncio.Event(), asyncio.Event()
    turns: list[str] = []

    async def slowly(function, *arguments):
        if function.__name__ == "evaluate_group":
            turns.append("begins")
            under_way.set()
            await go_on.wait()
            turns.append("ends")
        return function(*arguments)

    world.runner._offload = slowly
    await world.clock.advance(30)
    assert under_way.is_set()
    world.runner.load([parse_rules(RULES.replace("for: 1m", "for: 2m"), name="r.yaml")])
    await world.clock.advance(60)
    assert turns == ["begins"]
    go_on.set()
    await world.clock.advance(60)
    assert turns[:3] == ["begins", "ends", "begins"]
    assert len([group for group, _ in world.runner.groups]) == 1


def test_a_file_of_a_later_release_is_left_alone(tmp_path: Path):
    path = tmp_path / "alerts.db"
    AlertStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(HarchError, match="later release"):
        AlertStore(path)


def test_rows_that_cannot_be_read_do_not_stop_the_others(tmp_path: Path):
    store = AlertStore(tmp_path / "alerts.db")
    store.write({("silence", "a"): b"{}", ("alert", "b"): b"nonsense", ("later", "c"): b'{"type":"later"}'})
    kept = store.load()
    assert (kept.records, kept.alerts, kept.unreadable) == ([], [], 3)
    store.close()


def test_a_file_that_is_damaged_beyond_repair_is_set_aside_and_alerting_goes_on(tmp_path: Path):
    path = tmp_path / "alerts.db"
    store = AlertStore(path)
    store.write({("silence", str(number)): b"x" * 500 for number in range(40)})
    store.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    again = AlertStore(path)
    assert again.load().unreadable == 0
    again.write({("silence", "new"): b"{}"})
    again.close()
    assert path.with_name("alerts.db.damaged").exists()
    assert AlertStore(path).load().unreadable == 1


def test_labels_of_a_rule_win_over_those_of_the_hub():
    world_rule = parse_rules(RULES, name="r").groups[0].rules[0]

    active = ActiveAlert(labels=labels({"hub": "own"}), fired_at_ms=1, valid_until_ms=2)
    made = alert_of(SentAlert(world_rule, active), now_ms=1, external_labels={"hub": "dakhla", "country": "MA"})
    assert dict(made.labels) == {"hub": "own", "country": "MA"}
