"""A real hub is killed and loses its WAL: it says so instead of starting, and goes on when an admin lets it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

WITHIN_S = 60


def harch(hub: HubProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harch", *words]
    return subprocess.run(command, env=hub.environment, capture_output=True, text=True, timeout=90)


def submit(hub: HubProcess, *names: str) -> None:
    with hub.client() as client:
        for name in names:
            body = {"name": name, "modelled_duration_s": 3600, "resources": {"gpus": 1}}
            assert client.post("/v1/workloads", json=body).status_code == 201


def answers(hub: HubProcess) -> httpx.Response:
    """`/readyz` of a hub that is starting, whatever it says."""
    until = time.monotonic() + WITHIN_S
    while True:
        try:
            return httpx.get(f"{hub.url}/readyz")
        except httpx.HTTPError:
            assert time.monotonic() < until, "the hub does not answer"
            time.sleep(0.05)


def test_a_hub_without_its_wal_stops_says_so_and_goes_on_when_it_is_told(tmp_path: Path) -> None:
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path) as hub:
        submit(hub, "one", "two", "three")
        hub.kill_hub()
        wal = tmp_path / "dakhla" / "hub.db-wal"
        assert wal.stat().st_size > 0
        wal.unlink()
        hub.hub = hub._spawn("hub", "serve", "dakhla", "--fleet", str(hub.fleet))
        answer = answers(hub)
        assert answer.status_code == 503
        assert "its audit chain ends at entry" in answer.text
        verified = harch(hub, "audit", "verify")
        assert (verified.returncode, verified.stdout.startswith("LOST: ")) == (1, True)
        refused = harch(hub, "run", "-d", "--json", "--", "true")
        assert json.loads(refused.stdout)["error"]["code"] == "E1020"
        done = harch(hub, "audit", "accept-loss", "--reason", "the WAL is gone", "-y")
        assert done.returncode == 0, done.stderr
        assert answers(hub).status_code == 200
        hub.wait_for_agents()
        submit(hub, "four")
        verified = harch(hub, "audit", "verify", "--json")
        told = json.loads(verified.stdout)
        assert (verified.returncode, told["sound"], told["losses"][0]["why"]) == (0, True, "the WAL is gone")
        assert told["hubs_silent"].keys() == {"dakar"}  # it does not run here
        hub.kill_hub()
        hub.start_hub()
        assert harch(hub, "audit", "accept-loss", "--reason", "again", "-y").returncode != 0
