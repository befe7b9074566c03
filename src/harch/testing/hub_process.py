"""A hub and its agents as real processes that a test may kill and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from harch.api.sentinel_process import record_of
from harch.cli.local_federation import safeguard_options
from harch.execution.process_record import found_running
from harch.fleet.file import parse_fleet
from harch.testing.ports import free_port_base

READY_WITHIN_S = 60.0
HUBS_OF_PORTS = 2  # the gang ports of two hubs are enough for four agents


class HubProcess:
    """One hub of a fleet, in a folder of its own, on ports of its own. Everything it started ends with the `with`."""

    def __init__(
        self,
        fleet_toml: str,
        hub_id: str,
        folder: Path,
        *,
        agents: dict[str, tuple[str, ...]] | None = None,  # agent -> its nodes; one agent for all nodes if absent
        share: tuple[Path, ...] = (),
        agent_options: tuple[str, ...] | None = None,  # its declarations; those of the fleet file if absent
    ) -> None:
        self.hub_id, self.home, self._share = hub_id, folder, share
        hubs = parse_fleet(fleet_toml).hubs
        number = [hub.id for hub in hubs].index(hub_id)
        declared = safeguard_options(hubs[number].safeguards)
        self._agent_options = tuple(declared) if agent_options is None else agent_options
        self.fleet = folder / "fleet.toml"
        self.fleet.write_text(fleet_toml)
        self.port_base = free_port_base(HUBS_OF_PORTS)
        self.url = f"http://127.0.0.1:{self.port_base + 1 + number}"
        self._nodes_of = agents if agents is not None else {"agent": ()}
        self._log = (folder / "processes.log").open("ab")
        self.hub: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> HubProcess:
        try:
            self.start_hub()
            for name in self._nodes_of:
                self.start_agent(name)
            self.wait_for_agents()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """For `harch` commands that talk to this hub."""
        own = {"HARCH_HOME": str(self.home), "HARCH_PORT_BASE": str(self.port_base), "HARCH_URL": self.url}
        return {**os.environ, **own}

    @property
    def key(self) -> str:
        return (self.home / "admin.key").read_text().strip()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"X-API-Key": self.key}, timeout=30)

    def start_hub(self) -> None:
        self.hub = self._spawn("hub", "serve", self.hub_id, "--fleet", str(self.fleet))
        self._wait(lambda: httpx.get(f"{self.url}/readyz").status_code == 200)

    def start_agent(self, name: str) -> None:
        number = list(self._nodes_of).index(name)
        first = self.port_base + 1000 + number * 100
        words = ["--hub-url", self.url, "--key-file", str(self._key_file(name)), "--id", name]
        words += ["--country", self.summary()["country"], "--state-dir", str(self.home / name)]
        words += ["--gang-ports", f"{first}-{first + 99}", "--hide", str(self.home)]
        words += self._agent_options
        for path in self._share:
            words += ["--share", str(path)]
        for node in self._nodes_of[name]:
            words += ["--node", node]
        self.agents[name] = self._spawn("agent", "serve", *words)

    def _key_file(self, name: str) -> Path:
        """The first agent has the key that the hub writes; a key belongs to one agent, so others get their own."""
        if name == next(iter(self._nodes_of)):
            return self.home / self.hub_id / "agent.key"
        path = self.home / f"{name}.key"
        if not path.exists():
            with self.client() as client:
                answer = client.post("/v1/auth/keys", json={"name": name, "role": "agent", "agent_id": name})
            path.touch(0o600)
            path.write_text(answer.raise_for_status().json()["key"])
        return path

    def add_agent(self, name: str, *node_ids: str) -> None:
        """One more agent, for these nodes (all if none is named); returns when the hub has it."""
        self._nodes_of = {**self._nodes_of, name: node_ids}
        self.start_agent(name)
        self.wait_for_agents()

    def wait_for_agents(self) -> None:
        self._wait(lambda: self.summary()["agents"] == len(self.agents))

    def summary(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/v1/summary")
        answer.raise_for_status()
        return dict(answer.json())

    def event_count(self, kind: str) -> float:
        """How often this has happened since the hub started, from its metrics."""
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith("harch_events_total{") and f'kind="{kind}"' in line:
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def terminate_hub(self) -> None:
        """As an operator stops it: what is open is written first."""
        if self.hub is not None:
            self.hub.terminate()
            self.hub.wait(30)

    def kill_hub(self) -> None:
        _kill(self.hub)

    def kill_agent(self, name: str) -> None:
        _kill(self.agents[name])

    def stop(self) -> None:
        """Ends the processes and, because tasks outlive their agent, the tasks as well."""
        with contextlib.suppress(httpx.HTTPError, OSError):
            self._stop_workloads()
        for process in (*self.agents.values(), self.hub):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.agents.values(), self.hub):
            if process is not None:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    _kill(process)
        left_over = found_running(record_of(self.home / self.hub_id))  # of a hub that was killed
        if left_over is not None:
            left_over.send(signal.SIGKILL)
        self._log.close()

    def _stop_workloads(self) -> None:
        with self.client() as client:
            for _ in range(100):
                found = client.get("/v1/workloads", params={"active": "true", "per_page": 100}).json()["items"]
                if not found:
                    return
                for workload in found:
                    client.patch(f"/v1/workloads/{workload['id']}", json={"status": "cancelled"})
                time.sleep(0.1)

    def _spawn(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "harch", *words]
        return subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def _wait(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                if ready():
                    return
            time.sleep(0.05)
        raise TimeoutError(f"not ready in {READY_WITHIN_S:g} s: {(self.home / 'processes.log').read_text()[-3000:]}")


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()
