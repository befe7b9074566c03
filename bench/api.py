"""How many jobs does one hub accept durably and place per second, and how soon does a real process run?

One hub owns 10,000 modelled GPUs. 64 connections send one authenticated POST per job for 30 s; the load generator, the
hub and the agent share the machine's cores. A job counts when it is placed; it was answered only once it was on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import uvloop

from harch.fleet.generate import generate_blueprint
from harch.fleet.writer import to_toml
from harch.hub.happenings import Record
from harch.hub.store import rows
from harch.hub.store.committer import Committer
from harch.hub.store.database import Database
from harch.hub.views import EventRecord
from harch.testing.hub_process import HubProcess
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec
from verdict import Verdict, conditions

GPUS = 10_000
LOCAL_JOBS = 60


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--connections", type=int, default=64)
    options.add_argument("--folder", type=Path, default=None, help="a folder on the disk to measure")
    chosen = options.parse_args()
    verdict = Verdict("api")
    print(f"conditions: {conditions()}; hub, agent and load generator on the same machine")
    commits = uvloop.run(group_commit_rate(chosen.folder, chosen.connections))
    print(
        f"the store alone: {commits:,.0f} jobs/s (one upsert and one event each, {chosen.connections} waiting callers)"
    )
    blueprint = generate_blueprint(hub_count=1, gpu_count=GPUS)
    hub_id = blueprint.hubs[0].name.lower()
    with (
        tempfile.TemporaryDirectory(dir=chosen.folder, prefix="harch-bench-") as name,
        HubProcess(to_toml(blueprint), hub_id, Path(name)) as hub,
    ):
        placed, load = throughput(hub, chosen.connections, chosen.seconds)
        print(
            f"accepted {load['accepted']:,} jobs in {load['elapsed_s']:.1f} s; POST p50 {load['p50_ms']:.1f} ms, "
            f"p99 {load['p99_ms']:.1f} ms; placed {placed:,.0f}/s"
        )
        if load["refused"]:
            print(f"refused: {load['refused'][:3]}")
        waits = local_starts(hub)
        print(
            f"submit -> running, real processes, one at a time: p50 {waits[len(waits) // 2]:.0f} ms, "
            f"p99 {waits[int(len(waits) * 0.99)]:.0f} ms ({len(waits)} jobs)"
        )
    verdict.goal("jobs accepted durably and placed per second", "> 1500", placed, "jobs/s")
    verdict.print()


async def group_commit_rate(folder: Path | None, callers: int, seconds: float = 3.0) -> float:
    """What the store does when nothing else runs: the ceiling of the figure above."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        database = Database(Path(name) / "hub.db")
        committer = Committer(database, on_failure=lambda error: sys.exit(str(error)))
        done = 0
        until = time.perf_counter() + seconds

        async def caller(number: int) -> None:
            nonlocal done
            while time.perf_counter() < until:
                done += 1
                workload = Workload(
                    id=f"wl_{number}_{done}",
                    tenant="t",
                    owner_hub="h",
                    spec=WorkloadSpec(name=f"j{done}"),
                    created_at=now,
                    updated_at=now,
                )
                record = Record("workload.submitted", workload.id, "t", "submitted")
                event = EventRecord(seq=done, at=now, kind=record.kind, subject=record.subject, tenant="t", message="")
                await committer.submit([rows.save_workload(workload), rows.save_event(event)])

        start = time.perf_counter()
        await asyncio.gather(*(caller(number) for number in range(callers)))
        elapsed_s = time.perf_counter() - start
        await committer.close()
        database.close()
    return done / elapsed_s


def throughput(hub: HubProcess, connections: int, seconds: float) -> tuple[float, dict[str, object]]:
    """Jobs placed per second while the load lasted, and what the generator saw."""
    before, start = hub.event_count("workload.scheduled"), time.perf_counter()
    words = [sys.executable, str(Path(__file__).with_name("http_load.py")), str(hub.port_base + 1), hub.key]
    output = subprocess.run([*words, str(connections), str(seconds)], check=True, capture_output=True, text=True).stdout
    placed = hub.event_count("workload.scheduled") - before
    return placed / (time.perf_counter() - start), json.loads(output)


def local_starts(hub: HubProcess) -> list[float]:
    """Milliseconds from sending the POST until a client sees `running` on the event stream."""
    headers = {"X-API-Key": hub.key}
    waits = []
    with httpx.Client(base_url=hub.url, headers=headers, timeout=30) as client:
        while client.get("/v1/summary").json()["workloads"]:
            time.sleep(0.5)  # the modelled jobs of the load must have ended
        with client.stream("GET", "/v1/events", params={"kind": "workload.running"}) as stream:
            lines = stream.iter_lines()
            for number in range(LOCAL_JOBS):
                start = time.perf_counter()
                body = {"name": f"local-{number}", "command": ["true"], "resources": {"gpus": 1}}
                job = httpx.post(f"{hub.url}/v1/workloads", json=body, headers=headers).json()["id"]
                for line in lines:
                    if line.startswith("data:") and job in line:
                        break
                waits.append((time.perf_counter() - start) * 1000)
    return sorted(waits)


if __name__ == "__main__":
    main()
