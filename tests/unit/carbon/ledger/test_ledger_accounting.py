"""Every kWh of the meter is charged once, to who held the power or to nobody by name."""

from __future__ import annotations

from datetime import timedelta
from math import fsum

import pytest

from harch.base.errors import InvariantBroken
from harch.carbon.ledger.accounting import account
from harch.carbon.ledger.charge import Activity, Interval, intervals
from harch.carbon.ledger.meter import HOST_IDLE_SHARE, IDLE_SHARE, HeldDevices
from unit.carbon.ledger.charges import HOUR, START, charges_of, energy, factors, hour, job


def test_a_job_is_charged_its_it_energy_times_the_pue() -> None:
    train, rest = charges_of([job(it_kwh=10)])
    assert train.energy.kwh == pytest.approx(12.5)
    assert rest.energy.kwh == pytest.approx(87.5)
    assert (rest.job, rest.activity) == ("", Activity.UNALLOCATED)


def test_what_the_meter_shows_beyond_the_jobs_is_shown_and_not_spread_over_them() -> None:
    alone, rest = charges_of([job(it_kwh=1)], of=energy(1000))
    assert alone.energy.kwh == pytest.approx(1.25)
    assert rest.energy.kwh == pytest.approx(998.75)


def test_pieces_that_exceed_the_meter_shrink_alike_and_say_so() -> None:
    one, two, rest = charges_of([job("one", 120), job("two", 40)], of=energy(100))
    assert one.energy.kwh == pytest.approx(75)
    assert two.energy.kwh == pytest.approx(25)
    assert rest.energy.kwh == pytest.approx(0, abs=1e-9)
    assert "times 0.5 to fit" in one.method


def test_own_power_is_shared_in_proportion_to_energy() -> None:
    one, two, rest = charges_of([job("one", 40), job("two", 20)], of=energy(100, onsite=50))
    assert one.supply.onsite_kwh == pytest.approx(25)
    assert two.supply.onsite_kwh == pytest.approx(12.5)
    assert rest.supply.onsite_kwh == pytest.approx(12.5)


def test_surplus_earns_no_credit() -> None:
    (rest,) = charges_of([], of=energy(10, onsite=10, made=500))
    assert rest.supply.kwh == pytest.approx(10)
    assert rest.grams.location == 0
    assert rest.grams.onsite == pytest.approx(200)


def test_more_own_power_than_was_used_cannot_be_charged() -> None:
    with pytest.raises(ValueError, match="surplus"):
        energy(10, onsite=11, made=500)


def test_grams_by_location_ignore_contracts_and_grams_by_contract_do_not() -> None:
    (rest,) = account(hour(), "dakhla", energy(100, onsite=20, ppa=30, loss=0.1), [], factors())
    assert rest.grams.location == pytest.approx(80 * 600 * 1.1)
    assert rest.grams.market == pytest.approx((50 * 650 + 30 * 11) * 1.1)
    assert rest.grams.onsite == pytest.approx(20 * 20)  # nothing is lost on the way from the roof


def test_a_suspended_job_that_kept_its_gpus_is_charged_for_them() -> None:
    held, _ = charges_of([job(it_kwh=2, holding=2)])
    assert held.activity is Activity.HOLDING
    assert held.energy.kwh == pytest.approx(2.5)


def test_the_same_job_twice_in_an_interval_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="one charge per job"):
        charges_of([job(), job()])


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_energy_that_cannot_be_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        job(it_kwh=number)
    with pytest.raises(ValueError, match="at least 0"):
        energy(number)


def test_a_hub_without_power_charges_nothing() -> None:
    assert fsum(charge.energy.kwh for charge in charges_of([job()], of=energy(0))) == 0


def test_intervals_are_cut_at_full_hours() -> None:
    start, end = START + timedelta(minutes=50), START + timedelta(hours=2, minutes=10)
    found = [(one.start.minute, one.duration) for one in intervals(start, end)]
    assert found == [(50, timedelta(minutes=10)), (0, HOUR), (0, timedelta(minutes=10))]


def test_an_interval_never_crosses_a_full_hour_and_so_no_month() -> None:
    with pytest.raises(ValueError, match="within one hour"):
        Interval(START - timedelta(minutes=1), START + timedelta(minutes=1))
    with pytest.raises(ValueError, match="whole second"):
        Interval(START, START + timedelta(microseconds=5))


def test_idle_gpus_take_less_than_running_ones() -> None:
    held = HeldDevices(gpu_power_w=2800, host_power_w=1200)
    assert held.running_it_kwh(HOUR) == pytest.approx(4.0)
    assert held.idle_it_kwh(HOUR) == pytest.approx(2.8 * IDLE_SHARE + 1.2 * HOST_IDLE_SHARE)
