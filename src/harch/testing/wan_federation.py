"""A whole federation as real processes on an emulated WAN: each hub and its agent in a namespace of its own.

with Wan.of_fleet(fleet, loss=0.01) as wan, WanFederation(wan, "five-hubs", folder) as federation:
    with federation.client("dakhla") as dakhla:
        dakhla.post("/v1/workloads", json={...})
    federation.kill_hub("dakar")
"""

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
from typing import Any, Self

import httpx

from harch.base.clock import SystemClock
from harch.base.config import Home, Ports
from harch.cli.local_federation import safeguard_options
from harch.cli.process import open_fleet
from harch.federation.identity.authority import make_federation
from harch.testing.wan import Wan

READY_WITHIN_S = 60.0
PEER_PORT = 7721
API_PORT_BASE = 7700


class WanFederation:
    """All hubs of a fleet (a shipped one, or the path of a file). `hub_options` go to every `harch hub serve`."""

    def __init__(self, wan: Wan, fleet: str, folder: Path, *, hub_options: tuple[str, ...] = ()) -> None:
        self.wan, self.home = wan, folder
        self._fleet_argument, self._fleet = fleet, open_fleet(fleet)
        self._hub_options = hub_options
        self._ports = Ports(API_PORT_BASE)
        self._log = (folder / "processes.log").open("ab")
        self.hubs: dict[str, subprocess.Popen[Any]] = {}
        self.agents: dict[str, subprocess.Popen[Any]] = {}

    def __enter__(self) -> Self:
        addresses = {name: (self.wan.address(name), PEER_PORT) for name in self.wan.names}
        make_federation(Home(self.home), addresses, now=SystemClock().now())
        try:
            for name in self.wan.names:
                self.start_hub(name)
            for name in self.wan.names:
                self.wait(lambda name=name: self._get(name, "/readyz").status_code == 200)  # type: ignore[misc]
                self.start_agent(name)
            for name in self.wan.names:
                self.wait(lambda name=name: self.summary(name)["agents"] == 1)  # type: ignore[misc]
            for name in self.wan.names:
                self.wait(lambda name=name: self.sees_all(name))  # type: ignore[misc]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Processes

    def start_hub(self, name: str) -> None:
        words = ["hub", "serve", name, "--fleet", self._fleet_argument, *self._hub_options]
        self.hubs[name] = self._spawn(name, *words)

    def start_agent(self, name: str) -> None:
        (hub,) = (hub for hub in self._fleet.hubs if hub.id == name)
        folder = self.home / name
        words = ["--hub-url", f"http://127.0.0.1:{self.port(name)}", "--key-file", str(folder / "agent.key")]
        words += ["--id", f"{name}-agent", "--country", hub.country, "--state-dir", str(folder / "agent")]
        words += ["--gang-ports", "9000-9099", "--hide", str(self.home), *safeguard_options(hub.safeguards)]
        self.agents[name] = self._spawn(name, "agent", "serve", *words)

    def kill_hub(self, name: str) -> None:
        self.hubs[name].send_signal(signal.SIGKILL)
        self.hubs[name].wait()

    def stop(self) -> None:
        """Ends all processes; what still runs inside ends with the WAN."""
        for process in (*self.agents.values(), *self.hubs.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.agents.values(), *self.hubs.values()):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()

    # Asking

    def port(self, name: str) -> int:
        return self._ports.api([hub.id for hub in self._fleet.hubs].index(name))

    def url(self, name: str) -> str:
        """From outside of the namespaces."""
        return f"http://127.0.0.1:{self.wan.expose(name, self.port(name))}"

    @property
    def key(self) -> str:
        return (self.home / "admin.key").read_text().strip()

    def client(self, name: str) -> httpx.Client:
        return httpx.Client(base_url=self.url(name), headers={"X-API-Key": self.key}, timeout=30, trust_env=False)

    def summary(self, name: str) -> dict[str, Any]:
        answer = self._get(name, "/v1/summary")
        answer.raise_for_status()
        return dict(answer.json())

    def sees_all(self, name: str) -> bool:
        """Whether the hub reaches every other one."""
        with self.client(name) as client:
            found = client.get("/v1/hubs").json()["items"]
        return len(found) == len(self.wan.names) and all(hub["reachable"] for hub in found)

    def harch(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the CLI against one hub, from outside."""
        environment = {**self._environment, "HARCH_URL": self.url(name)}
        command = [sys.executable, "-m", "harch", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def wait(self, ready: Callable[[], bool], within_s: float = READY_WITHIN_S) -> None:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                if ready():
                    return
            time.sleep(0.05)
        log = (self.home / "processes.log").read_text()[-3000:]
        raise TimeoutError(f"waited {within_s:g} s without success: {log}")

    def _get(self, name: str, path: str) -> httpx.Response:
        return httpx.get(f"{self.url(name)}{path}", timeout=10, trust_env=False)

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HARCH_HOME": str(self.home), "HARCH_PORT_BASE": str(API_PORT_BASE)}

    def _spawn(self, name: str, *words: str) -> subprocess.Popen[Any]:
        return self.wan.popen(
            name,
            [sys.executable, "-m", "harch", *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
