"""Whatever a hub says of its power, the planner gets figures that can be true, or a reason why not."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.rejection import Rejection
from harch.carbon.planning.outlook import Aims
from harch.carbon.values import Signal
from harch.hub.carbon.snapshot import G_PER_KWH_MAX, HubOutlook, hub_outlook
from harch.testing.clock import START
from harch.wire.carbon import Figure, ForecastHour, GridForecast, HubPower

STEPS = 12
ANY = st.floats(allow_nan=True, allow_infinity=True)


def power(**fields: object) -> HubPower:
    readings = {
        Signal.GRID_AVERAGE_LIFECYCLE: fields.pop("grid", 500.0),
        Signal.PUE: fields.pop("pue", 1.2),
        Signal.ONSITE_LIFECYCLE: fields.pop("own_g", 20.0),
    }
    said = tuple(
        Figure(signal=name, value=value, evidence="measured", source="meter", at=START)  # type: ignore[arg-type]
        for name, value in readings.items()
    )
    defaults = {"hub_id": "dakar", "country": "SN", "grid_zone": "SN", "at": START, "readings": said}
    return HubPower(**(defaults | fields))  # type: ignore[arg-type]


def forecast(values: list[float], onsite: list[float] | None = None, made_h_ago: float = 0.0) -> GridForecast:
    hours = tuple(
        ForecastHour(
            at=START + timedelta(hours=number),
            g_per_kwh=value,
            low=0,
            high=0,
            low_half=0,
            high_half=0,
            onsite_kw=None if onsite is None else onsite[number],
        )
        for number, value in enumerate(values)
    )
    made_at = START - timedelta(hours=made_h_ago)
    return GridForecast(hub_id="dakar", grid_zone="SN", made_at=made_at, model="m", hours=hours)


def outlook(said: HubPower | None, ahead: GridForecast | None = None, **fields: object) -> HubOutlook | Rejection:
    known = {"hub_id": "dakar", "now": START, "steps": STEPS, "step_s": 3600.0, "busy_it_kw": 0.0} | fields
    return hub_outlook(said, ahead, **known)  # type: ignore[arg-type]


def good(said: HubPower, ahead: GridForecast | None = None, **fields: object) -> HubOutlook:
    found = outlook(said, ahead, **fields)
    assert isinstance(found, HubOutlook), found
    return found


@given(
    grid=st.none() | ANY,
    pue=ANY,
    own_g=ANY,
    onsite=ANY,
    load=ANY,
    loss=ANY,
    price=st.none() | ANY,
    values=st.lists(st.tuples(ANY, ANY), min_size=1, max_size=STEPS),
)
def test_what_is_said_is_used_only_if_it_can_be_true(
    grid: float | None,
    pue: float,
    own_g: float,
    onsite: float,
    load: float,
    loss: float,
    price: float | None,
    values: list[tuple[float, float]],
) -> None:
    said = power(
        grid=grid,
        pue=pue,
        own_g=own_g,
        onsite_kw=onsite,
        load_kw=load,
        transmission_loss=loss,
        price_per_mwh=price,
        currency="USD",
    )
    found = outlook(said, forecast([g for g, _ in values], [kw for _, kw in values]))
    if isinstance(found, Rejection):
        assert found.detail
        return
    hours = found.hours
    for series in (hours.grid_g_per_kwh, hours.onsite_kw, hours.onsite_sd_kw):
        assert series is not None
        assert np.isfinite(series).all()
        assert (series >= 0).all()
    assert hours.grid_g_per_kwh.max() <= G_PER_KWH_MAX
    assert np.isfinite(Aims(g_per_money=10.0).grid_cost(hours)).all()


def test_old_words_and_old_forecasts_are_left_aside() -> None:
    assert isinstance(outlook(power(at=START - timedelta(minutes=16))), Rejection)
    assert isinstance(outlook(None), Rejection)
    fresh = good(power(), forecast([500.0, 100.0, 100.0]))
    old = good(power(), forecast([500.0, 100.0, 100.0], made_h_ago=7))
    assert fresh.hours.grid_g_per_kwh[1] == 100.0
    assert old.hours.grid_g_per_kwh[1] == 500.0
    assert "the same ahead" in old.basis.rests_on


def test_the_load_that_is_there_takes_own_power_before_any_job_does() -> None:
    sunny = forecast([500.0] * 4, [0.0, 90.0, 90.0, 90.0])
    assert good(power(load_kw=30.0), sunny).hours.onsite_kw[1] == 60.0
    # What the plan knows as work is not counted twice.
    assert good(power(load_kw=30.0), sunny, busy_it_kw=25.0).hours.onsite_kw[1] == 90.0


def test_prices_count_only_in_one_currency_and_losses_make_the_grid_dearer() -> None:
    assert good(power(price_per_mwh=90.0, currency="USD")).hours.price_per_mwh is not None
    assert good(power(price_per_mwh=90.0, currency="MAD")).hours.price_per_mwh is None
    assert good(power(transmission_loss=0.1)).hours.grid_g_per_kwh_used[0] == pytest.approx(550.0)


def test_finer_steps_hold_power_and_follow_the_plant_s_own_forecast() -> None:
    plant = {START + timedelta(seconds=30): 360.0}
    hours = good(power(), step_s=10.0, plants=(plant,)).hours
    assert hours.onsite_kw.tolist() == [0.0, 0.0, 0.0, *[360.0] * (STEPS - 3)]
