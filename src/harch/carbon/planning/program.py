"""How much of each class runs where and when? The linear program over classes, hubs and time, and its shadow prices.

Variables are GPU-hours of a class in a pool during a step, kWh from the grid and from on site per hub and step, and the
cumulative work of a class as a bounded variable. A variable exists only where the class may run: no pin can be broken,
because there is nothing to break it with. Work that cannot be done when it is due is done later at a reported penalty.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from harch.carbon.planning.linear import Index, SparseProgram, solve
from harch.carbon.planning.outlook import Floats, PowerOutlook
from harch.carbon.planning.work import ClassKey, JobClass

# Near steps are planned one by one. Far ones are only there so that near ones know what can wait: until which, so many
# together.
STEPS_TOGETHER = ((8, 1), (16, 2), (48, 4), (96, 12))
LATE_G_PER_GPU_HOUR = 20_000.0  # far above what any grid emits for a GPU-hour: late work is a last resort


@dataclass(frozen=True, eq=False)
class ClassPlan:
    """The solution, one value per step of the outlook."""

    quotas: Mapping[tuple[ClassKey, str], Floats] = field(default_factory=dict)  # GPUs, by class and hub
    hub_g_per_kwh: Mapping[str, Floats] = field(default_factory=dict)  # what one kWh more costs there and then
    pool_g_per_gpu_hour: Mapping[tuple[str, str], Floats] = field(default_factory=dict)  # what one GPU more would save
    to_come: Mapping[ClassKey, float] = field(default_factory=dict)  # of a class, the share that is only expected
    gpus_expected: Mapping[ClassKey, float] = field(default_factory=dict)  # that work to come uses, on average
    late_gpu_hours: float = 0.0
    cost_g: float = 0.0
    failure: str = ""


def spans_of(steps: int) -> Floats:
    """How many steps are planned together, from now until so many."""
    lengths: list[int] = []
    done = 0
    for until, length in STEPS_TOGETHER:
        while done < min(until, steps):
            lengths.append(min(length, steps - done))
            done += lengths[-1]
    if done < steps:
        lengths.append(steps - done)
    return np.array(lengths, dtype=np.float64)


def plan_classes(
    outlook: PowerOutlook,
    classes: tuple[JobClass, ...],
    *,
    busy_kw: Floats,
    gpus_free: Mapping[tuple[str, str], Floats],
) -> ClassPlan:
    """The best spread. `busy_kw` [hub, step] is drawn by what runs already, `gpus_free` what it leaves, by pool."""
    lengths = spans_of(outlook.steps)
    first_steps = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    model = _Model(outlook, lengths, first_steps)
    model.add_power(busy_kw)
    model.add_pools(gpus_free)
    for one in classes:
        model.add_class(one)
    if not model.quotas:
        return ClassPlan()
    return model.solved()


class _Model:
    """The program while it is written down. Rows of power and pools first, then classes one by one."""

    def __init__(self, outlook: PowerOutlook, lengths: Floats, first_steps: Index) -> None:
        self._outlook, self._lengths, self._first = outlook, lengths, first_steps
        self._hours = lengths * outlook.step_h
        self._hub_row = outlook.index()
        self._program = SparseProgram()
        self._pools = {pool.key: pool for pool in outlook.pools}
        self.quotas: dict[tuple[ClassKey, str], Index] = {}
        self._to_come: dict[ClassKey, float] = {}
        self._gpus_expected: dict[ClassKey, float] = {}
        self._late: list[Index] = []

    def _mean(self, by_step: Floats) -> Floats:
        sums: Floats = np.add.reduceat(by_step, self._first, axis=-1)
        return sums / self._lengths

    def add_power(self, busy_kw: Floats) -> None:
        """Per hub and span: what runs draws from on site as far as the forecast goes, and from the grid."""
        hubs, aims, program = self._outlook.hubs, self._outlook.aims, self._program
        grid_cost = np.array([self._mean(aims.grid_cost(hub)) for hub in hubs])
        onsite_cost = np.array([self._mean(aims.onsite_cost(hub)) for hub in hubs])
        onsite_kwh = np.array([self._mean(hub.onsite_kw) for hub in hubs]) * self._hours
        none, endless = np.zeros_like(grid_cost), np.full_like(grid_cost, np.inf)
        grid = program.add_columns(grid_cost, none, endless)
        onsite = program.add_columns(onsite_cost, none, onsite_kwh)
        busy_kwh = self._mean(busy_kw) * self._hours
        self._power = program.add_rows(busy_kwh, busy_kwh)
        program.enter(self._power, grid, 1.0)
        program.enter(self._power, onsite, 1.0)

    def add_pools(self, gpus_free: Mapping[tuple[str, str], Floats]) -> None:
        self._pool_rows: dict[tuple[str, str], Index] = {}
        for key in self._pools:
            room = np.maximum(self._mean(gpus_free[key]), 0.0) * self._hours
            self._pool_rows[key] = self._program.add_rows(np.full_like(room, -np.inf), room)

    def add_class(self, one: JobClass) -> None:
        """Its GPU-hours per allowed hub, and how much of it is done by the end of each span."""
        program, count = self._program, len(self._lengths)
        none, endless = np.zeros(count), np.full(count, np.inf)
        ends = (self._first + self._lengths - 1).astype(np.int64)
        due, available = one.due[ends].copy(), one.available[ends]
        due[-1] = available[-1]  # nothing is pushed over the edge of what is planned
        done = program.add_columns(none, none, np.maximum(available, 0.0))
        # How late it is at the worst moment, and what does not even fit into all that is planned.
        late, never = program.add_columns(np.full(2, LATE_G_PER_GPU_HOUR), none[:1], endless[:1])[:, None]
        self._late += [late, never]
        self._to_come[one.key] = 1.0 - min(one.waiting_gpu_hours / max(one.available[-1], 1e-9), 1.0)
        self._gpus_expected[one.key] = one.gpus_expected
        program.enter(enough := program.add_rows(due, endless), done, 1.0)
        program.enter(enough[:-1], late, 1.0)
        program.enter(enough[-1:], never, 1.0)
        flow = program.add_rows(none, none)  # done[t] - done[t-1] - everything run in t = 0
        program.enter(flow, done, 1.0)
        program.enter(flow[1:], done[:-1], -1.0)
        for hub in sorted(one.key.hubs):
            pool = self._pools.get((hub, one.key.model))
            if pool is None:
                continue
            run = program.add_columns(none, none, endless)
            self.quotas[one.key, hub] = run
            row = self._hub_row[hub]
            kw = pool.kw_per_gpu * self._outlook.hubs[row].pue
            program.enter(self._power[row], run, -kw)
            program.enter(self._pool_rows[pool.key], run, 1.0)
            program.enter(flow, run, -1.0)

    def solved(self) -> ClassPlan:
        found = solve(self._program)
        if found.failure:
            return ClassPlan(failure=found.failure)
        span_of = np.repeat(np.arange(len(self._lengths)), self._lengths.astype(np.int64))

        def spread(per_span: Floats) -> Floats:
            return per_span[span_of]

        late = [found.values[columns] for columns in self._late]
        return ClassPlan(
            quotas={
                key: spread(np.maximum(found.values[columns], 0.0) / self._hours)
                for key, columns in self.quotas.items()
            },
            hub_g_per_kwh={
                hub.hub: spread(found.duals[self._power[row]]) for row, hub in enumerate(self._outlook.hubs)
            },
            pool_g_per_gpu_hour={
                key: spread(np.maximum(-found.duals[rows], 0.0)) for key, rows in self._pool_rows.items()
            },
            to_come=self._to_come,
            gpus_expected=self._gpus_expected,
            late_gpu_hours=float(sum(values[0] for values in late)),
            cost_g=float(found.values @ np.concatenate(self._program.cost)),
        )
