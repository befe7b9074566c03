"""How would a fleet do with this work under that policy? The function behind `harch simulate fleet`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.fleet.model import Fleet
from harch.simulate.arrivals import ReplayWorkload
from harch.simulate.fleet_replay import FleetReplay, Progress
from harch.simulate.policies import FleetPolicy, new_policy

GENERATED = "gen:"
CYCLE_S = 10.0  # rounds of one hub are at least so far apart; every policy has the same
HOURS_MAX = 366 * 24.0


def open_workload(source: str, fleet: Fleet, *, hours: float | None, seed: int) -> ReplayWorkload:
    """`gen:` and a mix (shipped or a file), or the path of a trace."""
    if hours is not None and not 0 < hours <= HOURS_MAX:
        raise HarchError("E0201", f"hours must be above 0 and at most {HOURS_MAX:g}", field="hours")
    if source.startswith(GENERATED):
        from harch.simulate.workload_mix import generate, load_mix

        return generate(fleet, load_mix(source.removeprefix(GENERATED)), hours=hours, seed=seed)
    from harch.simulate.arrivals import read_trace

    return read_trace(Path(source), fleet, hours=hours)


def simulate_fleet(
    fleet: Fleet,
    workload: ReplayWorkload,
    *,
    policy: FleetPolicy = "harch",
    seed: int = 42,
    cycle_s: float = CYCLE_S,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> dict[str, object]:
    """Replays the workload; answers what `--json` prints. Equal arguments give equal figures, but for the speed."""
    replay = replay_fleet(fleet, workload, policy=policy, cycle_s=cycle_s, clock=clock, progress=progress)
    return report(fleet, workload, replay, policy=policy, seed=seed)


def replay_fleet(
    fleet: Fleet,
    workload: ReplayWorkload,
    *,
    policy: FleetPolicy = "harch",
    cycle_s: float = CYCLE_S,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> FleetReplay:
    if policy in ("harch", "blind"):
        from harch.placement.policy.engine import warm

        warm()
    replay = FleetReplay(
        fleet, workload, new_policy(policy), clock=clock or SystemClock(), cycle_s=cycle_s, progress=progress
    )
    replay.run()
    return replay


def report(fleet: Fleet, workload: ReplayWorkload, replay: FleetReplay, *, policy: str, seed: int) -> dict[str, object]:
    """All figures of a finished replay, with the words that belong to them."""
    tally, cost, violations = replay.tally, replay.cost, replay.violations
    offered_gpu_s = sum(job.gpu_seconds for job in workload.jobs)
    rounds_ms = 1000 * np.array(cost.rounds_s or [0.0])
    jain = tally.fairness_jain()
    return {
        "policy": policy,
        "fleet": fleet.name,
        "workload": workload.name,
        "seed": seed,
        "hours": workload.hours,
        "hubs": len(fleet.hubs),
        "gpus": fleet.gpu_count,
        "jobs": len(workload.jobs),
        "jobs_started": len(tally.waits_s),
        "offered_load": round(offered_gpu_s / (fleet.gpu_count * workload.hours * 3600), 4),
        "gpu_allocation_pct": round(tally.allocation_pct(), 3),
        "gpu_allocation_saturated_pct": _rounded(tally.allocation_saturated_pct()),
        "allocation_by_hub": {
            name: {
                "saturated_from_h": _rounded(None if hub.saturated_from_s is None else hub.saturated_from_s / 3600),
                "gpu_allocation_saturated_pct": _rounded(tally.allocation_saturated_pct([name])),
            }
            for name, hub in tally.hubs.items()
        },
        "gpu_utilisation_modelled_pct": round(tally.utilisation_pct(), 3),
        "waits": tally.waits(),
        "gang_waits_by_gpus": tally.gang_waits(),
        "gangs": tally.gangs_of(),
        "gangs_of_8": tally.gangs_of(8),
        "gangs_degraded": tally.degraded,
        "preemptions": tally.preemptions,
        "restarts": tally.restarts,
        "lost_gpu_hours": round(tally.lost_gpu_s / 3600, 2),
        "spilled_over_modelled": tally.spilled,
        "fairness_jain": _rounded(jain),
        "violations": {"total": violations.total(), **dict(violations)},
        "decisions": cost.starts,
        "decisions_per_s": round(cost.starts / max(cost.deciding_s, 1e-9), 1),
        "round_ms_p99": round(float(np.quantile(rounds_ms, 0.99)), 3),
        "placements_digest": replay.digest,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
