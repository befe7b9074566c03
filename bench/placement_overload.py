"""Does a replay slow down faster than its queue grows? Twice the work that a hub can do, and then twice as long.

Writes traces in the shape of a shared training cluster (many tenants, mostly single GPUs, few long gangs, no two jobs
alike) and a fleet of one hub with 336 GPUs, and replays both with `harch simulate fleet`, as a user would.
"""

from __future__ import annotations

import csv
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harch.testing.fleet_generator import generate_blueprint
from harch.testing.fleet_writer import to_toml
from verdict import Verdict, conditions

GPUS = 336
OVERLOAD = 2.0
JOBS = 8000
WARMING_JOBS = 100  # kernels are compiled once
TENANTS = 14
SHAPES = (((1, 1), 70), ((1, 2), 8), ((1, 4), 10), ((1, 8), 9), ((2, 8), 1.5), ((4, 8), 1), ((8, 8), 0.5))
COLUMNS = ("arrival_s", "duration_s", "gpus", "tenant", "tasks", "cpus", "memory_gb", "duration_s_max")
DAY_S = 86400.0


def overload(verdict: Verdict, line: Callable[[str], None]) -> None:
    line(f"\n### Overload: one hub of {GPUS} GPUs, {OVERLOAD:g} times what it can do\n")
    line("|jobs|CPU s|started|allocation %, saturated part|p99 of a round ms|\n|---|---|---|---|---|")
    took_s = []
    with tempfile.TemporaryDirectory(prefix="harch-overload-") as name:
        folder = Path(name)
        fleet = folder / "fleet.toml"
        fleet.write_text(to_toml(generate_blueprint(hub_count=1, gpu_count=GPUS, name="overload")))
        trace = folder / "trace.csv"
        write_trace(trace, WARMING_JOBS)
        replay(fleet, trace)
        for jobs in (JOBS, 2 * JOBS):
            write_trace(trace, jobs)
            spent_s, found = replay(fleet, trace)
            took_s.append(spent_s)
            line(
                f"|{jobs}|{spent_s:.1f}|{found['jobs_started']}|{found['gpu_allocation_saturated_pct']}|"
                f"{found['round_ms_p99']}|"
            )
    verdict.goal("CPU time of a replay of twice the jobs, at twice the load", "<= 2.3", took_s[1] / took_s[0], "x")


def replay(fleet: Path, trace: Path) -> tuple[float, dict[str, object]]:
    """CPU seconds, and the answer."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(Path(sys.executable).with_name("harch")), "simulate", "fleet", "--json"]
    done = subprocess.run(
        [*command, "--fleet", str(fleet), "--workload", str(trace)], check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(done.stdout)


def write_trace(path: Path, jobs: int, seed: int = 1) -> None:
    draw = random.Random(seed)
    tenants = [f"tenant-{number}" for number in range(TENANTS)]
    crowds = [1 / (1 + number) for number in range(TENANTS)]
    rows: list[list[object]] = []
    gpu_s = 0.0
    for _ in range(jobs):
        ((tasks, gpus),) = draw.choices([shape for shape, _ in SHAPES], [weight for _, weight in SHAPES])
        duration_s = round(min(max(draw.lognormvariate(7.2, 1.9), 30.0), 7 * DAY_S), 1)
        gpu_s += tasks * gpus * duration_s
        cpus, memory_gb = gpus * draw.choice([2, 4, 6, 8]), gpus * draw.choice([16, 24, 32, 64])
        promised_s = round(duration_s * draw.choice([1.2, 2, 5]))
        rows.append([duration_s, gpus, *draw.choices(tenants, crowds), tasks, cpus, memory_gb, promised_s])
    span_s = gpu_s / (GPUS * OVERLOAD)
    arrivals_s = sorted(round(draw.random() * span_s, 1) for _ in rows)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([at_s, *row] for at_s, row in zip(arrivals_s, rows, strict=True))


if __name__ == "__main__":
    own = Verdict("placement_overload")
    print(f"conditions: {conditions()}", flush=True)
    overload(own, print)
    own.print()
