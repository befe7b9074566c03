"""A hub plans by itself: with figures that are wrong, old or missing, work starts in time and says on what it rests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from harch.base.errors import HarchError
from harch.hub.carbon.budgets import SharedBudgets, received_spent
from harch.hub.carbon.signals import CARBON, CARBON_AHEAD, CARBON_FILE_NAME, CARBON_PLAN, CARBON_SPENT
from harch.hub.jobs.carbon_plan import HubPlan
from harch.hub.service import build_hub
from harch.testing.clock import START, SimClock
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import CarbonPreferences, Resources, WorkloadSpec

NIGHT = START + timedelta(hours=3)
PLANTS = """
[hubs.dakhla.onsite]
pv_kw_peak = 500
[hubs.dakhla]
transmission_loss = 0.1
"""
TABLE = """
[sources.table]
type = "csv"
path = "grid.csv"
time = "utc"
[sources.table.values]
grid-average-lifecycle = { column = "g", unit = "UNIT" }
"""
SLACK = CarbonPreferences(slack_s=12 * 3600, duration_s=3600)


async def settled(done: Callable[[], bool]) -> None:
    """Threads and the disk take real time, though the clock stands still."""
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.005)


class Running:
    """A hub that runs all its loops on a clock of the test's."""

    def __init__(self, folder: Path, clock: SimClock) -> None:
        fleet = tiny_fleet()
        self.clock, self.folder = clock, folder
        self.hub = build_hub(
            fleet=fleet,
            hub=fleet.hubs[0],
            state_dir=folder,
            clock=clock,
            version="1",
            url="http://hub",
            peer_urls={},
            on_broken=lambda broken: None,
        )
        self.task = asyncio.create_task(self.hub.run())
        self.count = 0

    @property
    def memory(self):  # type: ignore[no-untyped-def]
        return self.hub._jobs.machine.state.carbon

    @property
    def plan(self) -> HubPlan:
        assert self.memory.plan is not None
        return self.memory.plan

    async def first_plan(self) -> None:
        await self.clock.advance(1.0)
        await settled(lambda: self.memory.plan is not None)

    async def next_plan(self, advance_s: float = 600.0) -> None:
        """Goes on by so much, in steps that a plan's thread can follow."""
        before = self.memory.plan
        for _ in range(int(advance_s // 600)):
            self.clock.jump(600.0)
            await asyncio.sleep(0.02)
        async with asyncio.timeout(20):
            while self.memory.plan is before:  # the planner may have been waiting for the disk, not for the clock
                self.clock.jump(10.0)
                await asyncio.sleep(0.01)

    async def submit(self, wishes: CarbonPreferences = SLACK, gpus: int = 8, tenant: str = "t") -> Workload:
        self.count += 1
        spec = WorkloadSpec(
            name=f"job-{self.count}",
            modelled_duration_s=3600,
            resources=Resources(gpus=gpus, gpu_model="h100-80gb"),
            carbon=wishes,
        )
        workload, _ = await self.hub.submit(spec, tenant=tenant, annotations={}, idempotency_key=None)
        return workload

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.hub.close()


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Callable[..., Running]]:
    opened: list[Running] = []

    def start(text: str = PLANTS, clock: SimClock | None = None) -> Running:
        (tmp_path / CARBON_FILE_NAME).write_text(text)
        opened.append(Running(tmp_path, clock or SimClock(NIGHT)))
        return opened[-1]

    yield start
    for one in opened:
        if not one.task.done():
            await one.close()


async def test_at_night_work_is_held_for_the_sun_and_its_story_says_on_what_that_rests(
    started: Callable[..., Running],
) -> None:
    run = started()
    await run.first_plan()
    job = await run.submit()
    choice = job.carbon
    assert choice is not None
    assert choice.held
    assert choice.start_at is not None
    assert 8 <= choice.start_at.hour <= 14  # when the panels have power to spare
    assert choice.start_by == job.created_at + timedelta(hours=12)
    story = await run.hub.why(job.id, tenant=None)
    assert "held back for cleaner power" in story.sentence
    told = await run.hub.carbon.why(job.id, tenant=None)
    text = "\n".join(told.plan)
    assert "starts by 2026-01-01 15:" in text
    assert "at home at once" in text
    assert "estimated, modelled" in text
    assert "by location" in text
    assert "read " in text
    assert CARBON_PLAN in run.hub.carbon.published()


@pytest.mark.parametrize("step_s", [3600, 900])
async def test_a_plan_of_any_step_knows_true_powers_and_energies(started: Callable[..., Running], step_s: int) -> None:
    run = started(f"{PLANTS}[planning]\nstep_s = {step_s}\n")
    await run.first_plan()
    outlook = run.plan.book.outlook
    assert outlook.step_h == step_s / 3600
    assert {pool.kw_per_gpu for pool in outlook.pools if pool.model == "h100-80gb"} == {10.2 / 8}
    choice = (await run.submit()).carbon
    assert choice is not None
    assert choice.chosen is not None
    assert choice.chosen.kwh == pytest.approx(10.2 * 1.2)  # a node for an hour, with the hub's PUE


async def test_the_promise_is_kept_by_a_hub_that_was_restarted_and_whose_planner_is_broken(
    started: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = started()
    await run.first_plan()
    job = await run.submit()
    await run.close()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a plan that cannot be made")

    monkeypatch.setattr("harch.hub.carbon.planner.make_plan", broken)
    again = started(clock=SimClock(NIGHT + timedelta(hours=2)))
    await again.clock.advance(30.0)
    await settled(lambda: "carbon planning failed" in caplog.text)
    kept = again.hub._jobs.machine.state.registry.workloads[job.id]
    assert kept.carbon is not None
    assert kept.carbon.held
    assert job.carbon is not None
    assert job.carbon.start_by is not None
    while kept.id in again.memory.held:
        assert again.clock.now() < job.carbon.start_by
        again.clock.jump(600.0)
        await asyncio.sleep(0.01)
    assert again.clock.now() <= job.carbon.start_by
    assert kept.id in again.hub._jobs.machine.state.scheduler.queue


async def test_new_plans_come_every_few_minutes_and_soon_after_a_great_change(started: Callable[..., Running]) -> None:
    run = started()
    await run.first_plan()
    await settled(lambda: CARBON_AHEAD in run.hub.carbon.published())
    planner = run.hub.carbon.planner
    await planner.plan()
    assert not planner.is_due()
    was = planner._planned_with["dakhla"]
    for g_per_kwh, due in ((was * 1.1, False), (was * 1.5, True), (was * 0.6, True)):
        planner._planned_with["dakhla"] = g_per_kwh
        assert planner.is_due() is due
    planner._planned_with.clear()  # as if the hub had been heard for the first time
    assert planner.is_due()
    await planner.plan()
    assert not planner.is_due()
    await run.next_plan(600.0)


@pytest.mark.parametrize(
    ("unit", "rows", "why"),
    [
        ("g/kWh", ["nan"] * 5, "no number"),
        ("g/kWh", ["-50"] * 5, "negative"),
        ("lbs/MWh", ["1388"] * 5, "another unit, declared"),
        ("g/kWh", ["99999"] * 5, "beyond what is physical"),
        ("g/kWh", ["6300"] * 5, "ten times the truth"),
        ("g/kWh", ["", "", "", "", ""], "no value at all"),
    ],
)
async def test_bad_figures_are_not_planned_with_and_the_plan_says_what_it_used(
    started: Callable[..., Running], tmp_path: Path, unit: str, rows: list[str], why: str
) -> None:
    times = [(NIGHT - timedelta(minutes=5 * back)).isoformat() for back in range(len(rows))]
    (tmp_path / "grid.csv").write_text("utc,g\n" + "".join(f"{at},{g}\n" for at, g in zip(times, rows, strict=True)))
    run = started(TABLE.replace("UNIT", unit) + PLANTS)
    await run.first_plan()
    job = await run.submit()
    assert job.carbon is not None, why
    assert job.carbon.chosen is not None
    assert job.carbon.at_once is not None
    g_per_kwh = job.carbon.at_once.grams / job.carbon.at_once.kwh
    assert g_per_kwh == pytest.approx(630 * 1.1, rel=0.01)  # the yearly mean, or what was meant, with losses
    assert ("modelled" in job.carbon.at_once.rests_on) is (unit == "g/kWh")
    assert job.carbon.start_by is not None


async def test_a_source_that_is_silent_for_a_day_leaves_decisions_to_the_model_and_says_so(
    started: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "grid.csv").write_text(f"utc,g\n{NIGHT.isoformat()},200\n")
    run = started(TABLE.replace("UNIT", "g/kWh") + PLANTS)
    await run.first_plan()
    fresh = (await run.submit()).carbon
    (tmp_path / "grid.csv").unlink()
    await run.next_plan(4 * 3600)
    late = (await run.submit()).carbon
    for choice, source, g_per_kwh in ((fresh, "table", 200), (late, "modelled", 630)):
        assert choice is not None
        assert choice.at_once is not None
        assert source in choice.at_once.rests_on
        assert f"{g_per_kwh} g/kWh now" in choice.at_once.rests_on


async def test_what_a_peer_says_of_itself_is_believed_only_if_it_can_be_true(started: Callable[..., Running]) -> None:
    run = started()
    await run.first_plan()
    carbon = run.hub.carbon
    await settled(lambda: CARBON_AHEAD in carbon.published())
    honest = msgspec.msgpack.decode(carbon.published()[CARBON])
    for lie in (
        {"onsite_kw": float("nan")},
        {"onsite_kw": -5.0},
        {"load_kw": 1e30},
        {"at": honest["at"], "figures": []},
    ):
        said = msgspec.msgpack.encode({**honest, "hub_id": "dakar", **lie})
        carbon._received = lambda key, said=said: {"dakar": said} if key == CARBON else {}
        await run.hub.carbon.planner.plan()
        assert set(run.plan.basis) == {"dakhla"}


async def test_budgets_of_the_carbon_file_are_counted_from_the_ledger(started: Callable[..., Running]) -> None:
    run = started(PLANTS + "[budgets.tenants]\nsmall = 5\n")
    await run.first_plan()
    assert run.plan.tenant_g_left == {"small": 5000.0}
    with pytest.raises(HarchError, match="carbon budget") as raised:
        await run.submit(CarbonPreferences(), tenant="small")
    assert raised.value.code == "E0402"
    assert (await run.submit(CarbonPreferences(), gpus=1, tenant="small")).carbon is not None
    assert (await run.submit(CarbonPreferences(), tenant="other")).carbon is None
    await run.hub.carbon.planner.plan()
    assert 0 < run.plan.tenant_g_left["small"] < 5000.0


@pytest.mark.parametrize("shared", [True, False])
async def test_what_a_tenant_spent_at_other_hubs_is_gone_here_too(
    started: Callable[..., Running], shared: bool
) -> None:
    run = started(PLANTS + f"[budgets]\nshared = {str(shared).lower()}\n[budgets.tenants]\nroaming = 1000\n")
    said = SharedBudgets(tiny_fleet().name).published("2026-01", {"roaming": 999_990.0})
    run.hub.carbon._received = lambda key: {"dakar": said} if key == CARBON_SPENT else {}
    await run.first_plan()
    if not shared:
        assert (await run.submit(tenant="roaming")).carbon is not None
        assert CARBON_SPENT not in run.hub.carbon.published()
        return
    with pytest.raises(HarchError, match="carbon budget") as raised:
        await run.submit(tenant="roaming")
    assert raised.value.code == "E0402"
    run.hub.carbon.planner.publish_spent()
    told = received_spent(run.hub.carbon.published()[CARBON_SPENT])
    assert told is not None
    assert (told.month, list(told.grams.values())) == ("2026-01", [0.0])  # nothing was spent here


async def test_a_hub_without_a_carbon_file_plans_too(started: Callable[..., Running], tmp_path: Path) -> None:
    run = started("")
    await run.first_plan()
    job = await run.submit()
    assert job.carbon is not None
    assert not job.carbon.held  # a yearly mean tells no hour from another
