"""What a hub expects of the next hours: its usual load, its plants, its contract, its budget; and what stands in."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.sources.modelled import modelled
from harch.energy.procurement.period_balance import PeriodBalance
from harch.energy.procurement.plan import PlanFailure
from harch.energy.procurement.planner import plan_procurement
from harch.energy.site import EnergySite, Flexibility, Plant
from harch.energy.site_file import modelled_site, parse_sites
from harch.energy.steps import Steps
from harch.energy.tariffs.terms import SpotPrice
from harch.hub.energy.following import Follower
from harch.hub.energy.outlook import (
    Account,
    Expected,
    Known,
    Planned,
    StepRecord,
    budget_until,
    expected_problem,
    month_end,
    peaks_kw,
    plan_ahead,
    steps_ahead,
)
from harch.hub.energy.service import plants_ahead
from harch.testing.clock import START
from unit.hub_energy.energy_samples import PAPER

SITE = modelled_site()
NOON = START + timedelta(hours=12, minutes=10)


def record(at: datetime, *, load_kwh: float = 10.0, bought_kwh: float = 10.0, **more: object) -> StepRecord:
    values: dict[str, object] = {
        "at": at,
        "step_s": 3600,
        "load_kwh": load_kwh,
        "own_kwh": 0.0,
        "import_kwh": bought_kwh,
        "agreements_kwh": 0.0,
        "charge_kwh": 0.0,
        "discharge_kwh": 0.0,
        "stored_kwh": 0.0,
        "rule_stored_kwh": 0.0,
        "grid_g_per_kwh": 500.0,
        "per_mwh": None,
        "since": START,
        "emitted_kg": 5.0,
        "rule_emitted_kg": 6.0,
        "planner": "optimiser",
    }
    return StepRecord(**{**values, **more})  # type: ignore[arg-type]


def expected(site: EnergySite = SITE, **known: object) -> Expected:
    facts = Known(**{"now": NOON, "load_kw": 20.0, "own_kw": 0.0, "g_per_kwh": 400.0, **known})  # type: ignore[arg-type]
    return expected_problem(site, facts, import_kw_max=100.0, plants_kwh={}, stored_kwh=0.0, budget_kg=None)


def test_without_a_past_the_load_stays_as_it_is() -> None:
    problem = expected().problem
    assert problem.load_kwh.tolist() == pytest.approx([20.0] * 36)


def test_the_usual_load_of_the_hour_is_expected_and_a_deviation_fades() -> None:
    past = [record(START - timedelta(hours=n), load_kwh=10 if (-n) % 24 < 12 else 30) for n in range(1, 169)]
    load = expected(past=past).problem.load_kwh
    assert load[0] == pytest.approx(20)  # what is drawn now, though 30 is usual
    assert load[11] == pytest.approx(30 - 10 * np.exp(-11 / 12))
    assert load[12] == pytest.approx(10 - 10 * np.exp(-1))


def test_own_plants_and_grid_are_as_foretold_and_gaps_are_said() -> None:
    hours = {START + timedelta(hours=13 + n): 100.0 + n for n in range(40)}
    known = expected(own_kw=7.0, own_kw_ahead={START + timedelta(hours=14): 9.0}, g_per_kwh_ahead=hours)
    assert known.problem.own_kwh[:3].tolist() == [7, 0, 9]
    assert known.problem.grid_g_per_kwh[:3].tolist() == [400, 100, 101]
    assert known.notes == ()
    blind = expected(g_per_kwh=None)
    assert blind.problem.grid_g_per_kwh[0] == 500
    assert "500 g/kWh assumed" in blind.notes[0]


def test_load_that_may_wait_is_taken_out_of_the_rest_and_used_up_within_its_hours() -> None:
    site = replace(SITE, flexible=(Flexibility(name="batch", share=0.5, within_h=10, power_kw_max=40),))
    problem = expected(site).problem
    assert problem.load_kwh[:12].tolist() == pytest.approx([10.0] * 10 + [20.0] * 2)
    plan = plan_procurement(problem)
    assert not isinstance(plan, PlanFailure)
    assert plan.flexible_kwh["batch"].sum() == pytest.approx(100)
    assert plan.flexible_kwh["batch"][5:10].sum() == pytest.approx(0)  # from 17:00 on power is dear


def test_peaks_of_the_local_month_are_remembered() -> None:
    past = [record(START - timedelta(hours=1), bought_kwh=99), record(START, bought_kwh=12), record(NOON, bought_kwh=8)]
    assert peaks_kw(SITE, past) == {"2025-12": 99, "2026-01": 12}


def test_a_budget_is_spent_in_step_with_the_month() -> None:
    half = START + timedelta(days=15.5)
    assert budget_until(half, 310.0, since=START, emitted_kg=100.0) == pytest.approx(155 - 100)
    over_the_end = budget_until(START + timedelta(days=45), 310.0, since=half, emitted_kg=0.0)
    assert over_the_end == pytest.approx(155 + 310 * 14 / 28)
    assert month_end(half) == START + timedelta(days=31)


def test_a_plant_elsewhere_is_modelled_where_it_stands() -> None:
    site = SignalSite(hub="dakhla", country="MA", grid_zone="MA", latitude=23.7, longitude=-15.9, pue=1.2)
    plant = Plant(pv_kw_peak=0.0, wind_kw=100.0, wind_capacity_factor=0.4, latitude=None, longitude=None)
    dark = Plant(pv_kw_peak=100.0, wind_kw=0.0, wind_capacity_factor=None, latitude=0.0, longitude=180.0)
    found = plants_ahead({"wind": plant, "dark": dark}, site, modelled(), Steps(START, 1800, 48))
    assert found["wind"].tolist() == pytest.approx([20.0] * 48)
    assert found["dark"][24] == 0  # noon at Greenwich is midnight there
    assert found["dark"][0] > 10


def planned_at(now: datetime, follower: Follower, site: EnergySite) -> Planned:
    known = Known(now=now, load_kw=20.0, own_kw=0.0, g_per_kwh=400.0, past=follower.past)
    return plan_ahead(site, known, follower.account(now, None), import_kw_max=100.0, plants_kwh={})


def look(follower: Follower, now: datetime, plan: Planned | None, *, load_kw: float = 20.0) -> StepRecord | None:
    return follower.note(now, load_kw=load_kw, own_kw=0.0, g_per_kwh=400.0, per_mwh=None, stored_kwh=None, plan=plan)


def test_a_step_is_accounted_for_as_it_came_and_a_clock_set_back_changes_nothing() -> None:
    follower = Follower(SITE, [])
    plan = planned_at(NOON, follower, SITE)
    assert look(follower, NOON, plan) is None
    assert look(follower, NOON + timedelta(minutes=20), plan, load_kw=40.0) is None
    assert look(follower, NOON - timedelta(hours=5), plan) is None
    made = look(follower, NOON + timedelta(hours=1), plan)
    assert made is not None
    assert (made.load_kwh, made.import_kwh, made.emitted_kg) == pytest.approx((30.0, 30.0, 12.0))
    assert (made.rule_emitted_kg, made.since) == (pytest.approx(12.0), START + timedelta(hours=12))


def test_a_new_month_begins_even() -> None:
    follower = Follower(SITE, [record(START - timedelta(hours=1), emitted_kg=5.0, rule_emitted_kg=6.0)])
    assert follower.account(START - timedelta(minutes=1), None).standing.saved_kg == 1.0
    fresh = follower.account(NOON, None)
    assert (fresh.standing.saved_kg, fresh.since) == (0.0, START + timedelta(hours=12))


def test_a_month_that_is_over_its_budget_says_so_with_what_was_emitted_before() -> None:
    site = replace(SITE, budget_kg_per_month=1000.0)
    account = Account(
        since=START, standing=PeriodBalance(stored_kwh=0, rule_stored_kwh=0, emitted_kg=900, rule_emitted_kg=900)
    )
    known = Known(now=NOON, load_kw=20.0, own_kw=0.0, g_per_kwh=400.0)
    made = plan_ahead(site, known, account, import_kw_max=100.0, plants_kwh={})
    assert made.plan.carbon.budget_kg == pytest.approx(1000 * 48 / (31 * 24) - 900)
    assert not made.plan.carbon.budget_kept
    assert made.plan.carbon.over_kg == pytest.approx(20 * 36 * 0.4 - made.plan.carbon.budget_kg)


def test_with_spot_prices_plans_reach_to_the_end_of_the_next_market_day() -> None:
    assert steps_ahead(SITE, NOON).count == 36
    assert steps_ahead(replace(SITE, step_s=900), NOON).count == 144
    spot = parse_sites(PAPER)["dakhla"]
    for hour in range(24):
        now = START + timedelta(hours=hour)
        assert isinstance(spot.tariff.energy, SpotPrice)
        assert steps_ahead(spot, now).end >= spot.tariff.energy.known_until(now) + timedelta(days=1)
