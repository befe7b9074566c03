"""Looking after pipelines of a real hub: scaling by load, canaries that promote themselves, secrets, and live views."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hub_pipeline_world import WITHIN_S, Webhook, until

from harch.base.clock import SystemClock
from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML
from unit.pipelines.think.think_models import linear_onnx

pytestmark = [pytest.mark.uses("bubblewrap"), pytest.mark.timeout(300)]

TOKEN = "Bearer 7c1d9e0f-not-for-logs"
PATIENT_S = 100.0  # a rule that judges a canary wants to see it for a while
OPEN = 3  # moments whose windows wait for stragglers still
METERS = tuple(f"meter-{number}" for number in range(10))
MODELS = """
import time

def slow(rows):  # what waits piles up, without a core being busy
    time.sleep(0.02 * len(rows))
    return rows[:, :1]

def broken(rows):
    if float(rows.sum()):
        raise ValueError("no")
    return rows[:, :1]
"""
HEAD = """\
kind: pipeline
name: {name}
jurisdiction:
  {{process_in: [MA], rest_in: [MA], classification: internal, encrypt_at_rest: false, encrypt_in_transit: false}}
sense:
  sources: [{{kind: http, name: web, disorder_s: 0.1}}]
  devices: [{devices}]
  devices_max: 10
  partitions: {partitions}
  statistics: [count, mean]
  windows: {{size_s: 0.1, lateness_s: 0.1, skew_s: 60, future_s: 60}}
  source_idle_s: 3600
  checkpoint: {{every_s: 0.2}}
"""
THINK = """\
think:
  models:
    - name: rate
      inputs: [count]
      outputs: [events]
      versions: [{version: "1", runtime: python, callable: "meter_models:slow"}]
      canary_percent: 50
      promote: {after_s: 1, rows_min: 20}
scaling:
  think: {workers_max: 3, lag_s_target: 0.5, grow_cooldown_s: 1, shrink_cooldown_s: 2}
"""
ACT = """\
act:
  sinks:
    alarm: {kind: http, url: "SINK", honours_key: true, timeout_s: 10, headers: {Authorization: "env:ALARM_TOKEN"}}
  actions:
    - {name: alarm, when: mean > 0, ttl_s: 300, sink: alarm, args: {n: "{count}"}}
