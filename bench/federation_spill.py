"""How soon does work of a full hub run at a peer, and how much of it passes one link per second?

Two hubs behind one emulated link: Tangier, whose four GPUs are taken, and Dakhla, which has plenty. Work runs no
process (`modelled_duration_s`), so what is measured is the hand-over: ask, bid, commit, grant, commit, start, report.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from federation_wan import JITTER_MS, LOSS
from harch.testing.wan import Wan
from harch.testing.wan_federation import WanFederation

RTT_MS = 35.0
_HUB = """
[[hubs]]
name = "{name}"
country = "MA"
grid_zone = "MA"
latitude = 30.0
longitude = -10.0
pue = 1.2

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 100000

[[hubs.racks]]
count = {racks}
row = "A"
cooling_zone = "hall-1"
power_kw_max = 100
nodes = [{{ kind = "h100-4", count = {nodes} }}]
"""
FLEET = """
name = "two"

[gpu_models.h100-80gb]
memory_gb = 80
power_w = 700
nvlink_gb_per_s = 900
pcie_gb_per_s = 128

[node_kinds.h100-4]
gpu_model = "h100-80gb"
gpus = 4
nvlink_island_size = 4
pcie_switch_size = 2
numa_nodes = 2
cpus = 64
memory_gb = 2048
storage_gb = 8000
host_power_w = 1200
"""
FLEET += _HUB.format(name="Tangier", racks=1, nodes=1) + _HUB.format(name="Dakhla", racks=100, nodes=8)
FLEET += """
[[links]]
between = ["Tangier", "Dakhla"]
rtt_ms = 35
bandwidth_gbps = 100
countries_crossed = ["MA"]
"""


@dataclass(frozen=True, slots=True)
class SpillFigures:
    waits_ms: tuple[float, ...]  # from the POST at the full hub until it shows `running`, sorted
    lent_per_s: float
    accepted_per_s: float

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.waits_ms)

    @property
    def p99_ms(self) -> float:
        return self.waits_ms[int(len(self.waits_ms) * 0.99)]


def measure_spill(*, jobs: int = 100, seconds: float = 20.0, connections: int = 32) -> SpillFigures:
    with tempfile.TemporaryDirectory(prefix="harch-bench-") as name:
        folder = Path(name)
        (folder / "fleet.toml").write_text(FLEET)
        with (
            Wan(["tangier", "dakhla"], rtt_ms=RTT_MS, jitter_ms=JITTER_MS, loss=LOSS) as wan,
            WanFederation(wan, str(folder / "fleet.toml"), folder) as federation,
        ):
            with federation.client("tangier") as client:
                body = {"name": "fill", "modelled_duration_s": 36_000, "resources": {"gpus": 4}, "stay_home": True}
                client.post("/v1/workloads", json=body).raise_for_status()
                federation.wait(lambda: federation.summary("tangier")["gpus_free"] == 0)
                waits = _waits(federation, client, jobs)
            lent, accepted = _throughput(federation, wan, connections, seconds)
            return SpillFigures(tuple(sorted(waits)), lent, accepted)


def _waits(federation: WanFederation, client: httpx.Client, jobs: int) -> list[float]:
    waits = []
    url, headers = federation.url("tangier"), {"X-API-Key": federation.key}
    stream_client = httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)
    with stream_client, stream_client.stream("GET", "/v1/events", params={"kind": "workload.running"}) as stream:
        lines = stream.iter_lines()
        for number in range(jobs):
            began_s = time.perf_counter()
            body = {"name": f"away-{number}", "modelled_duration_s": 1, "resources": {"gpus": 1}}
            answer = client.post("/v1/workloads", json=body)
            answer.raise_for_status()
            job = answer.json()["id"]
            for line in lines:
                if line.startswith("data:") and job in line:
                    break
            waits.append((time.perf_counter() - began_s) * 1000)
    return waits


def _throughput(federation: WanFederation, wan: Wan, connections: int, seconds: float) -> tuple[float, float]:
    """Taken by the peer per second while the load lasts, and accepted by the full hub."""
    before, began_s = _borrowed(federation), time.perf_counter()
    generator = str(Path(__file__).with_name("http_load.py"))
    words = [generator, str(federation.port("tangier")), federation.key, str(connections), str(seconds)]
    process = wan.popen("tangier", [sys.executable, *words], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=seconds + 60)
    elapsed_s = time.perf_counter() - began_s
    load = json.loads(output)
    return (_borrowed(federation) - before) / elapsed_s, load["accepted"] / load["elapsed_s"]


def _borrowed(federation: WanFederation) -> float:
    """How much work Dakhla has taken from others, from its metrics."""
    with federation.client("dakhla") as client:
        text = client.get("/metrics").text
    for line in text.splitlines():
        if line.startswith("harch_events_total{") and 'kind="workload.borrowed"' in line:
            return float(line.rsplit(" ", 1)[1])
    return 0.0


if __name__ == "__main__":
    print(measure_spill())
