"""The naive choice is compared with what its home hub was like, and with nothing where that is not known."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from harch.carbon.ledger.accounting import Allocation, HubEnergyUse, account
from harch.carbon.ledger.charge import Charge, Interval
from harch.carbon.ledger.meter import observed_factors
from harch.carbon.values import Evidence, Signal
from harch.hub.carbon.accounts import OwnPast, is_deferred, published_conditions, with_home
from harch.hub.carbon.signals import hub_power
from harch.testing.clock import START
from harch.testing.samples import tiny_fleet
from harch.wire.carbon import HubPower
from unit.hub_carbon.power_samples import signals, state

HOUR = timedelta(hours=1)
INTERVAL = Interval(START, START + HOUR)
NOTHING_BOOKED = OwnPast(lambda start, end: (), HOUR)
FIGURES = (
    state(Signal.GRID_AVERAGE_LIFECYCLE, 500),
    state(Signal.PV_POWER, 30),
    state(Signal.ONSITE_LIFECYCLE, 20),
    state(Signal.PUE, 1.4),
)


def said(*readings: object) -> HubPower:
    return hub_power(tiny_fleet().hubs[1], "SN", signals(*readings), load_kw=10)  # type: ignore[arg-type]


def allocation(home: str, *, waited: timedelta = timedelta(0)) -> Allocation:
    return Allocation(
        job="wl_1",
        tenant="acme",
        home=home,
        submitted_at=START - waited,
        it_kwh=1.0,
        evidence=Evidence.ESTIMATED,
        method="m",
    )


def test_what_a_peer_says_of_itself_is_what_a_guest_would_have_met_at_home() -> None:
    published = {"dakar": said(*FIGURES)}
    borrowed = with_home(allocation("dakar"), INTERVAL, "dakhla", published=published, past=NOTHING_BOOKED)
    found = borrowed.home_conditions
    assert found is not None
    assert (found.pue, found.onsite_available_kwh, found.own_load_kwh) == (1.4, 30, 14)
    assert (found.factors.grid.g_per_kwh, found.factors.onsite.g_per_kwh) == (500, 20)
    assert "average used" in found.factors.residual.note


def test_old_words_unknown_grids_and_silent_homes_give_no_conditions() -> None:
    late = allocation("dakar", waited=3 * HOUR)
    assert (
        with_home(late, INTERVAL, "dakhla", published={"dakar": said(*FIGURES)}, past=NOTHING_BOOKED).home_conditions
        is None
    )
    assert with_home(allocation("dakar"), INTERVAL, "dakhla", published={}, past=NOTHING_BOOKED).home_conditions is None
    assert published_conditions(said(), HOUR) is None


def test_work_that_started_at_once_at_home_needs_none() -> None:
    assert not is_deferred(allocation("dakhla"), INTERVAL)
    assert is_deferred(allocation("dakhla", waited=HOUR), INTERVAL)
    assert (
        with_home(allocation("dakhla"), INTERVAL, "dakhla", published={}, past=NOTHING_BOOKED).home_conditions is None
    )


def test_deferred_work_is_compared_with_the_hour_in_which_it_would_have_run_here() -> None:
    earlier = Interval(START - 3 * HOUR, START - 2 * HOUR)
    sample = signals(state(Signal.GRID_AVERAGE_LIFECYCLE, 800, at=earlier.start), at=earlier.start)
    energy = HubEnergyUse(kwh=50, pue=1.2, evidence=Evidence.ESTIMATED, method="m")
    charges = account(earlier, "dakhla", energy, [], observed_factors(earlier, [sample]))
    asked: list[datetime] = []

    def read(start: datetime, end: datetime) -> list[Charge]:
        asked.append(start)
        return [charge for charge in charges if start <= charge.interval.start < end]

    past = OwnPast(read, HOUR)
    for job in ("wl_1", "wl_2"):
        late = replace(allocation("dakhla", waited=2.5 * HOUR), job=job)
        found = with_home(late, INTERVAL, "dakhla", published={}, past=past).home_conditions
        assert found is not None
        assert (found.factors.grid.g_per_kwh, found.own_load_kwh, found.pue) == (800, 50, 1.2)
    assert asked == [earlier.start]  # once for all jobs of that hour
    never = allocation("dakhla", waited=50 * HOUR)
    assert with_home(never, INTERVAL, "dakhla", published={}, past=past).home_conditions is None
