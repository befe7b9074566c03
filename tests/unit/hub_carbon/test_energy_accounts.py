"""A hub books what its work used: the rows add up, stand in a chain, and answer whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from harch.carbon.ledger.report import GroupBy
from harch.carbon.ledger.verification import verify_ledger
from harch.execution.protocol import TaskEnded, TaskKey
from harch.hub.carbon.views import ReportQuery
from harch.hub.jobs import events as ev
from harch.hub.service import HubService
from harch.hub.store import ledger_rows
from harch.testing.agents import SimAgent
from harch.testing.clock import START, SimClock
from harch.workloads.lifecycle import ExitReason, Workload
from harch.workloads.spec import Resources, WorkloadSpec
from unit.carbon.ledger.charges import ledger_lines
from unit.hub_carbon.test_hub_carbon import service, settled


class Bench:
    """A hub with one agent that is not there, and its clock."""

    def __init__(self, hub: HubService, clock: SimClock) -> None:
        self.hub, self.clock = hub, clock
        self.agent = SimAgent("agent", hub.country)

    async def start(self, name: str, *, data: tuple[str, ...] = ()) -> Workload:
        driver = self.hub._jobs
        spec = WorkloadSpec(name=name, command=("true",), resources=Resources(gpus=1))
        await driver.handle(ev.Submitted(f"wl_{name}", "acme", spec))
        await driver.handle(ev.PlacementDue())
        workload = driver.machine.state.registry.workloads[f"wl_{name}"]
        workload.data_ids = data
        await driver.handle(ev.TaskStartSeen(TaskKey(workload.id, workload.attempt, 0)))
        return workload

    async def end(self, workload: Workload) -> None:
        key = TaskKey(workload.id, workload.attempt, 0)
        end = TaskEnded(key=key, reason=ExitReason.EXITED, at=self.clock.now(), exit_code=0)
        await self.hub._jobs.handle(ev.TaskEndSeen("agent", end))

    def kwh(self, workload: Workload, running_s: float) -> float:
        """The plates of one GPU and its part of the host, times the PUE."""
        hub = self.hub._jobs.machine.state.hub
        node = next(node for node in hub.nodes if node.id == workload.placement[0].node_id)
        watts = node.gpu_model.power_w + node.host_power_w / len(node.gpus)
        return watts / 1000 * running_s / 3600 * hub.pue

    async def look(self, after_s: float) -> None:
        self.clock.jump(after_s)
        carbon = self.hub.carbon
        await carbon._sources.signals.refresh(self.hub.hub_id)
        await carbon._accounts.look(carbon._sources.signals.now(self.hub.hub_id))


@pytest.fixture
async def clock() -> SimClock:
    return SimClock()


@pytest.fixture
async def bench(tmp_path: Path, clock: SimClock) -> AsyncIterator[Bench]:
    bench = Bench(service(tmp_path, clock), clock)
    await bench.hub._jobs.handle(ev.AgentJoined(bench.agent.hello(), 1))
    await bench.look(1)
    yield bench
    await bench.hub.close()


async def test_work_is_charged_while_it_runs_and_booked_in_intervals_that_verify(bench: Bench) -> None:
    job = await bench.start("job")
    await bench.look(30)
    before = await bench.hub.carbon.why(job.id, tenant="acme")
    assert [piece.booked for piece in before.pieces] == [False]
    for _ in range(10):
        await bench.look(30)
    after = await bench.hub.carbon.why(job.id, tenant=None)
    assert [piece.booked for piece in after.pieces] == [True, False]
    assert sum(piece.kwh for piece in after.pieces) == pytest.approx(bench.kwh(job, 330))
    assert after.pieces[0].naive_g == pytest.approx(after.pieces[0].g)
    assert after.report["total"]["estimated_share"] == 1.0  # type: ignore[index]
    assert verify_ledger(ledger_lines(bench.hub._database)).is_sound


async def test_a_short_job_between_two_looks_is_not_missed(bench: Bench) -> None:
    bench.clock.jump(5)
    job = await bench.start("short")
    bench.clock.jump(10)
    await bench.end(job)
    await bench.look(15)
    (piece,) = (await bench.hub.carbon.why(job.id, tenant=None)).pieces
    assert piece.kwh == pytest.approx(bench.kwh(job, 10))


async def test_reports_count_by_whatever_is_asked_and_for_whom(bench: Bench) -> None:
    await bench.start("one", data=("data_1", "data_2"))
    await bench.start("two")
    await bench.look(60)
    carbon = bench.hub.carbon

    async def lines(query: ReportQuery) -> dict[str, float]:
        found = (await carbon.report(query)).report["lines"]
        return {line["name"]: line["energy_kwh"] for line in found}  # type: ignore[union-attr, index, call-overload]

    by_job = await lines(ReportQuery(by=GroupBy.JOB))
    assert set(by_job) == {"", "wl_one", "wl_two"}
    assert await lines(ReportQuery(tenant="acme")) == {"acme": pytest.approx(by_job["wl_one"] + by_job["wl_two"])}
    assert await lines(ReportQuery(data="data_1")) == {"data_1": pytest.approx(by_job["wl_one"] / 2)}
    assert await lines(ReportQuery(data="data_9")) == {}
    assert await lines(ReportQuery(by=GroupBy.MONTH, month="2025-12")) == {}
    whole = await carbon.report(ReportQuery(month="2026-01"))
    assert whole.not_booked_kwh == pytest.approx(sum(by_job.values()))
    assert whole.csv.startswith("group_by,name,energy_kwh")


async def test_the_end_of_a_hub_books_what_is_open_and_a_new_life_goes_on_from_there(
    tmp_path: Path, clock: SimClock
) -> None:
    first = Bench(service(tmp_path, clock), clock)
    await first.hub._jobs.handle(ev.AgentJoined(first.agent.hello(), 1))
    await first.look(1)
    job = await first.start("job")
    await first.look(40)
    await first.hub.close()
    clock.jump(20)
    second = Bench(service(tmp_path, clock), clock)
    await second.look(10)
    pieces = (await second.hub.carbon.why(job.id, tenant=None)).pieces
    assert [piece.booked for piece in pieces] == [True, False]
    assert pieces[0].end == pieces[1].start == START + timedelta(seconds=41)
    assert pieces[1].end == START + timedelta(seconds=71)
    await second.hub.close()


async def test_each_hour_the_audit_chain_learns_where_the_ledger_ends(bench: Bench) -> None:
    await bench.look(3600)
    await settled(lambda: bool(bench.hub._database.query("SELECT 1 FROM audit WHERE kind = 'carbon.ledger'")))
    assert bench.hub._database.query("SELECT COUNT(*) FROM carbon_ledger") == [(1,)]


async def test_a_full_disk_keeps_the_interval_until_there_is_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(statements: object, drafts: object) -> asyncio.Future[None]:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(OSError("no space"))
        return failed

    with monkeypatch.context() as patch:
        patch.setattr(bench.hub._jobs, "write", full)
        with pytest.raises(OSError, match="no space"):
            await bench.look(3600)
    assert bench.hub._database.query("SELECT COUNT(*) FROM carbon_ledger") == [(0,)]
    await bench.look(30)
    assert bench.hub._database.query("SELECT COUNT(*) FROM carbon_ledger") == [(1,)]


# The wall clock is set

HOUR_S = 3600.0


async def charged(bench: Bench, job: Workload) -> float:
    return sum(piece.kwh for piece in (await bench.hub.carbon.why(job.id, tenant=None)).pieces)


def spans(bench: Bench) -> list[tuple[datetime, datetime]]:
    """What is booked: no interval may overlap another."""
    rows = ledger_rows.current_rows(bench.hub._database)
    return sorted({(row.charge.interval.start, row.charge.interval.end) for row in rows})


def assert_in_order(found: list[tuple[datetime, datetime]]) -> None:
    assert all(before[1] <= after[0] for before, after in pairwise(found))


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, 7 * HOUR_S])
async def test_a_clock_that_is_wrong_for_a_moment_charges_nothing_and_nobody_waits(bench: Bench, jump_s: float) -> None:
    first = await bench.start("first")
    await bench.look(30)
    bench.clock.set_wall(jump_s)
    second = await bench.start("second")  # begins while the clock is wrong
    await bench.look(30)
    bench.clock.jump(18)
    bench.clock.set_wall(-jump_s)
    await bench.look(12)
    third = await bench.start("third")  # and one afterwards
    await bench.look(30)
    await bench.end(first)
    for job, ran_s in ((first, 120), (second, 90), (third, 30)):
        assert await charged(bench, job) == pytest.approx(bench.kwh(job, ran_s), rel=0.02)
    for _ in range(12):
        await bench.look(30)
    assert_in_order(spans(bench))
    assert verify_ledger(ledger_lines(bench.hub._database)).is_sound


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_a_clock_that_stays_where_it_was_set_is_charged_by_the_time_that_passed(
    bench: Bench, jump_s: float
) -> None:
    job = await bench.start("job")
    await bench.look(60)
    bench.clock.set_wall(jump_s)
    for _ in range(20):  # it is believed after five minutes
        await bench.look(30)
    late = await bench.start("late")
    for _ in range(4):
        await bench.look(30)
    assert await charged(bench, job) == pytest.approx(bench.kwh(job, 780), rel=0.01)
    assert await charged(bench, late) == pytest.approx(bench.kwh(late, 120), rel=0.01)
    assert_in_order(spans(bench))
    assert verify_ledger(ledger_lines(bench.hub._database)).is_sound


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_restart_while_the_clock_is_wrong_neither_charges_twice_nor_waits(
    tmp_path: Path, clock: SimClock, jump_s: float, comes_back: bool
) -> None:
    first = Bench(service(tmp_path, clock), clock)
    await first.hub._jobs.handle(ev.AgentJoined(first.agent.hello(), 1))
    await first.look(1)
    job = await first.start("job")
    await first.look(40)
    clock.set_wall(jump_s)
    await first.look(20)
    await first.hub.close()
    clock.jump(20)
    second = Bench(service(tmp_path, clock), clock)
    await second.hub._jobs.handle(ev.AgentJoined(second.agent.hello(), 1))
    await second.look(10)
    if comes_back:
        clock.set_wall(-jump_s)
    new = await second.start("new")
    for _ in range(16):
        await second.look(30)
    assert await charged(second, job) == pytest.approx(second.kwh(job, 570), rel=0.01)
    assert await charged(second, new) == pytest.approx(second.kwh(new, 480), rel=0.01)
    assert_in_order(spans(second))
    await second.hub.close()
    third = Bench(service(tmp_path, clock), clock)  # once more, after it was settled either way
    await third.hub._jobs.handle(ev.AgentJoined(third.agent.hello(), 1))
    await third.look(30)
    again = await third.start("again")
    await third.look(30)
    assert await charged(third, job) == pytest.approx(third.kwh(job, 630), rel=0.01)
    assert await charged(third, again) == pytest.approx(third.kwh(again, 30), rel=0.05)
    assert_in_order(spans(third))
    await third.hub.close()


async def test_a_set_clock_is_said_once_and_shown_while_it_is_not_believed(bench: Bench) -> None:
    keeper = bench.hub._time

    async def kinds() -> list[str]:
        await bench.hub._jobs.write([], [])
        found = await bench.hub.events(after=0, limit=999, tenant=None, subject=None, kind="clock")
        return [event.kind for event in found]

    keeper.look()
    bench.clock.set_wall(HOUR_S)
    for _ in range(3):
        bench.clock.jump(1)
        keeper.look()
    assert await kinds() == ["clock.stepped"]
    assert "harch_clock_offset_s 3600" in bench.hub.metrics_text().decode()
    bench.clock.set_wall(-HOUR_S)
    keeper.look()
    assert await kinds() == ["clock.stepped", "clock.back"]
    assert "harch_clock_offset_s 0" in bench.hub.metrics_text().decode()
    bench.clock.set_wall(-HOUR_S)
    keeper.look()
    bench.clock.jump(301)
    keeper.look()
    assert await kinds() == ["clock.stepped", "clock.back", "clock.stepped", "clock.adopted"]


async def test_windows_and_run_times_are_of_real_time(bench: Bench) -> None:
    first = await bench.start("first")
    bench.clock.set_wall(HOUR_S)
    bench.hub._time.look()
    bench.clock.jump(301)
    bench.hub._time.look()  # believed from now on
    registry = bench.hub._jobs.machine.state.registry
    again = ev.Submitted("wl_again", "acme", first.spec)
    await bench.hub._jobs.handle(ev.TagsDue())
    assert registry.earlier_submission(again, bench.hub._jobs.context()) == first.id  # five minutes ago, not 65
    assert first.started_at is not None
    assert bench.hub._jobs.context().elapsed_s(first.started_at) == pytest.approx(301, abs=1)
