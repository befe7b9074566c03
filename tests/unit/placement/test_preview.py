"""The next round on a twin: it decides as the real one does, and the real one does not notice."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler, preview
from harch.testing.samples import tiny_fleet
from harch.workloads.spec import Resources, SchedulingClass, WorkloadSpec


def best_fit() -> Scheduler:
    made = Scheduler(tiny_fleet().hubs[0])
    made.serve(tuple(node.id for node in made.hub.nodes), True)
    made.room.process_slots_free = 1000
    return made


def learned() -> Scheduler:
    from harch.placement.learned import LearnedPolicy

    made = best_fit()
    made.use(LearnedPolicy(made.room))
    return made


def ask(random: Random, number: int, now_s: float) -> PlacementRequest:
    gpus = random.choice([1, 1, 2, 4, 8])
    spec = WorkloadSpec(
        name=f"w{number}",
        tasks=random.choice([1, 1, 1, 2, 3]),
        modelled_duration_s=random.choice([100.0, 1000.0, 10000.0]),
        resources=Resources(gpus=gpus, gpu_fraction=random.choice([None, 0.3]) if gpus == 1 else None),
        scheduling_class=random.choice(list(SchedulingClass)),
        preemptible=random.random() < 0.5,
    )
    return PlacementRequest.of(f"w{number}", spec, tenant=random.choice("ab"), submitted_s=now_s)


@pytest.mark.parametrize("make", [best_fit, learned])
@pytest.mark.parametrize("seed", range(4))
def test_a_preview_is_what_happens_and_leaves_no_trace(make: Callable[[], Scheduler], seed: int) -> None:
    """One scheduler is looked at before every round, the other never: both decide alike, as was foreseen."""
    random, watched, alone = Random(seed), make(), make()
    running: list[str] = []
    for number in range(120):
        now_s = 30.0 * number
        request = ask(random, number, now_s)
        for scheduler in (watched, alone):
            scheduler.submit(request, now_s=now_s)
        foreseen = preview(watched, now_s=now_s)
        plan, other = (one.plan(now_s=now_s, placed_max=1000) for one in (watched, alone))
        assert foreseen.starts == {item.request.id for item in plan.assignments}
        assert [(a.request.id, a.slots, a.score) for a in plan.assignments] == [
            (a.request.id, a.slots, a.score) for a in other.assignments
        ]
        assert [p.describe() for p in plan.preemptions] == [p.describe() for p in other.preemptions]
        assert [(r.request.id, r.rows) for r in plan.reservations] == [
            (r.request.id, r.rows) for r in other.reservations
        ]
        assert (foreseen.after.room.arrays.gpu_milli_free == watched.room.arrays.gpu_milli_free).all()
        running += [item.request.id for item in plan.assignments]
        while running and random.random() < 0.5:
            ended = running.pop(random.randrange(len(running)))
            for scheduler in (watched, alone):
                scheduler.ended(ended, now_s=now_s)
