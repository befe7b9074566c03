"""Two hubs with agents and SENTINELs as real processes: one trace over all of them, each part kept at its hub."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harch.base.tracing.spans import TraceContext
from harch.testing.ports import free_port_base
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = [pytest.mark.uses("bubblewrap"), pytest.mark.timeout(240)]  # kernels may have to be compiled first
PATIENCE_S = 120.0
CALLER = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))
TRACE = CALLER.trace_id.hex()
NOBODY = {"stay_home": True, "modelled_duration_s": 3600, "resources": {"gpus": 8}}


class TwoHubs:
    """`harch up` with telemetry, in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.base = home, free_port_base()
        fleet = home / "fleet.toml"
        fleet.write_text(TINY_FLEET_TOML)
        environment = {**os.environ, "HARCH_HOME": str(home), "HARCH_PORT_BASE": str(self.base), "HARCH_SENTINEL": ""}
        command = [sys.executable, "-m", "harch", "up", "--fleet", str(fleet), "--json"]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()
        self._key = (home / "admin.key").read_text().strip()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0

    def client(self, offset: int) -> httpx.Client:
        """1 and 2 are the hubs' APIs, 11 and 12 their SENTINELs."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.base + offset}", headers={"X-API-Key": self._key}, timeout=30
        )

    def log(self, name: str) -> str:
        return (self.home / name).read_text()


@pytest.fixture
def hubs(tmp_path: Path) -> Iterator[TwoHubs]:
    running = TwoHubs(tmp_path)
    try:
        yield running
    finally:
        running.stop()


def until(look: Callable[[], Any], what: str) -> Any:
    ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        try:
            if found := look():
                return found
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(what)


def test_work_that_another_hub_runs_is_one_trace_in_two_stores_and_in_the_logs(hubs: TwoHubs) -> None:
    with hubs.client(1) as dakhla, hubs.client(11) as here, hubs.client(12) as there:
        for number in range(4):
            body = {"name": f"full-{number}", **NOBODY}
            assert dakhla.post("/v1/workloads", json=body).status_code == 201
        until(lambda: dakhla.get("/v1/summary").json()["workloads"].get("running") == 4, "Dakhla is full")
        command = ["sh", "-c", "echo traced=$TRACEPARENT"]
        job = {"name": "guest", "command": command, "resources": {"gpus": 8}, "env": {"TOKEN": "hunter2"}}
        submitted = dakhla.post("/v1/workloads", json=job, headers={"traceparent": CALLER.header}).json()

        def row() -> dict[str, Any]:
            found: dict[str, Any] = dakhla.get(f"/v1/workloads/{submitted['id']}").json()
            return found

        until(lambda: row()["status"] == "completed", "it is run by Dakar")
        assert row()["runner_hub"] == "dakar"
        owner = until(lambda: spans(here, {"workload", "workload.lease"}), "Dakhla's SENTINEL has its part")
        runner = until(lambda: spans(there, {"task.run", "workload.run"}), "Dakar's SENTINEL has its part")
        told = dakhla.get(f"/v1/workloads/{submitted['id']}/logs").text
    assert {"POST /v1/workloads", "workload.admit", "workload.wait", "workload.offer"} <= owner
    assert {"workload.bid", "workload.place", "workload.start", "task.start"} <= runner
    assert not {"workload.run", "task.run"} & owner
    assert f"traced=00-{TRACE}-" in told
    for name in ("dakhla/hub.log", "dakar/hub.log", "dakar/agent.log"):
        assert f"[trace {TRACE}]" in hubs.log(name), name


def spans(sentinel: httpx.Client, wanted: set[str]) -> set[str]:
    """Names of the trace's spans, once those that are wanted are among them."""
    answer = sentinel.get(f"/harchos/api/v1/traces/{TRACE}/otlp")
    assert "hunter2" not in answer.text
    if answer.status_code != 200:
        return set()
    parts = answer.json()["data"]["resourceSpans"]
    found = {span["name"] for part in parts for scope in part["scopeSpans"] for span in scope["spans"]}
    return found if wanted <= found else set()
