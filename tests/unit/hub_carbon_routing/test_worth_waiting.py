"""Hubs hold work back by the rule of replays: not where power hardly changes, and not too long for scarce gangs."""

from __future__ import annotations

from datetime import timedelta

from harch.carbon.planning.decisions import CarbonDecision, DecisionKind
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_routing.explanations import sentences
from harch.workloads.lifecycle import State
from harch.workloads.spec import CarbonPreferences
from unit.hub.conftest import Bench
from unit.hub_carbon_routing.plans import plan

CLEAN_LATER = [600.0, 600.0, 600.0, 50.0]
SLACK = CarbonPreferences(slack_s=8 * 3600, duration_s=3600)


def planned(bench: Bench, grids: dict[str, list[float] | float]) -> None:
    bench.handle(ev.CarbonPlanned(plan(bench.now, grids)))


def test_on_a_grid_that_hardly_changes_work_starts_at_once_and_is_told_why(bench: Bench) -> None:
    planned(bench, {"dakhla": [600.0, 590.0, 610.0, 580.0]})
    job = bench.submit(carbon=SLACK)
    assert job.carbon is not None
    assert (job.carbon.held, job.carbon.action) == (False, "start")
    told = sentences(job.carbon, bench.now)
    assert any("carbon intensity hardly changes in the hours ahead" in line for line in told)
    assert bench.place()


def test_held_work_that_finds_power_flat_and_no_room_joins_the_queue(bench: Bench) -> None:
    planned(bench, {"dakhla": CLEAN_LATER})
    job = bench.submit(carbon=SLACK)
    assert job.id in bench.machine.state.carbon.held
    made = plan(bench.now, {"dakhla": 600.0})
    full = CarbonDecision(job.id, DecisionKind.START, "dakhla", 0, 6.0, room=False, queues=True)
    made.decisions[job.id] = full  # type: ignore[index]
    bench.handle(ev.CarbonPlanned(made))
    assert job.id not in bench.machine.state.carbon.held
    assert job.id in bench.machine.state.scheduler.queue


def test_without_room_but_with_cleaner_hours_ahead_it_keeps_its_place_outside_of_the_queue(bench: Bench) -> None:
    planned(bench, {"dakhla": CLEAN_LATER})
    job = bench.submit(carbon=SLACK)
    made = plan(bench.now, {"dakhla": CLEAN_LATER})
    made.decisions[job.id] = CarbonDecision(job.id, DecisionKind.START, "dakhla", 0, 6.0, room=False)  # type: ignore[index]
    bench.handle(ev.CarbonPlanned(made))
    assert job.id in bench.machine.state.carbon.held


def test_a_gang_that_needs_much_of_all_gpus_in_reach_joins_the_queue_earlier(bench: Bench) -> None:
    """Sixteen hours of slack: a quarter of it for one GPU at the most, half of it for all GPUs of the hub."""
    planned(bench, {"dakhla": [*CLEAN_LATER, *[600.0] * 20]})
    wishes = CarbonPreferences(slack_s=16 * 3600, duration_s=3600)
    small, gang = bench.submit(gpus=1, carbon=wishes), bench.submit(gpus=8, carbon=wishes)
    for job, hours in ((small, 1.5), (gang, 8.0)):
        assert job.state is State.PENDING
        assert job.carbon is not None
        assert job.carbon.start_by is not None
        assert job.carbon.release_at == job.carbon.start_by - timedelta(hours=hours)
