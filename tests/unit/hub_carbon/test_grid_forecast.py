"""A forecast is shown with intervals and errors; where nobody measures, without an error that looks like knowledge."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from harch.carbon.forecasts.history import SeriesHistory
from harch.hub.carbon.forecast import Forecaster, KnownHours, OnsiteAhead, cut_to, grid_forecast
from harch.testing.clock import START
from harch.wire.carbon import GridForecast

NO_PLANTS = OnsiteAhead({}, "")


def made(values: np.ndarray, *, modelled: bool = False, onsite: OnsiteAhead = NO_PLANTS) -> GridForecast:
    forecast = Forecaster().forecast(KnownHours(SeriesHistory(START, values), modelled=modelled))
    return grid_forecast(
        forecast,
        onsite,
        hub_id="dakhla",
        grid_zone="MA",
        modelled=modelled,
        now=START + len(values) * timedelta(hours=1),
    )


def days(count: int) -> np.ndarray:
    hours = np.arange(24 * count)
    return 400 + 100 * np.sin(2 * np.pi * hours / 24) + np.random.default_rng(1).normal(0, 10, len(hours))


def test_96_hours_with_intervals_around_them_and_the_errors_of_the_last_days() -> None:
    found = made(days(12))
    assert len(found.hours) == 96
    assert all(hour.low <= hour.low_half <= hour.g_per_kwh <= hour.high_half <= hour.high for hour in found.hours)
    assert found.hours[0].at == START + timedelta(days=12)
    assert (found.error_days > 0, found.evidence) == (True, "estimated")
    assert 0 < found.error_pct_by_day[0] < 10
    assert len(found.persistence_error_pct_by_day) == len(found.error_pct_by_day)


def test_a_model_has_no_error_to_show_and_wide_intervals() -> None:
    found = made(np.array([630.0]), modelled=True)
    assert (found.error_days, found.error_pct_by_day) == (0, ())
    assert {hour.g_per_kwh for hour in found.hours} == {630.0}
    assert found.hours[0].low < 400
    assert "is not measured" in found.notes[0]


def test_own_plants_stand_beside_the_grid() -> None:
    found = made(days(3), onsite=OnsiteAhead({START + timedelta(days=3): 12.5}, "pv-power: modelled"))
    assert (found.hours[0].onsite_kw, found.hours[1].onsite_kw) == (12.5, None)


def test_hours_that_are_over_are_not_shown() -> None:
    found = made(days(3))
    shown = cut_to(found, 2, found.hours[5].at + timedelta(minutes=59))
    assert [hour.at for hour in shown] == [found.hours[5].at, found.hours[6].at]


def test_models_are_kept_until_they_are_due() -> None:
    forecaster, history = Forecaster(), SeriesHistory(START, days(12))
    first = forecaster.forecast(KnownHours(history, modelled=False))
    again = forecaster.forecast(KnownHours(history, modelled=False))
    assert first.trained_on is again.trained_on
