"""Pipelines that end before ACT, and one without a model, with real processes of a hub."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hub_pipeline_world import Webhook, until

from harch.base.clock import SystemClock
from harch.base.state_files import read_sealed
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.layout import inbox_of
from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = [pytest.mark.uses("bubblewrap"), pytest.mark.timeout(240)]

HEAD = """\
kind: pipeline
name: {name}
jurisdiction:
  {{process_in: [MA], rest_in: [MA], classification: internal, encrypt_at_rest: false, encrypt_in_transit: false}}
sense:
  sources: [{{kind: http, name: web, disorder_s: 0.1}}]
  devices: [room-1, room-2]
  devices_max: 2
  metrics: [temp-in]
  statistics: [count, mean]
  windows: {{size_s: 0.5, lateness_s: 0.2, skew_s: 60, future_s: 60}}
  source_idle_s: 3600
  checkpoint: {{every_s: 0.2}}
"""
THINK = """\
think:
  models:
    - name: warmth
      inputs: [mean]
      outputs: [kelvin]
      versions: [{version: "1", runtime: python, callable: "room_models:kelvin"}]
"""
ACT = """\
act:
  sinks: {alarm: {kind: http, url: "SINK", honours_key: true, timeout_s: 10}}
  actions:
    - {name: too-warm, when: mean > 8 and count >= 1, ttl_s: 300, sink: alarm, args: {degrees: "{mean}"}}
