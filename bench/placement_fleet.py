"""How does a saturated fleet do under HarchOS, and under plain schedulers with the same arrivals?

Replays `gen:saturated` (14 days, 1.2 times what each hub can give) over the five shipped hubs, then measures rounds of
the real scheduler at 10,000 GPUs and 20 hubs. Decisions are the real scheduler's; times, utilisation and slowdowns are
modelled. Rounds are timed in CPU seconds of their thread, so that other work on the machine does not count. Runs alone,
or as a part of bench/placement.py. With `--kept FOLDER` each finished replay is written there, and read from there when
the benchmark is run again with the same seed and hours: a replay of 14 days takes minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harch.base.clock import SystemClock
from harch.fleet.file import shipped_fleet
from harch.fleet.model import Fleet
from harch.simulate.arrivals import ReplayWorkload
from harch.simulate.fleet import CYCLE_S, open_workload, simulate_fleet
from harch.simulate.fleet_replay import FleetReplay
from harch.simulate.policies import FleetPolicy, new_policy
from verdict import Verdict, conditions

SEED = 42
PLAIN: tuple[FleetPolicy, ...] = ("fifo", "binpack", "drf")
BLIND_HOURS = 72.0  # long enough for hundreds of gangs, and every hub is saturated by then
SPEED_HOURS = 24.0
SPEED_GPUS = 10_000
LARGE_GANG_GPUS = 64
PARTS = ("saturated", "topology", "rounds")

Result = dict[str, object]
Line = Callable[[str], None]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--hours", type=float, default=None, help="less than the 14 days of the mix: a look only")
    options.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="what to measure")
    options.add_argument("--kept", type=Path, help="folder for finished replays")
    chosen = options.parse_args()
    verdict = Verdict("placement_fleet")
    print(f"conditions: {conditions()}", flush=True)
    if "saturated" in chosen.parts:
        saturated(verdict, print, seed=chosen.seed, hours=chosen.hours, kept=chosen.kept)
    if "topology" in chosen.parts:
        topology(verdict, print, seed=chosen.seed, kept=chosen.kept)
    if "rounds" in chosen.parts:
        rounds(verdict, print, seed=chosen.seed)
    verdict.print()


class CpuClock(SystemClock):
    """Durations are CPU seconds of this thread."""

    def monotonic_s(self) -> float:
        return time.thread_time()


def saturated(
    verdict: Verdict, line: Line, *, seed: int = SEED, hours: float | None = None, kept: Path | None = None
) -> None:
    """Allocation over the saturated part, and waits, of all policies on the same arrivals."""
    fleet = shipped_fleet("five-hubs")
    workload = open_workload("gen:saturated", fleet, hours=hours, seed=seed)
    days = workload.hours / 24
    line(f"\n### Saturated: {fleet.gpu_count} GPUs, {len(workload.jobs)} jobs in {days:g} days, seed {seed}\n")
    line(
        "|policy|allocation %, saturated part|overall|inference p99 wait s|interactive|training|gangs started|"
        "stopped|lost GPU h|Jain|violations|decisions per s|p99 of a round ms (CPU)|"
    )
    line("|" + "---|" * 13)
    results = {}
    for policy in ("harch", *PLAIN):
        results[policy] = _replayed(fleet, workload, policy, seed, kept)
        line(_row(results[policy]))
    ours = results["harch"]
    for name, hub in _dict(ours["allocation_by_hub"]).items():
        since_h, percent = _dict(hub).values()
        line(f"harch at {name}: {percent} % since hour {since_h}")
    for size in _dict(ours["gang_waits_by_gpus"]):
        told = [f"{name} {_gangs(result, size)}" for name, result in results.items()]
        line(f"gangs of {size} GPUs, started of asked for and median wait: {'; '.join(told)}")
    large = [_dict(found) for size, found in _dict(ours["gang_waits_by_gpus"]).items() if int(size) >= LARGE_GANG_GPUS]
    started_pct = 100 * sum(_number(g["started"]) for g in large) / max(sum(_number(g["jobs"]) for g in large), 1)
    verdict.goal("GPU allocation, saturated part", ">= 94", _number(ours["gpu_allocation_saturated_pct"]), "%")
    verdict.goal("gangs of 64 GPUs and more that started", "> 50", started_pct, "%")
    for policy in PLAIN:
        ratio = _p99_s(ours, "inference") / max(_p99_s(results[policy], "inference"), 1e-9)
        verdict.goal(f"inference p99 wait over that of {policy}", "< 1", ratio, "times")
    violations = sum(_number(_dict(result["violations"])["total"]) for result in results.values())
    verdict.goal("violations of any rule under any policy", "== 0", violations)


def topology(verdict: Verdict, line: Line, *, seed: int = SEED, kept: Path | None = None) -> None:
    """Gangs of 8, seen and blind, on the same arrivals. Slowdowns are predicted, of communication only."""
    fleet = shipped_fleet("five-hubs")
    workload = open_workload("gen:saturated", fleet, hours=BLIND_HOURS, seed=seed)
    line(f"\n### Gangs of 8 GPUs, first {BLIND_HOURS:g} hours, seed {seed} (slowdowns are modelled)\n")
    line("|placement|starts|in one NVLink island %|predicted slowdown, mean|p99|allocation % (saturated part)|")
    line("|" + "---|" * 6)
    gangs = {}
    policies: tuple[FleetPolicy, ...] = ("harch", "blind")
    for policy in policies:
        result = _replayed(fleet, workload, policy, seed, kept)
        gangs[policy] = _dict(result["gangs_of_8"])
        line(
            f"|{policy}|"
            + "|".join(str(value) for value in gangs[policy].values())
            + f"|{result['gpu_allocation_saturated_pct']}|"
        )
    inside = [_number(gangs[policy]["in_one_island_pct"]) for policy in ("harch", "blind")]
    slow = [_number(gangs[policy]["predicted_slowdown_mean"]) for policy in ("harch", "blind")]
    verdict.goal("gangs of 8 in one island, more than blind placement", "> 0", inside[0] - inside[1], "points")
    verdict.goal("predicted slowdown of gangs of 8, blind over seen", "> 1", slow[1] / slow[0], "times")


def rounds(verdict: Verdict, line: Line, *, seed: int = SEED) -> None:
    """The real scheduler at 20 hubs: one decision is one round that may start one request."""
    from harch.placement.policy.engine import warm

    warm()
    fleet = shipped_fleet("twenty-hubs")
    workload = open_workload("gen:saturated", fleet, hours=SPEED_HOURS, seed=seed)
    tracemalloc.start()
    made = {hub.id: new_policy("harch")(hub) for hub in fleet.hubs}
    memory_mb = tracemalloc.get_traced_memory()[0] / 1e6 * SPEED_GPUS / fleet.gpu_count
    tracemalloc.stop()
    replay = FleetReplay(fleet, workload, lambda hub: made[hub.id], clock=CpuClock(), cycle_s=CYCLE_S, starts_max=1)
    replay.run()
    rounds_ms = 1000 * np.array(replay.cost.rounds_s)
    rate = replay.cost.starts / replay.cost.deciding_s
    p50_ms, p99_ms = (float(np.quantile(rounds_ms, share)) for share in (0.5, 0.99))
    size = f"{fleet.gpu_count} GPUs, {len(fleet.hubs)} hubs, {len(workload.jobs)} jobs"
    line(f"\n### Rounds of the scheduler: {size} in {SPEED_HOURS:g} hours, seed {seed}\n")
    line(
        f"{rate:,.0f} decisions per CPU second with queue, learning and departures; one round that starts at most one "
        f"request: p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms, slowest {rounds_ms.max():.1f} ms (CPU); an empty scheduler"
        f" per 10,000 GPUs: {memory_mb:.1f} MB"
    )
    verdict.goal("p99 of one decision, 10,000 GPUs in 20 hubs, CPU", "< 5", p99_ms, "ms")
    verdict.goal("violations at 20 hubs", "== 0", replay.violations.total())


def _replayed(fleet: Fleet, workload: ReplayWorkload, policy: FleetPolicy, seed: int, kept: Path | None) -> Result:
    """From the folder, or replayed and written there; progress goes to stderr, one line per simulated day."""
    file = kept / f"{policy}-{seed}-{workload.hours:g}h.json" if kept is not None else None
    if file is not None and file.is_file():
        return _dict(json.loads(file.read_text()))
    days_told = 0.0

    def tell(now_s: float, end_s: float) -> None:
        nonlocal days_told
        if now_s / 86_400 >= days_told + 1:
            days_told = now_s // 86_400
            print(f"{policy}: day {days_told:.0f} of {end_s / 86_400:g}", file=sys.stderr, flush=True)

    result = simulate_fleet(fleet, workload, policy=policy, seed=seed, clock=CpuClock(), progress=tell)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result))
    return result


def _row(result: Result) -> str:
    waits = [_wait(result, turn_class) for turn_class in ("inference", "interactive", "training")]
    gangs = [_dict(size) for size in _dict(result["gang_waits_by_gpus"]).values()]
    cells = [
        result["policy"],
        result["gpu_allocation_saturated_pct"],
        result["gpu_allocation_pct"],
        *waits,
        f"{sum(int(_number(g['started'])) for g in gangs)} of {sum(int(_number(g['jobs'])) for g in gangs)}",
        result["preemptions"],
        result["lost_gpu_hours"],
        result["fairness_jain"],
        _dict(result["violations"])["total"],
        result["decisions_per_s"],
        result["round_ms_p99"],
    ]
    return "|" + "|".join(str(cell) for cell in cells) + "|"


def _wait(result: Result, turn_class: str) -> str:
    found = _dict(_dict(result["waits"])[turn_class])
    return f"{'>= ' if found['p99_is_lower_bound'] else ''}{found['p99_s']}"


def _p99_s(result: Result, turn_class: str) -> float:
    return _number(_dict(_dict(result["waits"])[turn_class])["p99_s"])


def _gangs(result: Result, size: str) -> str:
    found = _dict(_dict(result["gang_waits_by_gpus"])[size])
    return f"{found['started']} of {found['jobs']}, {_number(found['p50_s']) / 3600:.1f} h"


def _dict(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


if __name__ == "__main__":
    main()
