"""How low could anybody get? Emissions of the same work if it were divisible, moved freely, and the future were known.

A linear program over all hours of a week: work of each set of allowed hubs and GPU model runs anywhere and anytime
between its arrival and its last moment, in any portions. No policy with gangs, restarts and forecasts can reach it; it
says which goals physics rules out.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from harch.carbon.planning.linear import SparseProgram, solve
from harch.carbon.planning.outlook import Floats
from harch.fleet.model import Fleet
from harch.simulate.carbon import Period
from harch.simulate.carbon_routers import pools_of
from harch.simulate.carbon_weather import hourly_from

TAIL_DAYS = 3  # what came at the end has time to run
LATE_G_PER_GPU_HOUR = 1e5  # where not even divisible work fits, being late is told apart from emissions


def least_g_and_kwh(fleet: Fleet, period: Period, days: int) -> tuple[float, float]:
    """Grams and kWh at the meter of the best plan of one period."""
    hours = (days + TAIL_DAYS) * 24
    hubs, pools = [hub.id for hub in fleet.hubs], {pool.key: pool for pool in pools_of(fleet)}
    plants = [period.plants[hub] for hub in hubs]
    onsite_kw = np.array([hourly_from(one.onsite_kw, one.step(0.0), hours) for one in plants])
    grid_g = np.array([np.full(hours, one.grid_g_per_kwh[one.step(0.0)]) for one in plants])
    onsite_g = np.broadcast_to(np.array([[one.onsite_g_per_kwh] for one in plants]), grid_g.shape)
    program, nothing = SparseProgram(), np.zeros_like(grid_g)
    grid = program.add_columns(grid_g, nothing, np.full_like(grid_g, np.inf))
    own = program.add_columns(onsite_g, nothing, onsite_kw)
    power = program.add_rows(nothing, nothing)
    program.enter(power, grid, 1.0)
    program.enter(power, own, 1.0)
    none, endless = np.zeros(hours), np.full(hours, np.inf)
    room = {key: program.add_rows(-endless, np.full(hours, float(pool.gpus))) for key, pool in pools.items()}
    for (allowed, model, _), (available, due) in _asked(period, hours).items():
        done = program.add_columns(none, none, available)
        late = program.add_columns(np.full(hours, LATE_G_PER_GPU_HOUR), none, endless)
        enough = program.add_rows(np.minimum(due, available), endless)
        program.enter(enough, done, 1.0)
        program.enter(enough, late, 1.0)
        flow = program.add_rows(none, none)
        program.enter(flow, done, 1.0)
        program.enter(flow[1:], done[:-1], -1.0)
        for hub in sorted(allowed):
            if (hub, model) in pools:
                run = program.add_columns(none, none, endless)
                row = hubs.index(hub)
                program.enter(power[row], run, -pools[hub, model].kw_per_gpu * plants[row].pue)
                program.enter(room[hub, model], run, 1.0)
                program.enter(flow, run, -1.0)
    found = solve(program, time_limit_s=300.0)
    if found.failure:
        raise RuntimeError(found.failure)
    from_grid, from_own = found.values[grid], found.values[own]
    return float((from_grid * grid_g + from_own * onsite_g).sum()), float(from_grid.sum() + from_own.sum())


def _asked(period: Period, hours: int) -> dict[tuple[frozenset[str], str, bool], tuple[Floats, Floats]]:
    """Cumulative GPU-hours by hubs, model and slack: what can be done by the end of each hour, and what must be."""
    ends = np.arange(1, hours + 1, dtype=np.float64)
    sums: defaultdict[tuple[frozenset[str], str, bool], tuple[Floats, Floats]] = defaultdict(
        lambda: (np.zeros(hours), np.zeros(hours))
    )
    for job in period.jobs:
        came_h, lasts_h = job.request.submitted_s / 3600, job.duration_s / 3600
        available, due = sums[job.hubs, job.model, job.deferrable]
        available += np.clip(ends - came_h, 0.0, lasts_h) * job.kind.gpus
        due += np.clip(ends - came_h - job.kind.slack_h, 0.0, lasts_h) * job.kind.gpus
    return sums
