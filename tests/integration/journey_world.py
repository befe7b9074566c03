"""The hub, the fields and the webhook of a stranger's way through pipelines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from hub_pipeline_world import Webhook, until

from harch.base.clock import SystemClock
from harch.base.state_files import read_sealed
from harch.testing.hub_process import HubProcess

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
durability: {events_kept_s: 86400}
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


class World:
    """The hub, the webhook, and a sender that counts what was accepted."""

    def __init__(self, hub: HubProcess, hook: Webhook, folder: Path) -> None:
        self.hub, self.hook, self.folder = hub, hook, folder
        self.file = folder / "pipeline.yaml"
        self.key = ""
        self.sent = 0  # events for actions that need nobody's word
        self.at_ms = round(SystemClock().now().timestamp() * 1000)
        self.text = PIPELINE.replace("SINK", hook.url)
        (folder / "field_models.py").write_text(MODELS)
        self.write()

    def write(self, where: str = "", *, change: tuple[str, str] = ("", "")) -> None:
        """`change` stays for the next files."""
        self.text = self.text.replace(*change)
        self.file.write_text(self.text.replace("WHERE", where))

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
        return int(json.loads(read_sealed(self.hub.home / "dakhla/pipelines/keeper.pid"))["pid"])

    def pid(self, stage: str) -> int:
        return next(int(one["pid"]) for one in self.show()["workers"] if one["stage"] == stage)

    def post(self, url: str, rows: list[dict[str, Any]]) -> httpx.Response:
        self.key = self.key or str(self.harch("key", "fields", "web")["key"])
        return httpx.post(f"{url}/v1/events", json=rows, headers={"x-api-key": self.key}, timeout=20)

    def send(self, url: str, *, value: float = 0.5) -> None:
        """One event per device, a window after the last ones, which closes theirs. Straight to the source, which takes
        events also while the hub is away; again until it says yes."""
        self.at_ms += 1000
        rows = [{"ts": self.at_ms, "device": device, "v0": value} for device in DEVICES]
        until(lambda: self.post(url, rows).status_code == 202, "the source says yes")
        self.sent += len(rows) if value < 10 else 0

    def told(self, expected: int) -> None:
        """All of these events are in actions, and none twice."""
        until(lambda: self.hook.events() >= expected, f"{expected} events are in actions")
        assert self.hook.events() == expected
        assert set(self.hook.requests.values()) == {1}
