"""Does the planned router serve work that cannot wait at once, and keep deadlines, where GPUs are scarce?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from harch.base.clock import SystemClock
from harch.fleet.model import Fleet
from harch.simulate.carbon import periods_of
from harch.simulate.carbon_replay import CarbonReplay
from harch.simulate.carbon_room import LOOK_S, margin_of
from harch.simulate.carbon_routers import NaiveRouter, PlannedRouter, pools_of
from harch.simulate.carbon_scenario import CarbonJob, CarbonJobKind, Scenario, draw_jobs
from harch.simulate.carbon_weather import Plants
from harch.simulate.policies import new_policy
from harch.workloads.spec import SchedulingClass

HOUR_S = 3600.0
GPUS_PER_HUB = 16


@pytest.fixture
def plants(fleet: Fleet, scenario: Scenario) -> dict[str, Plants]:
    """Own power in abundance, always: nothing waits for the sun."""
    found = periods_of(fleet, scenario, scenario.cases[0])[0].plants
    return {
        hub: Plants(np.full_like(own.pv_kw, 500.0), own.wind_kw, own.grid_g_per_kwh, own.onsite_g_per_kwh, own.pue)
        for hub, own in found.items()
    }


@pytest.fixture
def no_plants(plants: dict[str, Plants]) -> dict[str, Plants]:
    """The grid alone, the same in every hour."""
    return {
        hub: Plants(0 * own.pv_kw, 0 * own.wind_kw, own.grid_g_per_kwh, own.onsite_g_per_kwh, own.pue)
        for hub, own in plants.items()
    }


def made(
    fleet: Fleet,
    scenario: Scenario,
    name: str,
    *,
    at_h: float,
    hours: float,
    tasks: int = 1,
    gpus_per_task: int = 1,
    slack_h: float = 0.0,
    movable: bool | None = None,
    hubs: tuple[str, ...] = ("north",),
) -> CarbonJob:
    """A job by hand, with the request of a drawn one."""
    drawn = draw_jobs(fleet, scenario, 0.1, seed=1)[0]
    turn = SchedulingClass.TRAINING if slack_h else SchedulingClass.INFERENCE
    kind = CarbonJobKind(
        name=name,
        share=1.0,
        turn_class=turn,
        gpus_per_task=gpus_per_task,
        tasks=tasks,
        hours_median=hours,
        hours_sigma=0.0,
        hours_max=hours,
        movable=slack_h > 0 if movable is None else movable,
        slack_h=slack_h,
    )
    needs = structs.replace(drawn.request.needs, gpus=gpus_per_task, cpus=1.0, memory_gb=1.0)
    request = structs.replace(
        drawn.request,
        id=name,
        turn_class=turn,
        needs=needs,
        tasks=tasks,
        tasks_min=tasks,
        countries_allowed=(),
        submitted_s=at_h * HOUR_S,
        duration_s_max=hours * HOUR_S,
    )
    lasts_s = hours * HOUR_S
    return replace(
        drawn,
        request=request,
        home=hubs[0],
        kind=kind,
        duration_s=lasts_s,
        stated_s=lasts_s,
        hubs=frozenset(hubs),
    )


def replayed(
    fleet: Fleet, scenario: Scenario, plants: dict[str, Plants], jobs: list[CarbonJob], *, planned: bool = True
) -> CarbonReplay:
    planner = PlannedRouter(fleet, plants, perfect=False, moves=None, slack_h=24.0) if planned else None
    replay = CarbonReplay(
        fleet,
        tuple(jobs),
        plants,
        scenario.moving,
        planner or NaiveRouter(fleet),
        new_policy("harch"),
        days=2,
        clock=SystemClock(),
        planner=planner,
    )
    replay.run()
    return replay


def crowd(fleet: Fleet, scenario: Scenario) -> tuple[list[CarbonJob], CarbonJob]:
    """Twelve GPUs of sixteen are held by work that could wait, the rest by inference; then comes more inference."""
    later = [
        made(fleet, scenario, f"later-{number}", at_h=0.05, hours=0.5, slack_h=24.0, hubs=("north", "south"))
        for number in range(12)
    ]
    first = made(fleet, scenario, "first", at_h=0.1, hours=0.5, gpus_per_task=4)
    return [*later, first], made(fleet, scenario, "now", at_h=0.2, hours=0.3, gpus_per_task=4)


def test_deferrable_work_gives_way_to_inference_that_finds_no_room(
    fleet: Fleet, scenario: Scenario, plants: dict[str, Plants]
) -> None:
    others, now = crowd(fleet, scenario)
    replay = replayed(fleet, scenario, plants, [*others, now])
    assert replay.counts.waits_s[now.request.id] == scenario.moving.stop_s
    assert replay.counts.suspensions == 4, "one GPU each, and nobody else"
    assert replay.counts.moves == 0, "they go on where their checkpoints lie, although the other hub is empty"
    assert replay.deadline_misses() == 0
    assert not replay.violations


def test_without_planning_the_same_inference_waits_for_work_to_end(
    fleet: Fleet, scenario: Scenario, plants: dict[str, Plants]
) -> None:
    others, now = crowd(fleet, scenario)
    replay = replayed(fleet, scenario, plants, [*others, now], planned=False)
    assert replay.counts.waits_s[now.request.id] == pytest.approx(0.35 * HOUR_S)


def test_what_ends_between_two_plans_is_followed_by_what_waits(
    fleet: Fleet, scenario: Scenario, plants: dict[str, Plants]
) -> None:
    """Gangs of all that deferrable work may have, one after the other: none waits for the next full hour."""
    kept = next(pool.gpus_kept for pool in pools_of(fleet) if pool.hub == "north")
    tasks = GPUS_PER_HUB - kept
    jobs = [
        made(fleet, scenario, f"gang-{number}", at_h=0.1, hours=0.3, tasks=tasks, slack_h=24.0) for number in range(4)
    ]
    replay = replayed(fleet, scenario, plants, jobs)
    assert max(replay.counts.ended_s.values()) < 2.5 * HOUR_S
    assert replay.deadline_misses() == 0


def test_small_pools_keep_a_quarter_for_work_that_cannot_wait(fleet: Fleet) -> None:
    assert {pool.gpus_kept for pool in pools_of(fleet)} == {GPUS_PER_HUB // 4}


def test_a_gang_that_is_due_gets_its_nodes_from_work_with_more_slack(
    fleet: Fleet, scenario: Scenario, plants: dict[str, Plants]
) -> None:
    """Small work on every node would keep it waiting for twenty hours."""
    small = [made(fleet, scenario, f"small-{number}", at_h=0.05, hours=20.0, slack_h=24.0) for number in range(12)]
    first = made(fleet, scenario, "first", at_h=0.06, hours=20.0, gpus_per_task=4)
    gang = made(fleet, scenario, "gang", at_h=0.1, hours=1.0, tasks=2, gpus_per_task=4, slack_h=24.0)
    replay = replayed(fleet, scenario, plants, [*small, first, gang])
    assert replay.counts.waits_s["gang"] < 9 * HOUR_S
    assert replay.counts.waits_s["first"] <= scenario.moving.stop_s
    assert replay.deadline_misses() == 0
    assert len(replay.counts.ended_s) == len(replay.jobs)


@pytest.mark.parametrize(("movable", "missed"), [(True, 0), (False, 1)])
def test_urgent_training_gives_way_to_a_promise_as_a_last_resort(
    fleet: Fleet, scenario: Scenario, plants: dict[str, Plants], movable: bool, missed: int
) -> None:
    """Inference, which cannot be moved, never does: then the promise is broken, and counted."""
    urgent = [
        made(fleet, scenario, f"urgent-{number}", at_h=0.05, hours=30.0, gpus_per_task=4, movable=movable)
        for number in range(4)
    ]
    promised = made(fleet, scenario, "promised", at_h=0.1, hours=1.0, gpus_per_task=4, slack_h=6.0)
    replay = replayed(fleet, scenario, plants, [*urgent, promised])
    assert replay.deadline_misses() == missed
    assert replay.counts.suspensions == 1 - missed
    assert len(replay.counts.ended_s) == len(replay.jobs)


def test_inference_does_not_stand_behind_work_that_is_only_due(
    fleet: Fleet, scenario: Scenario, plants: dict[str, Plants]
) -> None:
    """All nodes are kept for a gang that needs the whole hub; who cannot wait gets room there at the next look."""
    small = [made(fleet, scenario, f"small-{number}", at_h=0.05, hours=8.0, slack_h=24.0) for number in range(12)]
    others = made(fleet, scenario, "others", at_h=0.06, hours=8.0, gpus_per_task=4)
    gang = made(fleet, scenario, "gang", at_h=0.1, hours=1.0, tasks=4, gpus_per_task=4, slack_h=17.0)
    now = made(fleet, scenario, "now", at_h=0.5, hours=0.3, gpus_per_task=2)
    replay = replayed(fleet, scenario, plants, [*small, others, gang, now])
    assert replay.counts.waits_s["now"] <= LOOK_S + scenario.moving.stop_s
    assert replay.deadline_misses() == 0


def test_a_gang_has_the_longer_to_find_room_the_more_of_the_gpus_it_needs() -> None:
    assert margin_of(1, 64) < margin_of(16, 1000) < margin_of(16, 64)
    assert margin_of(1, 4) == margin_of(1, 1000), "one GPU is found anywhere"


def test_two_replays_of_the_same_work_are_the_same(fleet: Fleet, scenario: Scenario) -> None:
    (period,) = periods_of(fleet, scenario, scenario.cases[0])
    first, second = (replayed(fleet, scenario, period.plants, list(period.jobs)).counts for _ in range(2))
    assert first.waits_s == second.waits_s
    assert first.ended_s == second.ended_s


def test_work_that_can_wait_leaves_nodes_alone_that_a_large_gang_waits_for(
    fleet: Fleet, scenario: Scenario, plants: dict[str, Plants]
) -> None:
    """Two of four nodes are free, the gang needs three: small work would only have to leave them again."""
    held = [
        made(fleet, scenario, f"held-{hours}", at_h=0.05, hours=hours, tasks=1, gpus_per_task=4) for hours in (2.0, 9.0)
    ]
    gang = made(fleet, scenario, "gang", at_h=0.1, hours=1.0, tasks=3, gpus_per_task=4, slack_h=17.0)
    small = [made(fleet, scenario, f"small-{number}", at_h=0.3, hours=5.0, slack_h=24.0) for number in range(4)]
    replay = replayed(fleet, scenario, plants, [*held, gang, *small])
    gang_s = gang.request.submitted_s + replay.counts.waits_s["gang"]
    assert gang_s == pytest.approx(2.05 * HOUR_S, abs=60)
    assert all(job.request.submitted_s + replay.counts.waits_s[job.request.id] >= gang_s for job in small)
    assert replay.counts.suspensions == 0
    assert replay.deadline_misses() == 0


def test_where_power_never_changes_work_starts_at_once_and_nothing_is_suspended_for_clean_hours(
    fleet: Fleet, scenario: Scenario, no_plants: dict[str, Plants]
) -> None:
    """The cleaner hub is full for twenty hours: who may go elsewhere goes, instead of waiting for it."""
    full = [
        made(fleet, scenario, f"full-{number}", at_h=0.05, hours=20.0, gpus_per_task=4, hubs=("south",))
        for number in range(4)
    ]
    later = [
        made(fleet, scenario, f"later-{number}", at_h=0.1, hours=1.0, slack_h=24.0, hubs=("south", "north"))
        for number in range(8)
    ]
    replay = replayed(fleet, scenario, no_plants, [*full, *later])
    assert all(replay.counts.waits_s[job.request.id] == 0 for job in later)
    assert replay.counts.suspensions == replay.counts.moves == 0


def test_work_that_only_waits_for_room_stops_nobody(
    fleet: Fleet, scenario: Scenario, no_plants: dict[str, Plants]
) -> None:
    """Where power never changes and all is full, everybody would otherwise push those with a little more slack."""
    small = [made(fleet, scenario, f"small-{number}", at_h=0.05, hours=3.0, slack_h=40.0) for number in range(12)]
    gang = made(fleet, scenario, "gang", at_h=0.5, hours=1.0, tasks=2, gpus_per_task=4, slack_h=24.0)
    replay = replayed(fleet, scenario, no_plants, [*small, gang])
    assert replay.counts.suspensions == 0
    assert replay.counts.waits_s["gang"] == pytest.approx(2.55 * HOUR_S, abs=LOOK_S)  # until they end
    assert replay.deadline_misses() == 0