"""


class World:
    """A hub with three pipelines of two rooms."""

    def __init__(self, hub: HubProcess, hook: Webhook, folder: Path) -> None:
        self.hub, self.hook, self.folder = hub, hook, folder
        (folder / "room_models.py").write_text("def kelvin(rows):\n    return rows + 273.15\n")
        for name, rest in (("seen", ""), ("thought", THINK), ("ruled", ACT.replace("SINK", hook.url))):
            (folder / f"{name}.yaml").write_text(HEAD.format(name=name) + rest)
        for name in ("thought", "ruled"):
            with (folder / f"{name}.yaml").open("a") as file:
                file.write("durability: {events_kept_s: 3600}\n")

    def harch(self, *words: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "harch", "pipeline", *words, "--json"]
        done = subprocess.run(
            command, env=self.hub.environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def source(self, name: str) -> str:
        with self.hub.client() as client:
            found = client.get(f"/v1/pipelines/{name}").json()["pipeline"]
        return str(found["sources"].get("web", "")) if found["state"] == "running" else ""

    def send(self, name: str, moments: int = 4) -> int:
        """Answers when the first window of them begins; the last is open still."""
        url = until(lambda: self.source(name), f"{name} runs")
        first_ms = round(SystemClock().now().timestamp() * 1000) // 1000 * 1000
        for number in range(moments):
            rows = [
                {"ts": first_ms + 1000 * number, "device": device, "v0": value}
                for device, value in (("room-1", 4.0), ("room-2", 20.0))
            ]
            shown = {"x-api-key": self.harch("key", name)["key"]}
            answer = httpx.post(f"{url}/v1/events", json=rows, headers=shown, timeout=20)
            assert answer.status_code == 202, answer.text
        return first_ms


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    hook = Webhook()
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path_factory.mktemp("dakhla")) as hub:
        made = World(hub, hook, tmp_path_factory.mktemp("file"))
        for name in ("seen", "thought", "ruled"):
            assert made.harch("apply", "-f", str(made.folder / f"{name}.yaml"))["items"][0]["result"] == "created"
        yield made
    hook.close()


def test_sense_alone_gives_features_that_people_and_nats_clients_can_read(world: World) -> None:
    until(lambda: world.source("seen"), "it runs")
    heard = asyncio.run(_listened(world, "seen", 3))
    rows = until(lambda: _whole(world, "seen", 6), "three windows of two rooms")
    assert {row["device"] for row in rows} == {"room-1", "room-2"}
    assert {(row["device"], row["values"]["mean"]) for row in rows} == {("room-1", 4.0), ("room-2", 20.0)}
    assert {row["values"]["count"] for row in rows} == {1.0}
    assert world.harch("results", "seen", "-n", "1")["items"] == rows[-2:]
    assert len(heard) == 3
    assert {subject for subject, _ in heard} == {"juris.ma.seen.results.0"}
    assert all(payload[:4] == b"HRCH" for _, payload in heard)
    workers = {one["stage"] for one in world.harch("show", "seen")["workers"]}
    assert workers == {"source", "sense"}
    assert world.harch("approvals", "seen", code=1)["error"]["code"] == "E0755"


def test_sense_and_think_give_outputs_with_the_version_that_made_them(world: World) -> None:
    world.send("thought")
    rows = until(lambda: _whole(world, "thought", 6), "three windows of two rooms")
    assert {row["model"] for row in rows} == {"warmth@1"}
    assert sorted({round(row["values"]["kelvin"], 2) for row in rows}) == [277.15, 293.15]
    again = world.harch("replay", "thought", "--run")
    assert (again["counts"]["windows"], again["counts"]["rows"]) == (3, 6)
    both = until(lambda: _whole(world, "thought", 12), "the replay's results are there, too")
    assert [(row["window_end"], row["device"], row["values"]) for row in both[6:]] == [
        (row["window_end"], row["device"], row["values"]) for row in rows
    ]


def test_rules_about_features_act_without_a_model(world: World) -> None:
    world.send("ruled")
    until(lambda: len(world.hook.effects) >= 3, "three windows are too warm")
    assert {(one["device"], one["args"]["degrees"]) for one in world.hook.effects} == {("room-2", 20.0)}
    assert len(world.hook.effects) == 3
    assert set(world.hook.requests.values()) == {1}
    assert world.harch("results", "ruled", code=1)["error"]["code"] == "E0755"


def test_kept_events_are_replayed_once_more_only_if_somebody_says_so_and_files_of_rows_too(world: World) -> None:
    source = next(one for one in world.harch("show", "ruled")["workers"] if one["stage"] == "source")
    os.kill(source["pid"], signal.SIGKILL)  # what was kept is kept
    known = world.harch("replay", "ruled", "--run")
    assert (known["counts"]["events"], known["counts"]["commands_known"], known["counts"]["commands_new"]) == (8, 3, 0)
    again = world.harch("replay", "ruled", "--run", "--again")
    assert again["counts"]["commands_new"] == 3
    until(lambda: len(world.hook.effects) >= 6, "they are carried out once more")
    assert set(world.hook.requests.values()) == {1}

    rows = world.folder / "rows.ndjson"
    rows.write_text(
        "".join(f'{{"ts": {1_790_000_000_000 + 250 * n}, "device": "room-1", "v0": 9}}\n' for n in range(8))
    )
    told = world.harch("replay", "ruled", "--file", str(rows))
    assert (told["state"], told["counts"]["windows"], told["counts"]["commands_new"]) == ("done", 4, 4)
    assert told["new"][0]["steps"][0]["args"] == {"degrees": 9.0}
    part = world.harch("replay", "ruled", "--file", str(rows), "--since", "2026-09-21T14:13:21")
    assert (part["counts"]["windows"], part["counts"]["windows_cut"]) == (2, 2)
    assert len(world.hook.effects) == 6
    assert world.harch("replay", "seen", code=1)["error"]["code"] == "E0756"


def test_a_drained_pipeline_may_get_another_stage_and_a_running_one_may_not(world: World) -> None:
    (world.folder / "seen.yaml").write_text(HEAD.format(name="seen") + THINK)
    assert world.harch("apply", "-f", str(world.folder / "seen.yaml"), code=3)["error"]["code"] == "E0711"
    assert world.harch("drain", "seen", "-w")["state"] == "drained"
    assert world.harch("apply", "-f", str(world.folder / "seen.yaml"))["items"][0]["result"] == "updated"
    world.send("seen")
    rows = until(lambda: [row for row in _whole(world, "seen", 1) or () if row["model"]], "the model answers")
    assert {round(row["values"]["kelvin"], 2) for row in rows} <= {277.15, 293.15}


def _whole(world: World, name: str, rows: int) -> Any:
    with world.hub.client() as client:
        found = client.get(f"/v1/pipelines/{name}/results").json()["items"]
    return found if len(found) >= rows else None


async def _listened(world: World, name: str, messages: int) -> list[tuple[str, bytes]]:
    """What a client with the key of readers hears while events are sent."""
    engine = world.hub.home / "dakhla/pipelines/engine"
    user = f"ma-{name}-readers"
    port = json.loads(read_sealed(engine / "ma/ports.json"))["client"]
    seed = next(path for path in (engine / "keys").iterdir() if path.stem == user).read_text().strip()
    options = ClientOptions(
        servers=(f"nats://127.0.0.1:{port}",),
        name="reader",
        credentials=Credentials(seed=seed),
        inbox_prefix=inbox_of(user),
    )
    client = AioClient(options, clock=SystemClock())
    heard: list[tuple[str, bytes]] = []

    def hear(message: Message) -> None:
        heard.append((message.subject, bytes(message.payload)))

    await client.connect()
    try:
        client.subscribe(f"juris.ma.{name}.results.*", hear)
        await client.flush()
        await asyncio.to_thread(world.send, name)
        async with asyncio.timeout(60):
            while len(heard) < messages:
                await asyncio.sleep(0.05)
    finally:
        await client.close()
    return heard


def test_only_the_key_that_the_cli_prints_opens_a_source_and_renewing_it_ends_the_old_one(world: World) -> None:
    url = until(lambda: world.source("seen"), "seen runs")
    command = [sys.executable, "-m", "harch", "pipeline", "key", "seen", "web"]
    printed = subprocess.run(command, env=world.hub.environment, capture_output=True, text=True, check=True, timeout=60)
    old = printed.stdout.strip()
    row = [{"ts": round(SystemClock().now().timestamp() * 1000), "device": "room-1", "v0": 4.0}]

    def status(key: str, at: str = url) -> int:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            return httpx.post(f"{at}/v1/events", json=row, headers=headers, timeout=20).status_code
        except httpx.HTTPError:
            return 0  # its worker is being replaced

    assert (status(""), status(world.hub.key), status(old)) == (401, 401, 202)
    with world.hub.client() as client:
        assert client.post("/v1/pipelines/seen/events", json=row).status_code == 202, "the hub knows the key"
    new = world.harch("key", "seen", "--renew")["key"]
    assert new != old
    until(lambda: status(new, world.source("seen") or url) == 202, "the source knows the new key")
    assert status(old, world.source("seen")) == 401
    with world.hub.client() as client:
        until(lambda: client.post("/v1/pipelines/seen/events", json=row).status_code == 202, "so does the hub")
