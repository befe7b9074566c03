"""Others move so that a waiting workload can start: when asked, or by itself when it pays; and it starts there."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.execution.protocol import StartTask
from harch.hub.jobs import events as ev
from harch.hub.jobs.machine import JobMachine
from harch.hub.jobs.placement import plan_defragmentation
from harch.placement.queueing.settings import QueueSettings
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Resources, SchedulingClass, WorkloadSpec
from unit.hub.conftest import Bench


def h100(bench: Bench, name: str, gpus: int, **fields: object) -> Workload:
    bench.count += 1
    spec = WorkloadSpec(
        name=name,
        command=("true",),
        resources=Resources(gpus=gpus, gpu_model="h100-80gb"),
        **fields,  # type: ignore[arg-type]
    )
    return bench.submit_spec(spec)


def scatter(bench: Bench, **fields: object) -> list[Workload]:
    """One GPU of each of the four H100 nodes in use: 28 are free, and no node is whole."""
    small, fillers = [], []
    for number in range(4):
        small.append(h100(bench, f"small-{number}", 1, **fields))
        bench.run(small[-1])
        fillers.append(h100(bench, f"filler-{number}", 7))
        bench.run(fillers[-1])
        bench.later(seconds=1)
    for filler in fillers:
        bench.end(filler)
    assert len({workload.placement[0].node_id for workload in small}) == 4
    return small


def end_stopped(bench: Bench, small: list[Workload]) -> list[Workload]:
    moving = [workload for workload in small if workload.stop_as is State.PENDING]
    for workload in moving:
        bench.end(workload, reason=ExitReason.STOPPED, code=None)
    return moving


def test_planning_tells_who_would_move_and_changes_nothing(bench: Bench) -> None:
    small = scatter(bench)
    large = h100(bench, "large", 8)
    assert bench.place() == []
    plan = plan_defragmentation(bench.machine.state, large.id, now_s=bench.context.now_s)
    assert plan is not None
    assert [move.running.request.id for move in plan.moves] == [small[3].id]  # the youngest loses least
    assert all(workload.state is State.RUNNING and not workload.stop_reason for workload in small)


def test_whoever_moves_stops_in_order_and_the_one_that_waits_starts_on_what_it_left(bench: Bench) -> None:
    small = scatter(bench)
    large = h100(bench, "large", 8)
    bench.place()
    bench.handle(ev.DefragmentationRequested(large.id))
    assert bench.stops_sent() == {0}
    assert {"workload.moving", "workload.room_made"} <= {record.kind for record in bench.records}
    left = small[3].placement[0].node_id
    # Somebody who would take the freed node forever must not get it, whatever its class.
    thief = h100(bench, "thief", 8, scheduling_class=SchedulingClass.INFERENCE, preemptible=False)
    # Nor somebody who fits into what is free of it already.
    crumb = h100(bench, "crumb", 7, preemptible=False)
    assert [start.task.key.workload_id for start in bench.place()] == [crumb.id]
    assert crumb.placement[0].node_id != left
    assert small[3] in end_stopped(bench, small)
    started = {start.task.key.workload_id: start.task.node_id for start in bench.place()}
    assert started[large.id] == left
    assert started[small[3].id] != left
    assert all(task.node_id != left for task in thief.placement)
    assert bench.machine.state.scheduler.clearing is None


def test_one_plan_at_a_time(bench: Bench) -> None:
    scatter(bench)
    first, second = h100(bench, "first", 8), h100(bench, "second", 8)
    bench.place()
    bench.handle(ev.DefragmentationRequested(first.id))
    with pytest.raises(HarchError, match=f"make room for {first.id}"):
        bench.handle(ev.DefragmentationRequested(second.id))


def test_room_is_kept_for_a_while_only(bench: Bench) -> None:
    scatter(bench)
    large = h100(bench, "large", 8)
    bench.place()
    bench.handle(ev.DefragmentationRequested(large.id))
    bench.later(minutes=10)  # the agent never says that the task has ended
    bench.place()
    assert bench.machine.state.scheduler.clearing is None


def test_work_that_runs_or_that_no_move_helps_is_refused(bench: Bench) -> None:
    small = scatter(bench, preemptible=False)
    large = h100(bench, "large", 8)
    bench.place()
    with pytest.raises(HarchError, match="only pending work"):
        bench.handle(ev.DefragmentationRequested(small[0].id))
    with pytest.raises(HarchError, match="no moves would make room"):
        bench.handle(ev.DefragmentationRequested(large.id))


def test_what_a_person_stops_stays_stopped_although_it_is_in_a_plan(bench: Bench) -> None:
    small = scatter(bench)
    large = h100(bench, "large", 8)
    bench.place()
    bench.handle(ev.StopRequested(small[3].id, "enough"))
    bench.handle(ev.DefragmentationRequested(large.id))
    assert small[3].stop_as is State.CANCELLED


def patient(after_s: float | None) -> Bench:
    bench = Bench()
    bench.machine = JobMachine(
        tiny_fleet(), bench.hub, QueueSettings(defragment_after_s=after_s, makes_room_after_s=1e6)
    )
    bench.join()
    return bench


def test_by_itself_only_after_the_time_that_the_settings_say() -> None:
    bench = patient(120)
    small = scatter(bench)
    large = h100(bench, "large", 8)
    bench.place()
    bench.later(seconds=60)
    bench.place()
    assert not any(workload.stop_reason for workload in small)
    bench.later(seconds=61)
    bench.place()
    assert [workload.id for workload in end_stopped(bench, small)] == [small[3].id]
    assert large.id in {message.task.key.workload_id for message in bench.place() if isinstance(message, StartTask)}


def test_by_itself_never_where_it_does_not_pay_and_never_by_default() -> None:
    for after_s, max_duration_s in ((1.0, 1.0), (None, None)):
        bench = patient(after_s)
        small = scatter(bench)
        h100(bench, "large", 8, max_duration_s=max_duration_s)
        bench.later(hours=5)
        bench.place()
        bench.place()
        assert not any(workload.stop_reason for workload in small)
