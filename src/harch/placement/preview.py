"""What will the next round do? The round itself, on a twin of the scheduler: nothing else can tell it truly."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from harch.placement.scheduler import Scheduler

STARTS_PER_ROUND = 1000
ROUNDS_MAX = 1000  # more than any queue needs


@dataclass(frozen=True)
class Preview:
    """`after` are the books once the next round is done: ask it why those who are not in `starts` wait."""

    starts: frozenset[str]
    after: Scheduler
    now_s: float


def preview(scheduler: Scheduler, *, now_s: float) -> Preview:
    """Changes nothing. Costs a copy of the books and a round, so it is for people who ask."""
    twin = deepcopy(scheduler, {id(scheduler.hub): scheduler.hub})
    starts: set[str] = set()
    for _ in range(ROUNDS_MAX):
        plan = twin.plan(now_s=now_s, placed_max=STARTS_PER_ROUND)
        starts.update(assignment.request.id for assignment in plan.assignments)
        if plan.complete:
            break
    return Preview(frozenset(starts), twin, now_s)
