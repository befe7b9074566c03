"""The candidates that an explanation shows are those of this moment, not of the time of submission."""

from __future__ import annotations

from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler
from harch.testing.samples import tiny_fleet
from harch.workloads.spec import Resources, SchedulingClass, WorkloadSpec


def ask(name: str, *, tasks: int = 1, hours: float = 1.0, now_s: float = 0.0, **fields: object) -> PlacementRequest:
    spec = WorkloadSpec(
        name=name,
        tasks=tasks,
        modelled_duration_s=hours * 3600,
        resources=Resources(gpus=8, gpu_model="h100-80gb"),
        preemptible=False,
        **fields,  # type: ignore[arg-type]
    )
    return PlacementRequest.of(name, spec, tenant="t", submitted_s=now_s)


def test_what_has_waited_since_before_a_reservation_is_judged_by_the_present_time() -> None:
    """Nodes are kept for a gang in two hours: one hour of work may use them at first, but no longer in the end."""
    scheduler = Scheduler(tiny_fleet().hubs[0])
    scheduler.serve(tuple(node.id for node in scheduler.hub.nodes), True)
    for request in (ask("running", tasks=3, hours=2), ask("gang", tasks=4)):
        scheduler.submit(request, now_s=0)
        scheduler.plan(now_s=0, placed_max=10)
    (kept,) = scheduler.reservations
    assert kept.request.id == "gang"
    filler = ask("filler", hours=1, now_s=0)
    assert [node.node_id for node in scheduler.candidates(filler, now_s=0, limit=3)] == ["dakhla-r02-n02"]
    assert scheduler.candidates(filler, now_s=1.5 * 3600, limit=3) == ()


def test_a_higher_class_that_has_waited_long_sees_the_nodes_that_it_may_take() -> None:
    scheduler = Scheduler(tiny_fleet().hubs[0])
    scheduler.serve(tuple(node.id for node in scheduler.hub.nodes), True)
    for request in (ask("running", tasks=3, hours=2), ask("gang", tasks=4)):
        scheduler.submit(request, now_s=0)
        scheduler.plan(now_s=0, placed_max=10)
    urgent = ask("urgent", hours=9, scheduling_class=SchedulingClass.INFERENCE)
    assert scheduler.candidates(urgent, now_s=60, limit=3) == ()
    assert len(scheduler.candidates(urgent, now_s=200, limit=3)) == 1
