"""Does a replay keep the rules, repeat itself, and do the plain schedulers do what their names say?"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harch.fleet.model import Fleet
from harch.placement.request import PlacementRequest
from harch.placement.room import TaskSlot
from harch.simulate.arrivals import Job, ReplayWorkload, RunModel
from harch.simulate.fleet import replay_fleet, simulate_fleet
from harch.simulate.fleet_replay import jain, max_min
from harch.simulate.ledger import ReplayLedger
from harch.simulate.policies import FLEET_POLICIES, FleetPolicy, new_policy
from harch.simulate.workload_mix import WorkloadMix, generate
from harch.workloads.spec import Resources, SchedulingClass, Topology

TIMED = {"decisions_per_s", "round_ms_p99"}


def request(name: str, *, gpus: int = 1, tasks: int = 1, at_s: float = 0.0, **more: object) -> PlacementRequest:
    values: dict[str, object] = {
        "id": name,
        "tenant": "t",
        "turn_class": SchedulingClass.TRAINING,
        "priority": 1,
        "needs": Resources(gpus=gpus),
        "tasks": tasks,
        "topology": Topology(),
        "countries_allowed": (),
        "runs_process": False,
        "submitted_s": at_s,
        "tasks_min": tasks,
        "degrade_after_s": 30.0,
        "duration_s_max": None,
        "preemptible": True,
    }
    return PlacementRequest(**{**values, **more})  # type: ignore[arg-type]


def replayed(fleet: Fleet, policy: FleetPolicy, *jobs: Job, hours: float = 10.0) -> dict[str, object]:
    return simulate_fleet(fleet, ReplayWorkload("test", jobs, hours, RunModel()), policy=policy)


def test_the_hours_of_a_curve_add_up_to_the_allocation(fleet: Fleet, mix: WorkloadMix) -> None:
    replay = replay_fleet(fleet, generate(fleet, mix, hours=6, seed=3))
    for hub in replay.tally.hubs.values():
        assert len(hub.held_hourly_gpu_s) == 6
        assert sum(hub.held_hourly_gpu_s) == pytest.approx(hub.held_gpu_s)
        assert max(hub.held_hourly_gpu_s) <= 3600 * hub.hub.gpu_count * (1 + 1e-9)
    assert any(hub.held_gpu_s for hub in replay.tally.hubs.values())


@pytest.mark.parametrize("policy", FLEET_POLICIES)
def test_the_same_seed_gives_the_same_figures(fleet: Fleet, mix: WorkloadMix, policy: FleetPolicy) -> None:
    one, other = (simulate_fleet(fleet, generate(fleet, mix, hours=6, seed=3), policy=policy, seed=3) for _ in range(2))
    assert {k: v for k, v in one.items() if k not in TIMED} == {k: v for k, v in other.items() if k not in TIMED}
    assert one["decisions"] > 30  # type: ignore[operator]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(FLEET_POLICIES), load=st.sampled_from([0.5, 1.2, 2.5]))
def test_nothing_that_must_never_happen_happens(
    fleet: Fleet, mix: WorkloadMix, seed: int, policy: FleetPolicy, load: float
) -> None:
    from msgspec.structs import replace

    result = simulate_fleet(fleet, generate(fleet, replace(mix, load=load), hours=4, seed=seed), policy=policy)
    assert result["violations"] == {"total": 0}
    assert 0 < result["gpu_allocation_pct"] <= 100  # type: ignore[operator]


def test_fifo_lets_nobody_pass_the_first_and_binpack_does(fleet: Fleet) -> None:
    here = {"countries_allowed": ("SN",)}  # 8 GPUs on two nodes of 4
    jobs = (
        Job(request("long", gpus=4, **here), "south", 3600.0),
        Job(request("large", gpus=4, tasks=2, at_s=10.0, **here), "south", 600.0),
        Job(request("small", at_s=20.0, **here), "south", 600.0),
    )
    waits = {
        policy: replayed(fleet, policy, *jobs)["waits"]["training"]["p50_s"]  # type: ignore[index]
        for policy in ("fifo", "binpack")
    }
    assert waits["fifo"] > 3000
    assert waits["binpack"] < 30


def test_drf_serves_the_tenant_that_holds_least(fleet: Fleet) -> None:
    hub = fleet.hubs[1]
    policy = new_policy("drf")(hub)
    for number in range(12):
        policy.submit(request(f"many-{number}", tenant="many"), now_s=0.0)
    for number in range(4):
        policy.submit(request(f"few-{number}", tenant="few"), now_s=1.0)
    started = [start.request.id for start in policy.decide(now_s=2.0, starts_max=100).starts]
    assert sum(name.startswith("few") for name in started) == 4
    assert len(started) == 8


def test_the_real_scheduler_keeps_a_gang_in_one_island_where_the_blind_one_need_not(fleet: Fleet) -> None:
    jobs = (
        Job(request("filler-1", gpus=1), "north", 7200.0),
        Job(request("filler-2", gpus=2, at_s=20.0), "north", 7200.0),
        Job(request("gang", tasks=4, at_s=40.0), "north", 600.0),
    )
    seen = replayed(fleet, "harch", *jobs)["gangs"]
    blind = replayed(fleet, "blind", *jobs)["gangs"]
    assert seen["in_one_island_pct"] == 100  # type: ignore[index]
    assert blind["predicted_slowdown_mean"] > seen["predicted_slowdown_mean"]  # type: ignore[index]


def test_a_higher_class_stops_a_lower_one_which_goes_on_later_from_its_checkpoint(fleet: Fleet) -> None:
    here = {"countries_allowed": ("SN",)}
    jobs = [Job(request(f"train-{n}", gpus=4, **here), "south", 7200.0) for n in range(2)]
    ask = request("serve", gpus=4, at_s=3000.0, turn_class=SchedulingClass.INFERENCE, preemptible=False, **here)
    result = replayed(fleet, "harch", *jobs, Job(ask, "south", 600.0))
    assert result["preemptions"] == result["restarts"] == 1
    assert result["waits"]["inference"]["p99_s"] < 60  # type: ignore[index]
    assert 0 < result["lost_gpu_hours"] < 4 * 0.5 + 0.2  # type: ignore[operator]
    assert result["jobs_started"] == 3


def test_what_may_leave_goes_to_a_hub_with_room_and_what_may_not_waits(fleet: Fleet) -> None:
    full = [Job(request(f"full-{n}", gpus=4, countries_allowed=("SN",)), "south", 36000.0) for n in range(2)]
    free = Job(request("free", gpus=4, at_s=60.0), "south", 600.0)
    pinned = Job(request("pinned", gpus=4, at_s=60.0, countries_allowed=("SN",)), "south", 600.0)
    for policy in FLEET_POLICIES:
        result = replayed(fleet, policy, *full, free, pinned, hours=2)
        assert (result["spilled_over_modelled"], result["jobs_started"]) == (1, 3)


def test_the_second_book_notices_every_wrong(fleet: Fleet) -> None:
    hub = fleet.hubs[0]
    book = ReplayLedger(hub)
    book.start(request("a", gpus=2), (TaskSlot(0, (0, 1)),))
    book.start(request("a", gpus=2), (TaskSlot(1, (0, 1)),))
    book.start(request("twice"), (TaskSlot(0, (1,)),))
    book.start(request("abroad", countries_allowed=("SN",)), (TaskSlot(1, (0,)),))
    book.start(request("part", tasks=3), (TaskSlot(1, (1,)),))
    book.start(request("cpus", needs=Resources(gpus=1, cpus=99)), (TaskSlot(2, (0,)),))
    book.start(request("model", needs=Resources(gpus=1, gpu_model="other")), (TaskSlot(3, (0,)),))
    assert set(book.violations) == {
        *("started_twice", "gpu_twice", "gpu_memory", "residency", "gang_whole", "capacity", "gpu_model")
    }
    assert set(book.violations.values()) == {1}


def test_shares_that_are_due_are_max_min_fair() -> None:
    assert max_min({"little": 1.0, "much": 10.0, "more": 20.0}, 12.0) == {"little": 1.0, "much": 5.5, "more": 5.5}
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0]) == pytest.approx(0.5)
