"""Savings are against the same job at its home hub, started at once, with the same renewables; never a fixed number."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harch.carbon.ledger.accounting import AS_IT_RAN, HELD, MODELLED, HomeConditions, account, conditions_of
from harch.carbon.ledger.charge import Factors
from harch.carbon.ledger.report import totals
from harch.carbon.values import EmissionScope, Evidence, Method
from unit.carbon.ledger.charges import HOUR, START, booked_hours, charges_of, energy, factors, hour, job

NIGHT = HomeConditions(
    own_load_kwh=90,
    onsite_available_kwh=0,
    ppa_share=0,
    pue=1.5,
    transmission_loss=0,
    factors=factors(grid=511.6, residual=511.6),
)


def test_a_job_that_ran_at_home_at_once_has_saved_nothing() -> None:
    train, _ = charges_of([job(submitted_at=START)], of=energy(100, onsite=30, ppa=20))
    assert train.naive is not None
    assert train.naive.method == AS_IT_RAN
    assert train.naive_footprint == train.footprint


def test_a_job_that_waited_is_compared_with_its_home_hub_as_it_was_then() -> None:
    train, _ = charges_of([job(it_kwh=10, submitted_at=START - 6 * HOUR, conditions=NIGHT)], of=energy(100, onsite=100))
    naive = train.naive
    assert naive is not None
    assert (naive.method, naive.evidence) == (MODELLED, Evidence.ESTIMATED)
    assert naive.start == START - 6 * HOUR
    assert naive.supply.grid_kwh == pytest.approx(15)  # the same work at that PUE
    assert naive.grams.location == pytest.approx(15 * 511.6)
    assert naive.grid.g_per_kwh == 511.6


def test_each_hour_of_a_job_is_compared_with_the_same_hour_of_the_naive_run() -> None:
    train, _ = charges_of([job(submitted_at=START - 6 * HOUR, ran_s_before=2 * 3600, conditions=NIGHT)])
    assert train.naive is not None
    assert train.naive.start == START - 4 * HOUR


def test_the_naive_run_owns_the_same_renewables() -> None:
    """It shares them with the home hub's other work: 120 kWh for 105 kWh of load cover it, half of that covers half."""
    sunny, cloudy = (
        HomeConditions(
            own_load_kwh=90,
            onsite_available_kwh=made,
            ppa_share=0,
            pue=1.5,
            transmission_loss=0,
            factors=factors(),
        )
        for made in (120.0, 52.5)
    )
    (all_green, _), (half, _) = (
        charges_of([job(it_kwh=10, submitted_at=START - HOUR, conditions=found)]) for found in (sunny, cloudy)
    )
    assert all_green.naive is not None
    assert half.naive is not None
    assert all_green.naive.supply.grid_kwh == pytest.approx(0)
    assert half.naive.supply.onsite_kwh == pytest.approx(7.5)


def test_without_knowledge_of_the_home_hub_there_is_no_counterfactual_and_a_reason() -> None:
    train, _ = charges_of([job(home="dakar")])
    assert train.naive is None
    assert train.naive_missing == "the conditions at dakar at 2026-03-01T00:00Z are not known"


def test_conditions_of_another_kind_give_no_counterfactual() -> None:
    direct: Factors = factors(scope=EmissionScope.DIRECT)
    conditions = HomeConditions(
        own_load_kwh=1, onsite_available_kwh=0, ppa_share=0, pue=1, transmission_loss=0, factors=direct
    )
    train, _ = charges_of([job(home="dakar", conditions=conditions)])
    assert train.naive is None
    assert "differ in kind" in train.naive_missing


def test_power_held_while_suspended_counts_against_the_saving() -> None:
    train, _ = charges_of([job(it_kwh=2, holding=2, submitted_at=START - HOUR)])
    assert train.naive is not None
    assert train.naive.method == HELD
    assert train.naive.grams.location == 0
    mixed, _ = charges_of([job(it_kwh=10, holding=4)])
    assert mixed.naive is not None
    assert mixed.naive.grams.location == pytest.approx(0.6 * mixed.grams.location)


def test_the_home_hubs_conditions_come_from_its_own_ledger_without_guests_and_without_the_job() -> None:
    charges = account(
        hour(),
        "dakhla",
        energy(100, onsite=40, made=70, ppa=30),
        [job("own", 16), job("guest", 24, home="dakar"), job("asked", 8)],
        factors(),
    )
    found = conditions_of(charges, job="asked", duration=timedelta(minutes=30))
    assert found.own_load_kwh == pytest.approx((100 - 30 - 10) / 2)
    assert found.onsite_available_kwh == pytest.approx(35)
    assert found.ppa_share == pytest.approx(0.5)


def test_only_rows_with_a_counterfactual_enter_the_saving() -> None:
    rows, _ = booked_hours(1, [job("known", submitted_at=START - HOUR, conditions=NIGHT), job("unknown", home="dakar")])
    saved = totals(linked.row for linked in rows).saved
    assert saved is not None
    assert saved.compared.kwh == pytest.approx(12.5)
    assert saved.by(Method.LOCATION).g == pytest.approx(15 * 511.6 - 12.5 * 600)
    assert saved.estimated