"""


class World:
    """A hub with a pipeline that thinks slowly, and one whose webhook wants a token."""

    def __init__(self, hub: HubProcess, hook: Webhook, folder: Path) -> None:
        self.hub, self.hook, self.folder = hub, hook, folder
        self.at_ms = round(SystemClock().now().timestamp() * 1000) // 1000 * 1000
        (folder / "meter_models.py").write_text(MODELS)
        names = ", ".join(METERS)
        (folder / "meters.yaml").write_text(HEAD.format(name="meters", devices=names, partitions=3) + THINK)
        act = ACT.replace("SINK", hook.url)
        (folder / "alarms.yaml").write_text(HEAD.format(name="alarms", devices=names, partitions=1) + act)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "harch", *words]

    def harch(self, *words: str, given: str = "") -> Any:
        done = subprocess.run(
            [*self.command(*words), "--json"],
            env=self.hub.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def show(self, name: str) -> Any:
        with self.hub.client() as client:
            return client.get(f"/v1/pipelines/{name}").json()

    def source(self, name: str) -> str:
        found = self.show(name)["pipeline"]
        return str(found["sources"].get("web", "")) if found["state"] == "running" else ""

    def send(self, name: str, moments: int) -> int:
        """One event per meter and moment, a window each; answers how many events these are."""
        url = until(lambda: self.source(name), f"{name} runs")
        times = [self.at_ms + 100 * (number + 1) for number in range(moments)]
        self.at_ms = times[-1]
        rows = [{"ts": at_ms, "device": meter, "v0": 1.0} for at_ms in times for meter in METERS]
        with self.hub.client() as client:
            key = client.get(f"/v1/pipelines/{name}/key", params={"source": "web"}).json()["key"]
        until(lambda: self._posted(url, key, rows), "the source says yes")
        return len(rows)

    def _posted(self, url: str, key: str, rows: list[dict[str, Any]]) -> bool:
        return httpx.post(f"{url}/v1/events", json=rows, headers={"x-api-key": key}, timeout=20).status_code == 202

    def results(self, name: str, after: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with self.hub.client() as client:
            while True:
                page = client.get(f"/v1/pipelines/{name}/results", params={"after": after}).json()
                found += page["items"]
                if not page["items"]:
                    return found
                after = page["next_after"]

    def send_if_idle(self, name: str, windows: int) -> None:
        """More than it can work off would make THINK grow, and what a canary did counts anew with new workers."""
        think = next(one for one in self.show(name)["pipeline"]["stages"] if one["stage"] == "think")
        if (think["waiting"] or 0) < len(METERS):
            self.send(name, windows)

    def thinkers(self) -> int:
        return sum(one["stage"] == "think" and one["health"] == "ok" for one in self.show("meters")["workers"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    hook = Webhook(token=TOKEN, refused="meter-9")
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path_factory.mktemp("dakhla")) as hub:
        made = World(hub, hook, tmp_path_factory.mktemp("file"))
        made.harch("secret", "set", "ALARM_TOKEN", given=TOKEN)
        for name in ("meters", "alarms"):
            made.harch("pipeline", "apply", "-f", str(made.folder / f"{name}.yaml"))
        yield made
    hook.close()


def test_a_stage_that_falls_behind_grows_to_its_limit_and_shrinks_again_and_every_event_is_counted_once(
    world: World,
) -> None:
    sent = 0

    def grown() -> bool:
        nonlocal sent
        think = next(one for one in world.show("meters")["pipeline"]["stages"] if one["stage"] == "think")
        if (think["waiting"] or 0) < 100:
            sent += world.send("meters", 20)  # four seconds of work for one worker
        return world.thinkers() == 3

    until(grown, "three workers of THINK")
    whole = sent - OPEN * len(METERS)
    until(lambda: len(world.results("meters")) >= whole, "all of them are worked off")
    rows = world.results("meters")
    assert len({(row["window_end"], row["device"]) for row in rows}) == len(rows) == whole
    assert {row["values"]["events"] for row in rows} == {1.0}
    until(lambda: world.thinkers() == 1, "one worker is enough")
    with world.hub.client() as client:
        told = client.get("/v1/events", params={"limit": 500}, headers={"Accept": "application/json"}).text
    assert "think: 3 workers" in told or "think: 2 workers" in told


def test_a_good_canary_becomes_active_by_itself_and_a_bad_one_goes(world: World) -> None:
    model = world.folder / "rate.onnx"
    model.write_bytes(linear_onnx([1.0]))
    words = ("pipeline", "update", "meters", "rate@2", "--role", "canary", "--file", str(model))
    assert world.harch(*words)["result"] == "updated"
    until(lambda: world.show("meters")["pipeline"]["models"].get("model.rate@2") == "canary", "it is the canary")

    def promoted() -> bool:
        world.send_if_idle("meters", 2)
        return world.show("meters")["pipeline"]["models"].get("model.rate@2") == "active"

    until(promoted, "it is active", PATIENT_S)
    roles = {one["version"]: one["role"] for one in world.show("meters")["spec"]["think"]["models"][0]["versions"]}
    assert roles == {"1": "loaded", "2": "active"}
    file = str(world.folder / "meter_models.py")
    words = ("pipeline", "update", "meters", "rate@3", "--role", "canary", "--callable", "meter_models:broken")
    world.harch(*words, "--file", file)

    def retired() -> bool:
        world.send_if_idle("meters", 2)
        versions = world.show("meters")["spec"]["think"]["models"][0]["versions"]
        return [one["version"] for one in versions] == ["1", "2"]

    until(retired, "the broken one is gone", PATIENT_S)
    sent = world.at_ms
    world.send("meters", OPEN + 1)
    until(lambda: _newest(world) > sent, "windows go on")
    rows = [row for row in world.results("meters") if row["model"] != "rate@1"]
    assert {row["model"] for row in rows} == {"rate@2"}  # what the broken one could not answer, the active one did
    with world.hub.client() as client:
        items = client.get("/v1/audit", params={"limit": 1000}).json()["items"]
    by_rule = [one["entry"] for one in items if one["entry"]["actor"] == "rule:promote"]
    assert [one["kind"] for one in by_rule] == ["pipeline.applied", "pipeline.applied"]


def test_a_secret_reaches_the_sink_and_nothing_else_and_a_dead_action_can_be_dropped(world: World) -> None:
    world.send("alarms", 2 + OPEN)
    until(lambda: len(world.hook.effects) >= 18, "two windows of nine meters")
    letters = until(lambda: world.harch("pipeline", "dead", "ls", "alarms")["items"], "what the webhook refuses")
    assert {one["device"] for one in letters} == {"meter-9"}
    world.harch("pipeline", "dead", "drop", "alarms", letters[0]["cmd_id"][:12])
    left = world.harch("pipeline", "dead", "ls", "alarms")["items"]
    assert [one["cmd_id"] for one in left] == [one["cmd_id"] for one in letters[1:]]
    with world.hub.client() as client:
        paths = ("", "/alarms", "/alarms/dead", "/alarms/approvals")
        shown = "".join(client.get(f"/v1/pipelines{path}").text for path in paths)
        shown += client.get("/v1/audit", params={"limit": 1000}).text
        assert "action.dropped" in shown
    logs = [path.read_text() for path in world.hub.home.rglob("*.log")]
    assert TOKEN not in shown
    holders = {one["stage"] for one in world.show("alarms")["workers"] if TOKEN.encode() in _environment(one["pid"])}
    assert holders == {"act"}
    assert "not-for-logs" not in "".join(logs)


def test_a_halted_pipeline_sends_nothing_whatever_is_restarted_until_somebody_resumes_it(world: World) -> None:
    assert world.harch("pipeline", "halt", "alarms", "--reason", "fire")["halted"] == "fire"
    before = len(world.hook.effects)

    def refused() -> int:
        stages = {one["stage"]: one["counters"] for one in world.show("alarms")["pipeline"]["stages"]}
        return int(stages["act"].get("ended_rejected", 0))

    def halted() -> None:
        world.send("alarms", 2 + OPEN)
        until(lambda: refused() >= 18, "what the windows call for is refused")

    halted()
    (act,) = [one for one in world.show("alarms")["workers"] if one["stage"] == "act"]
    world.hub.kill_hub()
    os.kill(act["pid"], signal.SIGKILL)
    world.hub.start_hub()

    def replaced() -> bool:
        found = [one for one in world.show("alarms")["workers"] if one["stage"] == "act"]
        return [one["pid"] for one in found if one["health"] == "ok"] not in ([], [act["pid"]])

    until(replaced, "another worker of ACT")
    halted()
    assert len(world.hook.effects) == before
    assert world.harch("pipeline", "resume", "alarms")["halted"] == ""
    world.send("alarms", 2 + OPEN)
    until(lambda: len(world.hook.effects) > before, "actions are sent again")
    with world.hub.client() as client:
        items = client.get("/v1/audit", params={"kind": "pipeline", "after": 0, "limit": 1000}).json()["items"]
    kinds = [one["entry"]["kind"] for one in items if one["entry"]["subject"] == "alarms"]
    assert [kind for kind in kinds if kind in ("pipeline.halted", "pipeline.resumed")] == [
        "pipeline.halted",
        "pipeline.resumed",
    ]


@pytest.mark.needs("bubblewrap")
def test_every_worker_is_confined_where_bubblewrap_works(world: World) -> None:
    boxes = until(lambda: [one["sandbox"] for one in world.show("alarms")["workers"]], "workers of alarms")
    assert set(boxes) == {"bubblewrap"}


def test_logs_are_followed_and_top_is_live_on_a_terminal(world: World) -> None:
    follow = subprocess.Popen(
        world.command("pipeline", "logs", "alarms", "sense", "-f"), env=world.hub.environment, stdout=subprocess.PIPE
    )
    assert follow.stdout is not None
    seen = _read_until(follow.stdout.fileno(), b"epoch 1")
    pid = next(one["pid"] for one in world.show("alarms")["workers"] if one["stage"] == "sense")
    os.kill(pid, signal.SIGKILL)  # the next one says that the partition is its own
    seen += _read_until(follow.stdout.fileno(), b"epoch 2")
    follow.send_signal(signal.SIGINT)
    assert follow.wait(20) == 130
    assert seen.count(b"epoch 1") == 1

    own, other = pty.openpty()
    environment = {**world.hub.environment, "TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
    top = subprocess.Popen(
        world.command("pipeline", "top", "alarms", "--watch", "0.2"),
        env=environment,
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
    )
    os.close(other)
    picture = _read_until(own, b"events at http")
    assert b"alarms" in picture
    sent = world.send("alarms", 1)
    total = world.show("alarms")["pipeline"]["stages"][0]["counters"]["events_accepted"]
    assert sent
    picture += _read_until(own, f"{total:,}".encode())
    assert b"\x1b[" in picture, "it draws over what stood there"
    os.killpg(top.pid, signal.SIGINT)
    _drain(own)
    assert top.wait(20) == 130
    os.close(own)


def _environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def _newest(world: World) -> int:
    from datetime import datetime

    return max(round(datetime.fromisoformat(row["window_end"]).timestamp() * 1000) for row in world.results("meters"))


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    found, deadline_s = b"", time.monotonic() + WITHIN_S
    while wanted not in found:
        assert time.monotonic() < deadline_s, (wanted, found[-2000:])
        if select.select([descriptor], [], [], 0.5)[0]:
            found += os.read(descriptor, 65536)
    return found


def _drain(descriptor: int) -> None:
    """What a terminal would show: without a reader the program could not end."""
    while select.select([descriptor], [], [], 1.0)[0]:
        try:
            if not os.read(descriptor, 65536):
                return
        except OSError:  # the other side is closed
            return
