"""Real kill -9 of hub and agent while work pours in: nothing acknowledged is lost, nothing runs twice."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import httpx
import pytest

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.uses("bubblewrap")

SOAK = bool(os.environ.get("HARCH_SOAK"))
KILLS = 200 if SOAK else 15
JOBS_AT_ONCE = 12


class Burst:
    """Submits jobs until told to stop; remembers those that were acknowledged."""

    def __init__(self, hub: HubProcess, witness: Path) -> None:
        self._hub, self._witness = hub, witness
        self.acknowledged: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        with self._hub.client() as client:
            while not self._stop.is_set():
                number += 1
                # Each execution appends one line: a second execution of the same attempt would show.
                script = f'echo "{number} $HARCH_ATTEMPT" >> {self._witness}/ran; sleep 0.{number % 4}'
                body = {
                    "name": f"burst-{number}",
                    "command": ["/bin/sh", "-c", script],
                    "working_dir": str(self._witness),
                    "resources": {"gpus": number % 3},
                }
                try:
                    answer = client.post("/v1/workloads", json=body)
                    if answer.status_code in (200, 201):
                        self.acknowledged[answer.json()["id"]] = str(number)
                except httpx.HTTPError:
                    pass  # not acknowledged, so nothing was promised
                if len(self.acknowledged) % JOBS_AT_ONCE == 0:
                    self._stop.wait(0.5)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.timeout(0 if SOAK else 120)
def test_kill_9_of_hub_and_agent_during_bursts_loses_nothing_and_runs_nothing_twice(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    witness.mkdir()
    chance = random.Random(7)
    home = tmp_path / "home"
    home.mkdir()
    with HubProcess(TINY_FLEET_TOML, "dakhla", home, share=(witness,)) as hub:
        burst = Burst(hub, witness)
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 0.6))
            if chance.random() < 0.5:
                hub.kill_hub()
                hub.start_hub()
            else:
                hub.kill_agent("agent")
                hub.start_agent("agent")
            hub.wait_for_agents()
        burst.stop()
        workloads = _wait_until_all_ended(hub)
        summary = hub.summary()
    assert len(burst.acknowledged) > KILLS
    missing = set(burst.acknowledged) - set(workloads)
    assert not missing, f"acknowledged and gone: {missing}"
    not_completed = {i: (w["status"], w["error_message"]) for i, w in workloads.items() if w["status"] != "completed"}
    assert not not_completed
    ran = [line.split() for line in (witness / "ran").read_text().splitlines()]
    assert len(ran) == len({tuple(line) for line in ran}), "an attempt ran twice"
    assert len(ran) == len(workloads), "every job ran exactly once, none was repeated"
    assert summary["gpus_free"] == summary["gpus_total"]


def _wait_until_all_ended(hub: HubProcess) -> dict[str, dict[str, object]]:
    with hub.client() as client:
        for _ in range(600):
            if not client.get("/v1/workloads", params={"active": "true"}).json()["items"]:
                break
            time.sleep(0.1)
        found: dict[str, dict[str, object]] = {}
        page = 1
        while True:
            answer = client.get("/v1/workloads", params={"page": page, "per_page": 100}).json()
            found |= {item["id"]: item for item in answer["items"]}
            if not answer["pagination"]["has_next"]:
                return found
            page += 1
