"""A stranger's way with real processes: a hub, its agent, `harch pipeline`, events over HTTP, a recording webhook."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_pipeline_world import Webhook, until
from journey_world import DEVICES, World

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.uses("bubblewrap")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    hook = Webhook()
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path_factory.mktemp("dakhla")) as hub:
        yield World(hub, hook, tmp_path_factory.mktemp("file"))
    hook.close()


def test_a_sink_abroad_is_refused_with_its_edge_named_and_nothing_is_started(world: World) -> None:
    world.write(", country: SN")
    refused = world.harch("apply", "-f", str(world.file), code=4)["error"]
    assert refused["code"] == "E0907"
    assert "dakhla -> sink valves" in refused["message"]
    assert "SN" in refused["message"]
    assert world.harch("ls")["items"] == []
    assert not list((world.hub.home / "dakhla").glob("pipelines/engine/*/*.conf"))


def test_a_file_with_mistakes_names_all_of_them(world: World) -> None:
    world.file.write_text(world.text.replace("[count, mean]\n      outputs", "[count, maen]\n      outputs"))
    wrong = world.harch("apply", "-f", str(world.file), code=2)["error"]
    assert wrong["code"] == "E0250"
    assert "pipeline.yaml:" in wrong["message"]


def test_events_become_actions_once_whatever_is_killed(world: World) -> None:
    world.write()
    plan = world.harch("apply", "-f", str(world.file), "--dry-run")["items"][0]
    assert plan["result"] == "created"
    assert {edge["kind"] for edge in plan["edges"]} >= {"source", "sink", "stream"}
    assert world.harch("apply", "-f", str(world.file))["items"][0]["result"] == "created"
    assert world.harch("apply", "-f", str(world.file))["items"][0]["result"] == "unchanged"
    until(world.running, "the pipeline runs")
    url = world.show()["pipeline"]["sources"]["web"]

    for _ in range(3):
        world.send(url)
    world.told(world.sent - len(DEVICES))  # the last window is open

    os.kill(world.pid("think"), signal.SIGKILL)
    world.send(url)
    keeper = world.keeper()
    world.hub.kill_hub()
    world.send(url)  # nobody is there to ask, and events are taken all the same
    world.told(world.sent - len(DEVICES))
    world.hub.start_hub()
    until(world.running, "the hub found its pipeline again")
    assert world.keeper() == keeper
    assert world.show()["pipeline"]["sources"]["web"] == url
    starts = {one["stage"]: one["starts"] for one in world.show()["workers"]}
    assert starts == {"source": 1, "sense": 1, "think": 2, "act": 1}

    world.send(url)
    world.told(world.sent - len(DEVICES))
    until(lambda: world.counted() == (world.sent, world.sent, len(world.hook.effects)), "top shows all of it")
    assert world.harch("top", "fields", "--once")["items"][0]["stages"][0]["counters"]["events_accepted"] == world.sent


def test_a_replay_of_kept_events_finds_every_command_that_was_done_and_no_other(world: World) -> None:
    done = len(world.hook.effects)
    dry = world.harch("replay", "fields")
    assert (dry["state"], dry["dry_run"]) == ("done", True), dry
    assert dry["counts"]["events"] == world.sent
    assert (dry["counts"]["commands_known"], dry["counts"]["commands_new"]) == (done, 0)
    assert dry["counts"]["told"] == 0
    real = world.harch("replay", "fields", "--run")
    assert real["counts"]["told"] > 0
    world.send(world.show()["pipeline"]["sources"]["web"])  # what comes behind it in the lane has been acted on
    world.told(world.sent - len(DEVICES))
    assert len(world.hook.effects) == done + len(DEVICES)


def test_a_person_approves_exactly_what_was_shown(world: World) -> None:
    url = world.show()["pipeline"]["sources"]["web"]
    world.send(url, value=20.0)
    world.send(url)
    waiting = until(lambda: world.harch("approvals", "fields")["items"], "actions wait for a person")
    assert {one["action"] for one in waiting} == {"flood"}
    assert len(waiting) == len(DEVICES)
    assert not [one for one in world.hook.effects if one["action"] == "flood"]
    yes, no = waiting[0], waiting[1]
    with world.hub.client() as client:
        other = client.post(f"/v1/pipelines/fields/approvals/{yes['cmd_id']}/approve", json={"digest": no["digest"]})
    assert other.status_code >= 400
    assert other.json()["error"]["code"] == "E0773"
    world.harch("approve", "fields", yes["cmd_id"])
    world.harch("reject", "fields", no["cmd_id"], "--reason", "too wet already")
    until(lambda: [one for one in world.hook.effects if one["action"] == "flood"], "the approved one happens")
    assert [one["cmd_id"] for one in world.hook.effects if one["action"] == "flood"] == [yes["cmd_id"]]


def test_a_new_version_takes_over_without_a_restart_and_a_changed_stage_alone_is_renewed(world: World) -> None:
    url = world.show()["pipeline"]["sources"]["web"]
    before = {one["worker"]: one["pid"] for one in world.show()["workers"]}
    models = str(world.folder / "field_models.py")
    words = ("update", "fields", "dryness@2", "--callable", "field_models:drier", "--file", models)
    assert world.harch(*words, "--role", "active")["result"] == "updated"
    until(lambda: world.show()["pipeline"]["models"].get("model.dryness@2") == "active", "the new version is active")
    world.send(url)
    world.send(url)
    world.told(world.sent - len(DEVICES))
    assert world.hook.effects[-1]["args"]["version"] == 2
    assert {one["worker"]: one["pid"] for one in world.show()["workers"]} == before

    world.harch("scale", "fields", "think=2")
    until(lambda: world.running() and len(world.show()["workers"]) == 5, "a second worker of THINK")
    after = {one["worker"]: one["pid"] for one in world.show()["workers"]}
    assert {name: pid for name, pid in after.items() if name in before} == before

    kinds = audit_kinds(world)
    assert kinds["pipeline.applied"] == 2
    assert kinds["pipeline.scaled"] == 1
    assert kinds["pipeline.refused"] == 1
    assert kinds["action.approved"] == kinds["action.refused"] == 1
    until(lambda: audit_kinds(world)["action.outcome"] >= len(world.hook.effects), "each action is in the chain")


def test_changed_settings_of_sense_renew_sense_alone_and_no_event_is_lost(world: World) -> None:
    before = {one["worker"]: one["pid"] for one in world.show()["workers"]}
    world.write(change=("source_idle_s: 3600", "source_idle_s: 3000"))
    url = world.show()["pipeline"]["sources"]["web"]
    world.send(url)
    done = world.harch("apply", "-f", str(world.file))["items"][0]
    # The file names version 1 only, so it is active again: a swap.
    assert {one["stage"]: one["step"] for one in done["stages"]} == {"sense": "restart", "think": "swap", "act": "keep"}
    until(lambda: {"source-1", "sense-1"} <= {one["worker"] for one in world.show()["workers"]}, "new workers")
    until(lambda: world.running() and len(world.show()["workers"]) == 5, "the old ones have gone")
    url = world.show()["pipeline"]["sources"]["web"]
    world.send(url)
    world.send(url)
    world.told(world.sent - len(DEVICES))
    after = {one["worker"]: one["pid"] for one in world.show()["workers"]}
    assert {name for name in before if after.get(name) != before[name]} == {"source-0", "sense-0"}


def test_more_room_carries_the_state_over_and_added_devices_restart_nothing(world: World) -> None:
    world.write(change=("devices_max: 3", "devices_max: 5"))  # with a window open, and its events in the state
    done = world.harch("apply", "-f", str(world.file))["items"][0]
    assert {one["stage"]: one["step"] for one in done["stages"]}["sense"] == "restart"
    until(lambda: not {"source-1", "sense-1"} & {one["worker"] for one in world.show()["workers"]}, "new workers")
    until(world.running, "it runs again")
    world.send(world.show()["pipeline"]["sources"]["web"])
    world.told(world.sent - len(DEVICES))

    before = {one["worker"]: one["pid"] for one in world.show()["workers"]}
    world.write(change=("field-2]", "field-2, field-3]"))
    done = world.harch("apply", "-f", str(world.file))["items"][0]
    assert {one["stage"]: one["step"] for one in done["stages"]} == {"sense": "swap", "think": "keep", "act": "keep"}
    url = world.show()["pipeline"]["sources"]["web"]

    def taken() -> bool:
        row = {"ts": world.at_ms, "device": "field-3", "v0": 0.5}
        return not world.post(url, [row]).json()["rejected"]

    until(taken, "the source knows the new device")
    world.sent += 1
    world.send(url)
    world.told(world.sent - len(DEVICES))
    assert world.hook.effects[-1]["device"] in {"field-3", *DEVICES}
    assert [one["device"] for one in world.hook.effects].count("field-3") == 1
    assert {one["worker"]: one["pid"] for one in world.show()["workers"]} == before


def test_a_drained_pipeline_may_count_in_other_windows_if_somebody_gives_its_state_up(world: World) -> None:
    world.write(change=("size_s: 0.5", "size_s: 0.25"))
    assert world.harch("apply", "-f", str(world.file), code=3)["error"]["code"] == "E0711"
    assert world.harch("drain", "fields", "-w")["state"] == "drained"
    refused = world.harch("apply", "-f", str(world.file), code=3)["error"]
    assert refused["code"] == "E0757"
    assert "panes of 0.25 s instead of 0.5 s" in refused["message"]
    world.sent -= len(DEVICES)  # of the window that was open
    assert world.harch("apply", "-f", str(world.file), "--drop-state")["items"][0]["result"] == "updated"
    until(world.running, "it runs again")
    url = world.show()["pipeline"]["sources"]["web"]
    for _ in range(3):
        world.send(url)
    world.told(world.sent - len(DEVICES))


def test_removed_means_gone(world: World) -> None:
    keeper = world.keeper()
    world.harch("rm", "fields", "-y")
    assert world.harch("ls")["items"] == []
    until(lambda: not Path(f"/proc/{keeper}").exists(), "the keeper has ended")
    assert not (world.hub.home / "dakhla/pipelines/pipelines/fields").exists()


def audit_kinds(world: World) -> Counter[str]:
    with world.hub.client() as client:
        found = client.get("/v1/audit", params={"limit": 1000}).json()["items"]
    return Counter(one["entry"]["kind"] for one in found)
