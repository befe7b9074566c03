"""What jobs draw is cut into intervals that lose no second, whatever a job does between two looks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.carbon.ledger.meter import IDLE_SHARE, HeldDevices
from harch.carbon.values import Signal
from harch.hub.carbon import metering
from harch.hub.carbon.metering import ClosedInterval, Run, Work, WorkMeter, load_kw, merged, work_of
from harch.testing.clock import START
from harch.testing.samples import tiny_fleet
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import Resources, WorkloadSpec
from unit.hub_carbon.power_samples import signals, state

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
KILOWATT = HeldDevices(gpu_power_w=1000)
WHOLE = HeldDevices(gpu_power_w=10_000)
SAMPLE = signals(state(Signal.GRID_AVERAGE_LIFECYCLE, 600))


def work(job: str = "wl_1", *, started: timedelta = timedelta(0), tenant: str = "acme") -> Work:
    return Work(
        job=job,
        tenant=tenant,
        home="dakhla",
        submitted_at=START,
        started_at=START + started,
        scheduling_class="training",
        data_ids=(),
        held=KILOWATT,
    )


def present(*works: Work, as_: State = State.RUNNING) -> Mapping[str, tuple[Work, State]]:
    return {one.job: (one, as_) for one in works}


def looked(meter: WorkMeter, *looks: tuple[timedelta, Mapping[str, tuple[Work, State]]]) -> list[ClosedInterval]:
    return [closed for after, found in looks for closed in meter.look(START + after, found, [], SAMPLE)]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_intervals_follow_each_other_and_every_second_is_charged_once(pauses_s: list[int]) -> None:
    meter, now, job = WorkMeter(START, WHOLE), START, work()
    closed: list[ClosedInterval] = []
    for pause_s in pauses_s:
        now += timedelta(seconds=pause_s)
        closed += meter.look(now, present(job), [], SAMPLE)
    rest = meter.open_interval()
    every = [*closed, *([rest] if rest is not None else [])]
    edges = [START, *(one.interval.end for one in every)]
    assert [one.interval.start for one in every] == edges[:-1]
    assert edges[-1] == now
    kwh = sum(allocation.it_kwh for one in every for allocation in one.allocations)
    assert kwh == pytest.approx((now - START) / HOUR)


def test_little_work_is_booked_soon_much_of_it_and_none_by_the_hour() -> None:
    few, many = present(work()), present(*(work(f"wl_{number}") for number in range(51)))
    for found, expected in ((few, 12), (many, 1), ({}, 1)):
        looks = [(minute * MINUTE, found) for minute in range(1, 61)]
        assert len(looked(WorkMeter(START, WHOLE), *looks)) == expected


def test_paused_work_pays_the_idle_power_of_what_it_keeps() -> None:
    meter = WorkMeter(START, WHOLE)
    looked(meter, (2 * MINUTE, present(work())), (4 * MINUTE, present(work(), as_=State.PAUSED)))
    found = meter.open_interval()
    assert found is not None
    (allocation,) = found.allocations
    assert allocation.holding_it_kwh == pytest.approx(IDLE_SHARE * 2 / 60)
    assert allocation.it_kwh == pytest.approx((1 + IDLE_SHARE) * 2 / 60)


def test_work_that_came_and_went_between_two_looks_is_charged_for_its_time() -> None:
    meter = WorkMeter(START, WHOLE)
    run = Run(work(started=3 * SECOND), START + 3 * SECOND, START + 21 * SECOND)
    meter.look(START + 30 * SECOND, {}, [run], SAMPLE)
    found = meter.open_interval()
    assert found is not None
    assert found.allocations[0].it_kwh == pytest.approx(18 / 3600)


def test_what_nobody_holds_is_idle_power_of_the_hub() -> None:
    meter = WorkMeter(START, WHOLE)
    looked(meter, (4 * MINUTE, present(work())))
    found = meter.open_interval()
    assert found is not None
    assert found.modelled_it_kw == pytest.approx(1 + 9 * IDLE_SHARE)


def test_too_many_jobs_share_rows_by_tenant_and_no_energy_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "JOBS_MAX", 2)
    meter = WorkMeter(START, WHOLE)
    jobs = [work(f"wl_{number}", tenant=f"t{number % 2}", started=number * SECOND) for number in range(7)]
    looked(meter, (MINUTE, present(*jobs)))
    found = meter.open_interval()
    assert found is not None
    names = [allocation.job for allocation in found.allocations]
    assert names == ["wl_0", "wl_1", "small jobs of t0 from dakhla", "small jobs of t1 from dakhla"]
    assert "3 jobs together" in found.allocations[2].method
    assert sum(one.it_kwh for one in found.allocations) == pytest.approx((7 * 60 - 21) / 3600)
    assert merged((), found.interval) == ()


def placed(**fields: object) -> Workload:
    node = tiny_fleet().hubs[0].nodes[0]
    moment: datetime = START
    task = TaskPlacement(rank=0, node_id=node.id, gpu_ids=(node.gpus[0].id,))
    base: dict[str, object] = {
        "id": "wl_1",
        "tenant": "acme",
        "owner_hub": "dakar",
        "spec": WorkloadSpec(name="job", command=("true",), resources=Resources(gpus=1, gpu_fraction=0.5)),
        "created_at": moment,
        "updated_at": moment,
        "started_at": moment,
        "placement": (task,),
    }
    return Workload(**base | fields)  # type: ignore[arg-type]


def test_a_job_holds_its_share_of_gpus_and_hosts() -> None:
    nodes = {node.id: node for node in tiny_fleet().hubs[0].nodes}
    node = tiny_fleet().hubs[0].nodes[0]
    found = work_of(placed(), nodes)
    assert found is not None
    assert found.held.gpu_power_w == node.gpu_model.power_w / 2
    assert found.held.host_power_w == pytest.approx(node.host_power_w / 2 / len(node.gpus))
    assert found.home == "dakar"


def test_a_hub_draws_the_plates_of_what_runs_and_idle_power_of_the_rest() -> None:
    assert load_kw({}, WHOLE) == pytest.approx(10 * IDLE_SHARE)
    assert load_kw(present(work()), WHOLE) == pytest.approx(1 + 9 * IDLE_SHARE)
    assert load_kw(present(work(), as_=State.PAUSED), WHOLE) == pytest.approx(10 * IDLE_SHARE)


def test_work_that_has_not_started_or_runs_elsewhere_holds_nothing_here() -> None:
    nodes = {node.id: node for node in tiny_fleet().hubs[0].nodes}
    assert work_of(placed(started_at=None), nodes) is None
    assert work_of(placed(placement=(TaskPlacement(rank=0, node_id="dakar-n1", gpu_ids=()),)), nodes) is None
