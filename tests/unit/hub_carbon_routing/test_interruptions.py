"""Running work is suspended when that pays: in an orderly way, seldom, and within its promise."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from harch.carbon.planning.decisions import CarbonDecision, DecisionKind, HubOption
from harch.carbon.planning.settings import PlanningEntry, PlanSettings
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_plan import HubPlan
from harch.hub.jobs.events import EventContext
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import CarbonPreferences, RestartPolicy, Resumes
from unit.hub.conftest import Bench
from unit.hub_carbon_routing.plans import plan

RESUMES = CarbonPreferences(slack_s=12 * 3600, duration_s=6 * 3600, resumes=Resumes.HERE)


def running(bench: Bench, **fields: object) -> Workload:
    bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": 100.0})))
    job = bench.submit(**{"carbon": RESUMES, **fields})  # type: ignore[arg-type]
    bench.run(job)
    bench.later(minutes=30)
    return job


def suspend(bench: Bench, *jobs: Workload, in_h: int = 3, attempt: int = 1) -> None:
    chosen, home = HubOption("dakhla", in_h, 10.0, 10.0, 5.0), HubOption("dakhla", 0, 3000.0, 3000.0, 5.0)
    decisions = {
        job.id: CarbonDecision(job.id, DecisionKind.SUSPEND, "dakhla", in_h, 9.0, chosen, home, move_cost_g=50.0)
        for job in jobs
    }
    made = plan(bench.now, {"dakhla": [600.0] * in_h + [10.0]})
    attempts = {job.id: attempt for job in jobs}
    bench.handle(
        ev.CarbonPlanned(HubPlan(at=made.at, book=made.book, decisions=decisions, attempts=attempts, basis=made.basis))
    )


def test_suspended_work_stops_in_order_waits_for_its_hour_and_goes_on(bench: Bench) -> None:
    job = running(bench)
    suspend(bench, job)
    assert bench.stops_sent() == {0}
    assert (job.stop_as, job.state) == (State.PENDING, State.RUNNING)
    bench.end(job, reason=ExitReason.STOPPED, code=None)
    assert job.state is State.PENDING
    assert bench.place() == []
    assert job.carbon is not None
    assert (job.carbon.held, job.carbon.moves, job.carbon.ran_s) == (True, 1, 1800.0)
    assert job.carbon.start_by == job.created_at + timedelta(hours=12, minutes=30)  # what it did is no delay
    bench.later(hours=3)
    bench.handle(ev.CarbonDue())
    (start,) = bench.place()
    assert (start.task.key.workload_id, start.task.key.attempt) == (job.id, 2)
    assert job.restarts == 0


def test_a_suspended_workload_is_still_held_after_a_restart_of_the_hub(bench: Bench) -> None:
    job = running(bench)
    suspend(bench, job)
    bench.end(job, reason=ExitReason.STOPPED, code=None)
    again = type(bench.machine)(bench.machine.state.admission._fleet, bench.hub)
    again.restore([job], [], context=EventContext(now=bench.now))
    assert job.id in again.state.carbon.held


def test_so_many_in_an_hour_and_not_the_same_one_again_at_once(bench: Bench) -> None:
    bench.plan_by(PlanSettings(PlanningEntry(moves_per_hour=2)))
    jobs = [running(bench) for _ in range(3)]
    bench.later(minutes=30)
    suspend(bench, *jobs)
    stopped = [job for job in jobs if job.stop_as is State.PENDING]
    assert len(stopped) == 2
    for job in stopped:
        bench.end(job, reason=ExitReason.STOPPED, code=None)
    bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": 10.0})))  # clean after all: they go on at once
    for job in stopped:
        bench.run(job)
    bench.machine.apply(ev.Noted("x", "x", "x"), EventContext(now=bench.now, boot_s=0.0))
    bench.later(minutes=20)
    bench.machine.state.carbon._moved_s.clear()
    suspend(bench, *stopped, attempt=2)
    assert not [job for job in stopped if job.stop_as is not None]
    bench.later(hours=2)
    suspend(bench, *stopped, attempt=2)
    assert [job for job in stopped if job.stop_as is not None]


@pytest.mark.parametrize(
    "change",
    [
        {"carbon": replace(RESUMES, resumes=Resumes.NO)},
        {"restart": RestartPolicy.NEVER},
        {"preemptible": False},
    ],
)
def test_what_cannot_go_on_is_left_alone(bench: Bench, change: dict[str, object]) -> None:
    job = running(bench, **change)
    suspend(bench, job)
    assert (job.stop_as, bench.stops_sent()) == (None, set())


def test_a_plan_about_an_earlier_attempt_changes_nothing(bench: Bench) -> None:
    job = running(bench)
    suspend(bench, job, attempt=7)
    assert job.stop_as is None


def test_what_ended_well_before_the_signal_has_simply_completed(bench: Bench) -> None:
    job = running(bench)
    suspend(bench, job)
    bench.end(job)
    assert job.state is State.COMPLETED
    assert not bench.machine.state.carbon.held


def test_work_that_is_being_suspended_can_still_be_stopped_for_good(bench: Bench) -> None:
    job = running(bench)
    suspend(bench, job)
    bench.handle(ev.StopRequested(job.id, "no longer wanted"))
    bench.end(job, reason=ExitReason.STOPPED, code=None)
    assert job.state is State.CANCELLED
    assert not bench.machine.state.carbon.held
