"""One hub and its agent as real processes, for benchmarks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

PORT_BASE = 17700


@dataclass(frozen=True)
class OneHub:
    """Where it listens, and the admin's key."""

    url: str
    port: int
    key: str
    home: Path
    hub_pid: int
    agent_pid: int

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers={"X-API-Key": self.key}, timeout=30)

    def events(self, kind: str) -> float:
        """How often this has happened, from the hub's own metrics."""
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith("harch_events_total{") and f'kind="{kind}"' in line:
                return float(line.rsplit(" ", 1)[1])
        return 0.0


@contextlib.contextmanager
def one_hub(fleet_toml: str, hub_id: str, folder: Path | None = None) -> Iterator[OneHub]:
    """Started, ready, with its agent connected; stopped at the end."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="harch-bench-") as name:
        home = Path(name)
        fleet = home / "fleet.toml"
        fleet.write_text(fleet_toml)
        environment = {**os.environ, "HARCH_HOME": str(home), "HARCH_PORT_BASE": str(PORT_BASE)}
        url = f"http://127.0.0.1:{PORT_BASE + 1}"
        harch = [sys.executable, "-m", "harch"]
        log = (home / "log").open("wb")
        hub = subprocess.Popen([*harch, "hub", "serve", hub_id, "--fleet", str(fleet)], env=environment, stderr=log)
        agent = None
        try:
            _wait(lambda: httpx.get(f"{url}/readyz").status_code == 200, home)
            country = httpx.get(f"{url}/v1/summary").json()["country"]
            words = ["agent", "serve", "--hub-url", url, "--key-file", str(home / hub_id / "agent.key")]
            words += ["--id", "bench", "--country", country, "--state-dir", str(home / "agent"), "--stop-tasks-on-exit"]
            agent = subprocess.Popen([*harch, *words], env=environment, stderr=log)
            _wait(lambda: httpx.get(f"{url}/v1/summary").json()["agents"] == 1, home)
            key = (home / "admin.key").read_text().strip()
            yield OneHub(url, PORT_BASE + 1, key, home, hub.pid, agent.pid)
        finally:
            for process in (agent, hub):
                if process is not None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(30)
            log.close()


def _wait(ready: object, home: Path) -> None:
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            if ready():  # type: ignore[operator]
                return
        time.sleep(0.05)
    raise SystemExit(f"not ready in 30 s; its log: {(home / 'log').read_text()[-2000:]}")
