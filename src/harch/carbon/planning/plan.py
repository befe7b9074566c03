"""What should happen now, everywhere? Forecasts, waiting and running work in; one plan out, to print, test or refuse.

Steps, in this order: what runs is booked where it runs; the linear program spreads classes over hubs and time; running
work moves if that pays; then every waiting job gets its hub and hour, least slack first.
"""

# harch: pure

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from harch.carbon.planning.capacity import CapacityLedger
from harch.carbon.planning.decisions import CarbonDecision
from harch.carbon.planning.dispatch import Budgets, MoveRules, dispatch, plan_moves
from harch.carbon.planning.outlook import Floats, PowerOutlook
from harch.carbon.planning.program import ClassPlan, plan_classes
from harch.carbon.planning.work import FlexibleWork, WorkDemand, classes_of


class Announced(NamedTuple):
    """What somebody else means to start somewhere: planned around, so that not all choose the same hub and hour."""

    hub: str
    model: str
    gpus: float
    start_step: int  # of the outlook, from now
    hours: float


@dataclass(frozen=True, eq=False)
class CarbonPlan:
    """Decisions for jobs, quotas and shadow prices for classes, and the book, which can weigh what comes meanwhile."""

    decisions: tuple[CarbonDecision, ...]
    classes: ClassPlan
    book: CapacityLedger
    notes: tuple[str, ...] = field(default_factory=tuple)

    def of(self, work_id: str) -> CarbonDecision | None:
        return next((one for one in self.decisions if one.work_id == work_id), None)


def plan_carbon(
    outlook: PowerOutlook,
    demand: WorkDemand,
    running: Iterable[FlexibleWork],
    *,
    budgets: Budgets | None = None,
    moves: MoveRules | None = None,
    announced: Iterable[Announced] = (),
    classes: ClassPlan | None = None,
) -> CarbonPlan:
    """The same values give the same plan. Without a solver it is made without classes, and says so.

    `classes` of a plan that was made a short while ago save the solver: prices change slowly, free GPUs do not.
    """
    running = tuple(running)
    budgets = budgets or Budgets()
    busy_kw, gpus_free = booked(outlook, running, announced)
    if classes is None:
        kept = {pool.key: gpus_free[pool.key] - pool.gpus_kept for pool in outlook.pools}
        classes = plan_classes(
            outlook, classes_of(demand, outlook.steps, outlook.step_h), busy_kw=busy_kw, gpus_free=kept
        )
    book = CapacityLedger(outlook, busy_kw, gpus_free)
    book.heed(classes)
    moved = plan_moves(running, book, budgets, moves) if moves is not None else ()
    decisions = moved + dispatch(demand.waiting, book, budgets)
    return CarbonPlan(decisions, classes, book, _notes(classes))


def booked(
    outlook: PowerOutlook, running: Iterable[FlexibleWork], announced: Iterable[Announced] = ()
) -> tuple[Floats, Mapping[tuple[str, str], Floats]]:
    """Power that running and announced work draws by hub and step, and the GPUs that it leaves by pool."""
    rows, steps, step_h = outlook.index(), outlook.steps, outlook.step_h
    busy_kw = np.zeros((len(outlook.hubs), steps))
    gpus_free = {pool.key: np.full(steps, float(pool.gpus)) for pool in outlook.pools}
    by_pool: defaultdict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for work in running:
        by_pool[work.running_at or "", work.model].append((work.gpus, 0.0, work.hours_left / step_h))
    for one in announced:
        if 0 <= one.start_step < steps:
            by_pool[one.hub, one.model].append((one.gpus, one.start_step, one.start_step + one.hours / step_h))
    step = np.arange(steps)
    for pool in outlook.pools:
        if pool.key in by_pool:
            gpus, starts, ends = np.array(by_pool[pool.key], dtype=np.float64).T
            held = gpus @ (np.clip(ends[:, None] - step, 0.0, 1.0) * (step >= starts[:, None]))
            row = rows[pool.hub]
            busy_kw[row] += held * pool.kw_per_gpu * outlook.hubs[row].pue
            gpus_free[pool.key] -= held
    return busy_kw, gpus_free


def _notes(classes: ClassPlan) -> tuple[str, ...]:
    notes = []
    if classes.failure:
        notes.append(f"planned job by job, not by class: {classes.failure}")
    if classes.late_gpu_hours > 1e-6:
        notes.append(f"{classes.late_gpu_hours:.1f} GPU-hours cannot be done in time")
    return tuple(notes)
