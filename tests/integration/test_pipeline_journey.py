"""A stranger's way with real processes: a hub, its agent, `harch pipeline`, events over HTTP, a recording webhook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from harch.base.clock import SystemClock
from harch.testing.fleets import TINY_FLEET_TOML
from harch.testing.hub_process import HubProcess

WITHIN_S = 60.0
DEVICES = ("field-0", "field-1", "field-2")
MODELS = """
import numpy as np

def dry(rows):  # how many events, how dry, and which version says so
    return np.column_stack((rows[:, 0], rows[:, 1], np.full(len(rows), 1.0))).astype(np.float32)

def drier(rows):
    return np.column_stack((rows[:, 0], rows[:, 1], np.full(len(rows), 2.0))).astype(np.float32)
"""
PIPELINE = """\
kind: pipeline
name: fields
jurisdiction:
  {process_in: [MA], rest_in: [MA], classification: internal, encrypt_at_rest: false, encrypt_in_transit: false}
sense:
  sources:
    - {kind: http, name: web, disorder_s: 0.1}
  devices: [field-0, field-1, field-2]
  devices_max: 3
  metrics: [moisture]
  statistics: [count, mean]
  windows: {size_s: 0.5, lateness_s: 0.2, skew_s: 60, future_s: 60}
  source_idle_s: 3600
  partitions: 2
  checkpoint: {every_s: 0.2}
think:
  models:
    - name: dryness
      inputs: [count, mean]
      outputs: [events, dryness, version]
      versions:
        - {version: "1", runtime: python, callable: "field_models:dry"}
act:
  sinks:
    valves: {kind: http, url: "SINK", honours_key: true, timeout_s: 10WHERE}
  actions:
    - {name: water, when: dryness < 10, ttl_s: 300, sink: valves, args: {events: "{events}", version: "{version}"}}
    - {name: flood, when: dryness >= 10, mode: confirm-and-execute, ttl_s: 300, sink: valves, args: {n: "{events}"}}
"""


class Webhook:
    """Writes down every request; an effect is a key that was not there before."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.effects: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    key = self.headers["Idempotency-Key"]
                    outer.requests[key] += 1
                    if outer.requests[key] == 1:
                        outer.effects.append(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/valves"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def events(self) -> float:
        """All events that actions `water` were about."""
        with self._lock:
            return sum(float(one["args"]["events"]) for one in self.effects if one["action"] == "water")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class World:
    """The hub, the webhook, and a sender that counts what was accepted."""

    def __init__(self, hub: HubProcess, hook: Webhook, folder: Path) -> None:
        self.hub, self.hook, self.folder = hub, hook, folder
        self.file = folder / "pipeline.yaml"
        self.sent = 0  # events for actions that need nobody's word
        self.at_ms = round(SystemClock().now().timestamp() * 1000)
        (folder / "field_models.py").write_text(MODELS)
        self.write()

    def write(self, where: str = "", *, change: tuple[str, str] = ("", "")) -> None:
        text = PIPELINE.replace("SINK", self.hook.url).replace("WHERE", where)
        self.file.write_text(text.replace(*change))

    def harch(self, *words: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "harch", "pipeline", *words, "--json"]
        done = subprocess.run(
            command, env=self.hub.environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def show(self) -> Any:
        with self.hub.client() as client:
            answer = client.get("/v1/pipelines/fields")
            return answer.json() if answer.status_code == 200 else None

    def running(self) -> bool:
        found = self.show()
        return found is not None and found["pipeline"]["state"] == "running" and bool(found["pipeline"]["sources"])

    def counted(self) -> tuple[int, int, int]:
        """What workers say: events that were accepted, that SENSE has, and actions that were done."""
        said = {stage["stage"]: stage["counters"] for stage in self.show()["pipeline"]["stages"]}
        wanted = (("source", "events_accepted"), ("sense", "events_in"), ("act", "ended_done"))
        found = [said[stage].get(name, 0) for stage, name in wanted]
        return found[0], found[1], found[2]

    def keeper(self) -> int:
        return int(json.loads((self.hub.home / "dakhla/pipelines/keeper.pid").read_text())["pid"])

    def pid(self, stage: str) -> int:
        return next(int(one["pid"]) for one in self.show()["workers"] if one["stage"] == stage)

    def send(self, url: str, *, value: float = 0.5) -> None:
        """One event per device, a window after the last ones, which closes theirs. Straight to the source, which takes
        events also while the hub is away; again until it says yes."""
        self.at_ms += 1000
        rows = [{"ts": self.at_ms, "device": device, "v0": value} for device in DEVICES]
        until(lambda: httpx.post(f"{url}/v1/events", json=rows, timeout=20).status_code == 202, "the source says yes")
        self.sent += len(rows) if value < 10 else 0

    def told(self, expected: int) -> None:
        """All of these events are in actions, and none twice."""
        until(lambda: self.hook.events() >= expected, f"{expected} events are in actions")
        assert self.hook.events() == expected
        assert set(self.hook.requests.values()) == {1}


def until(look: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            found = look()
        except httpx.HTTPError:
            found = None
        if found:
            return found
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


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
    world.write(change=("[count, mean]\n      outputs", "[count, maen]\n      outputs"))
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


def test_a_drained_pipeline_may_count_in_other_windows_and_begins_anew(world: World) -> None:
    world.write(change=("size_s: 0.5", "size_s: 0.25"))
    assert world.harch("apply", "-f", str(world.file), code=3)["error"]["code"] == "E0711"
    assert world.harch("drain", "fields", "-w")["state"] == "drained"
    world.sent -= len(DEVICES)  # of the window that was open
    assert world.harch("apply", "-f", str(world.file))["items"][0]["result"] == "updated"
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
