"""The naive choice is compared with what its home hub was like, and with nothing where that is not known."""

from __future__ import annotations

from datetime import timedelta

from harch.carbon.ledger.accounting import Allocation
from harch.carbon.ledger.charge import Interval
from harch.carbon.values import Evidence, Signal
from harch.hub.carbon.conditions import conditions_said, is_deferred, with_home
from harch.hub.carbon.present import hub_power
from harch.hub.carbon.views import HubPower
from harch.testing.clock import START
from harch.testing.fleets import tiny_fleet
from unit.hub_carbon.power_samples import signals, state

HOUR = timedelta(hours=1)
INTERVAL = Interval(START, START + HOUR)
FIGURES = (
    state(Signal.GRID_AVERAGE_LIFECYCLE, 500),
    state(Signal.PV_POWER, 30),
    state(Signal.ONSITE_LIFECYCLE, 20),
    state(Signal.PUE, 1.4),
)


def said(*figures: object) -> HubPower:
    return hub_power(tiny_fleet().hubs[1], "SN", signals(*figures), load_kw=10)  # type: ignore[arg-type]


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
    guest = with_home(allocation("dakar"), INTERVAL, "dakhla", said={"dakar": said(*FIGURES)}, then=())
    found = guest.home_conditions
    assert found is not None
    assert (found.pue, found.onsite_available_kwh, found.own_load_kwh) == (1.4, 30, 14)
    assert (found.factors.grid.g_per_kwh, found.factors.onsite.g_per_kwh) == (500, 20)
    assert "stands in" in found.factors.residual.note


def test_old_words_unknown_grids_and_silent_homes_give_no_conditions() -> None:
    late = allocation("dakar", waited=3 * HOUR)
    assert with_home(late, INTERVAL, "dakhla", said={"dakar": said(*FIGURES)}, then=()).home_conditions is None
    assert with_home(allocation("dakar"), INTERVAL, "dakhla", said={}, then=()).home_conditions is None
    assert conditions_said(said(), HOUR) is None


def test_work_that_started_at_once_at_home_needs_none() -> None:
    assert not is_deferred(allocation("dakhla"), INTERVAL)
    assert is_deferred(allocation("dakhla", waited=HOUR), INTERVAL)
    assert with_home(allocation("dakhla"), INTERVAL, "dakhla", said={}, then=()).home_conditions is None
