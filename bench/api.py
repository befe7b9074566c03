"""How many jobs does one hub accept durably and place per second, and how soon does a real process run?

One hub owns 10,000 modelled GPUs. 64 connections send one authenticated POST per job for 30 s; the load generator, the
hub and the agent share the machine's cores. A job counts when it is placed; it was answered only once it was on disk.

Machines differ, and one machine differs from hour to hour. So the rate is also compared with that of an earlier
revision: rounds of both in turns, each with a fresh hub that has settled.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import uvloop

from harch.hub.jobs.effects import Record
from harch.hub.store import rows
from harch.hub.store.committer import Committer
from harch.hub.store.database import Database
from harch.testing.fleet_generator import generate_blueprint
from harch.testing.fleet_writer import to_toml
from harch.testing.hub_process import HubProcess
from harch.wire.events import EventRecord
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec
from verdict import Verdict, conditions

GPUS = 10_000
LOCAL_JOBS = 60
AGAINST = "f903d02"  # the revision whose rate was published first
RATIO_MIN = 1.3
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}  # Student, by rounds less one


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--connections", type=int, default=64)
    options.add_argument("--folder", type=Path, default=None, help="a folder on the disk to measure")
    options.add_argument("--against", default=AGAINST, metavar="REV", help="a git revision to compare the rate with")
    options.add_argument("--rounds", type=int, default=5, help="rounds of each revision, in turns")
    options.add_argument("--round-seconds", type=float, default=8)
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
    with tempfile.TemporaryDirectory(prefix="harch-bench-") as name:
        name_of_goal, wanted = f"submissions vs {chosen.against}", f">= {RATIO_MIN}"
        earlier = source_of(chosen.against, Path(name))
        if earlier is None:
            print(f"{chosen.against} is not in this repository (a shallow clone?): nothing to compare with")
            verdict.not_measured(name_of_goal, wanted, "x")
        else:
            ratio = compare(earlier, chosen, commits)
            verdict.goal(name_of_goal, wanted, ratio, "x")
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


def source_of(revision: str, folder: Path) -> Path | None:
    """Its `src`, unpacked into the folder; None if the repository does not have it."""
    words = ["git", "-C", str(Path(__file__).parent.parent), "archive", "--format=tar", revision, "src"]
    try:
        packed = subprocess.run(words, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def compare(earlier: Path, chosen: argparse.Namespace, commits: float) -> float:
    """How many times as many jobs this source accepts as the earlier one: the mean ratio of rounds side by side."""
    sources = {chosen.against: earlier, "this": Path(__file__).parent.parent / "src"}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    for number in range(chosen.rounds):
        for name in (*sources,) if number % 2 == 0 else (*reversed(sources),):
            found[name].append(one_round(sources[name], chosen))
    for name, rounds in found.items():
        rate, cpu_us, p99_ms = (
            statistics.median(found[key] for found in rounds) for key in ("accepted_per_s", "hub_cpu_us", "p99_ms")
        )
        print(
            f"{name}: {rate:,.0f} jobs/s accepted ({rate / commits:.0%} of the store alone), p99 {p99_ms:.0f} ms, "
            f"{cpu_us:.0f} us of the hub's CPU each (medians of {len(rounds)} rounds)"
        )
    for what, key, sign in (("accepted", "accepted_per_s", 1), ("CPU of the hub", "hub_cpu_us", -1)):
        pairs = zip(found["this"], found[chosen.against], strict=True)
        ratio, low, high = mean_ratio([(new[key] / old[key]) ** sign for new, old in pairs])
        print(f"{what}: {ratio:.2f} times as good as {chosen.against} (95 %: {low:.2f} to {high:.2f})")
        if key == "accepted_per_s":
            accepted = ratio
    return accepted


def one_round(source: Path, chosen: argparse.Namespace) -> dict[str, float]:
    words = [sys.executable, str(Path(__file__).with_name("api_round.py")), str(chosen.connections)]
    words += [str(chosen.round_seconds), *([str(chosen.folder)] if chosen.folder else [])]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    found: dict[str, float] = json.loads(output)
    return found


def mean_ratio(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean with its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return math.exp(mean), 0.0, math.inf
    spread = T_95.get(len(logs) - 1, 2.2) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - spread), math.exp(mean + spread)


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
