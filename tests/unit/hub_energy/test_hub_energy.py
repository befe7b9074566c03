"""A hub plans its power, follows the plan in its accounts and tells it; whatever fails, it goes on and says so."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.carbon.planning import linear
from harch.hub.energy import outlook
from harch.hub.service import HubService
from harch.testing.clock import START, SimClock
from unit.hub_energy.energy_samples import PAPER, planned, running_hub, settled, until

BUDGET = """
[hubs.dakhla]
budget_kg_per_month = 1
"""
WITH_BATTERY = """
[hubs.dakhla]
step_min = 15
budget_kg_per_month = 6000
[hubs.dakhla.battery]
energy_kwh = 100
power_kw = 50
"""
PRICED = """
[sources.operator]
type = "manual"
[[sources.operator.values]]
place = "dakhla"
signal = "price"
value = 70
unit = "USD/MWh"
since = 2025-12-31T00:00:00Z
until = 2026-12-31T00:00:00Z
"""
FLAT = """
[hubs.dakhla.tariff]
name = "flat"
currency = "USD"
fee_per_mwh = 5
[hubs.dakhla.tariff.energy]
kind = "flat"
price_per_mwh = 90
"""
SUNNY = """
[hubs.dakhla.onsite]
wind_kw = 30
"""


@pytest.fixture
async def clock() -> SimClock:
    return SimClock(START + timedelta(minutes=20))


async def first_plan(hub: HubService, clock: SimClock) -> None:
    await clock.advance(2)
    await settled(lambda: planned(hub))


async def test_without_a_file_a_hub_plans_with_a_modelled_contract_and_says_so(tmp_path: Path, clock: SimClock) -> None:
    async with running_hub(tmp_path, clock) as hub:
        with pytest.raises(HarchError) as early:
            hub.energy.plan()
        assert early.value.code == "E0801"
        await first_plan(hub, clock)
        plan, prices = hub.energy.plan(), hub.energy.prices()
        assert (plan.modelled, plan.planner, len(plan.steps)) == (True, "optimiser", 36)
        assert any("no contract is configured" in note for note in plan.notes)
        for step in plan.steps:
            supply = step.grid_kw + step.agreements_kw + step.own_kw - step.sold_kw - step.curtailed_kw
            assert supply + step.battery_kw == pytest.approx(step.load_kw + step.flexible_kw, abs=0.01)
        assert (prices.carbon_per_t, prices.carbon_basis, prices.shadow_per_t) == (80, "stated", None)
        assert prices.steps[0].total_per_mwh == pytest.approx(85 + 630 * 80 / 1000)
        assert "fixed prices" in hub.energy.bids().why_none
        assert b'harch_energy_tariff_per_mwh{currency="USD"} 85.0' in hub.metrics_text()


async def test_the_plan_is_made_anew_when_the_forecast_comes_and_when_a_step_is_over(
    tmp_path: Path, clock: SimClock
) -> None:
    async with running_hub(tmp_path, clock) as hub:
        await first_plan(hub, clock)
        await until(clock, lambda: not hub.energy.plan().notes[1:])
        assert any("grid ahead" in text and "no forecast" not in text for text in hub.energy.plan().rests_on)
        await until(clock, lambda: hub.energy.plan().steps[0].at == START + timedelta(hours=1))


async def test_steps_are_on_disk_once_and_the_month_goes_on_after_a_restart(tmp_path: Path, clock: SimClock) -> None:
    async with running_hub(tmp_path, clock, WITH_BATTERY) as hub:
        await first_plan(hub, clock)
        await until(clock, lambda: hub._database.query("SELECT COUNT(*) FROM energy_steps") == [(3,)])
        before = hub.energy._follower.past[-1]
        assert before.emitted_kg > 0
        assert before.since == START + timedelta(minutes=15)
    async with running_hub(tmp_path, clock) as hub:
        await first_plan(hub, clock)
        standing = hub.energy.plan().standing
        assert (standing.emitted_kg, standing.since) == (pytest.approx(before.emitted_kg), before.since)
        assert (standing.stored_kwh, standing.rule_stored_kwh) == (before.stored_kwh, before.rule_stored_kwh)


async def test_a_budget_that_cannot_be_kept_is_said_and_no_load_is_cut(tmp_path: Path, clock: SimClock) -> None:
    async with running_hub(tmp_path, clock, BUDGET) as hub:
        await first_plan(hub, clock)
        plan = hub.energy.plan()
        assert (plan.carbon.budget_kept, plan.carbon.over_kg > 100) == (False, True)
        assert all(step.grid_kw == pytest.approx(step.load_kw, abs=0.01) for step in plan.steps)
        assert b"harch_energy_carbon_budget_over_kg" in hub.metrics_text()


async def test_a_budget_has_a_shadow_price_that_the_prices_rest_on(tmp_path: Path, clock: SimClock) -> None:
    async with running_hub(tmp_path, clock, BUDGET) as hub:
        await first_plan(hub, clock)
        prices = hub.energy.prices()
        assert prices.shadow_per_t is not None
        assert (prices.carbon_per_t, prices.carbon_basis) == (prices.shadow_per_t, "shadow price of the budget")
        assert b'harch_energy_carbon_shadow_price_per_t{currency="USD"}' in hub.metrics_text()


async def test_a_stated_contract_is_what_the_hub_asks_for_in_its_bids_to_peers_and_a_modelled_one_is_not(
    tmp_path: Path, clock: SimClock
) -> None:
    def asked(hub: HubService) -> float | None:
        return hub._jobs.context().power.price_per_kwh

    async with running_hub(tmp_path, clock) as hub:
        await first_plan(hub, clock)
        await clock.advance(61)
        assert asked(hub) is None
    async with running_hub(tmp_path, clock, FLAT) as hub:
        await until(clock, lambda: asked(hub) is not None)
        assert asked(hub) == pytest.approx(0.095)
    async with running_hub(tmp_path, clock, carbon=PRICED) as hub:
        await until(clock, lambda: planned(hub) and asked(hub) is not None)
        await clock.advance(61)
        assert asked(hub) == pytest.approx(0.07)


async def test_without_the_solver_the_rule_plans_and_says_so(
    tmp_path: Path, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_load_highs", lambda: None)
    async with running_hub(tmp_path, clock, WITH_BATTERY, carbon=SUNNY) as hub:
        await first_plan(hub, clock)
        plan = hub.energy.plan()
        assert plan.planner == "self-consumption rule"
        assert any("HiGHS is not installed" in note for note in plan.notes)


async def test_a_solver_that_breaks_leaves_the_rule(
    tmp_path: Path, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: object, **more: object) -> None:
        raise MemoryError

    monkeypatch.setattr(outlook, "plan_within", broken)
    async with running_hub(tmp_path, clock) as hub:
        await first_plan(hub, clock)
        assert hub.energy.plan().planner == "self-consumption rule"
        assert any("MemoryError" in note for note in hub.energy.plan().notes)


async def test_what_nothing_can_supply_is_told_with_the_reason_and_the_hub_goes_on(
    tmp_path: Path, clock: SimClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_hub(tmp_path, clock, "[hubs.dakhla]\nimport_kw_max = 1\n") as hub:
        with caplog.at_level(logging.WARNING, logger="harch.hub"):
            await clock.advance(2)
            await settled(lambda: any("planning energy" in record.message for record in caplog.records))
        with pytest.raises(HarchError) as refused:
            hub.energy.plan()
        assert (refused.value.code, "import_kw_max" in refused.value.hint) == ("E0340", True)
        assert hub.ready() == ""


async def test_a_file_with_mistakes_or_for_another_fleet_is_refused_at_the_start(
    tmp_path: Path, clock: SimClock
) -> None:
    for text, words in (("[hubs.atlantis]\n", "no such hub"), ("[hubs.dakhla]\nstep_min = 7\n", "step_min")):
        with pytest.raises(HarchError, match=words) as refused:
            async with running_hub(tmp_path, clock, text):
                pass
        assert refused.value.code == "E0243"


async def test_prices_that_nobody_knows_are_assumed_and_nothing_is_bid_on_them(tmp_path: Path) -> None:
    clock = SimClock(START + timedelta(hours=12))
    text = PAPER.replace('prices = "modelled"', "")
    async with running_hub(tmp_path, clock, text) as hub:
        await first_plan(hub, clock)
        assert any("100 EUR/MWh assumed, nothing is bid" in note for note in hub.energy.plan().notes)
        await clock.advance(600)
        assert hub.energy.bids().items == ()
        assert (await hub.energy.book(30)).total == 0


async def test_a_file_of_prices_that_is_not_there_costs_a_log_line_and_not_the_plan(
    tmp_path: Path, clock: SimClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="harch.hub"):
        async with running_hub(tmp_path, clock, PAPER.replace('"modelled"', '"prices.csv"')) as hub:
            await first_plan(hub, clock)
            assert any("nothing is bid" in note for note in hub.energy.plan().notes)
    assert any("prices.csv: cannot be read" in record.message for record in caplog.records)


@pytest.mark.parametrize("price", ["nan", "inf", "", "dear"])
async def test_prices_that_are_none_are_gaps(tmp_path: Path, clock: SimClock, price: str) -> None:
    (tmp_path / "prices.csv").write_text(f"time,per_mwh\n2026-01-01T00:00Z,{price}\n2026-01-01T05:00Z,70\n")
    text = PAPER.replace('"modelled"', '"prices.csv"')
    async with running_hub(tmp_path, clock, text) as hub:
        await first_plan(hub, clock)
        plan = hub.energy.plan()
        assert (plan.steps[0].per_mwh, plan.steps[5].per_mwh) == (100, 70)
        assert any("steps have no price of ES" in note for note in plan.notes)
        assert hub.energy.bids().items == ()
