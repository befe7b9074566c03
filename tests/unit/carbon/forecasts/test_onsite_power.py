"""Panels and turbines: from weather, and from their own meters."""

from __future__ import annotations

import numpy as np
import pytest

from harch.carbon.forecasts.site_generation import PvPlant, WindPlant, onsite_nowcast, pv_power_kw, wind_power_kw

DAY = np.maximum(np.sin((np.arange(24) - 6) / 24 * 2 * np.pi), 0.0) * 100


def test_the_nowcast_is_the_usual_day_moved_by_the_present() -> None:
    measured = np.tile(DAY, 7)[:-12]  # ends after noon
    measured[-1] += 30.0
    said = onsite_nowcast(measured, 96)
    # The raised hour is itself one of the readings that its mean is made of.
    usual_now = np.mean([*[DAY[11]] * 6, measured[-1]])
    assert said[0] == pytest.approx(DAY[12] + (measured[-1] - usual_now) * np.exp(-1 / 12))
    assert said[5] == pytest.approx(DAY[17] + (measured[-1] - usual_now) * np.exp(-6 / 12))
    assert said.shape == (96,)


def test_the_nowcast_never_goes_below_zero() -> None:
    measured = np.tile(DAY, 7)[:-12]
    measured[-1] = 0.0
    assert onsite_nowcast(measured).min() == 0.0


def test_an_old_reading_moves_the_nowcast_less() -> None:
    measured = np.full(168, 50.0)
    measured[-1] = 100.0
    late = np.append(measured[1:], np.nan)
    assert 50.0 < onsite_nowcast(late)[0] < onsite_nowcast(measured)[0]


@pytest.mark.parametrize("hours", [0, 1, 10, 24, 100, 168, 1000])
def test_a_nowcast_needs_no_full_week(hours: int) -> None:
    measured = np.full(hours, 40.0)
    measured[::3] = np.nan
    said = onsite_nowcast(measured, 30)
    assert said.shape == (30,)
    assert np.isfinite(said).all()
    assert said.max() <= 40.0


def test_bad_readings_are_ignored() -> None:
    measured = np.tile(DAY, 7)
    clean = onsite_nowcast(measured)
    measured[24 * 3 + 4] = -9999.0  # at night: the mean of that hour stays 0
    measured[24 * 2 + 3] = np.inf
    assert onsite_nowcast(measured) == pytest.approx(clean)


def test_panels_give_less_when_hot_and_nothing_at_night() -> None:
    plant = PvPlant(capacity_kw=1000)
    power = pv_power_kw(plant, np.array([800.0, 800.0, 0.0, -3.0]), np.array([10.0, 40.0, 20.0, 20.0]))
    assert power[0] == pytest.approx(1000 * 0.86 * 0.8 * (1 - 0.004 * (10 + 25 - 25)))
    assert power[1] == pytest.approx(power[0] - 1000 * 0.86 * 0.8 * 0.004 * 30)
    assert power[2] == power[3] == 0.0


def test_panels_never_give_more_than_their_rating() -> None:
    assert pv_power_kw(PvPlant(10, loss_fraction=0.0), np.array([1400.0]), np.array([-30.0]))[0] == 10.0


def test_turbines_follow_their_curve() -> None:
    plant = WindPlant(capacity_kw=2000, hub_height_m=10.0, loss_fraction=0.0)
    power = wind_power_kw(plant, np.array([0.0, 2.9, 3.0, 8.0, 12.0, 24.9, 25.0, 60.0]))
    assert power[[0, 1, 2, 6, 7]].tolist() == [0, 0, 0, 0, 0]
    assert power[3] == pytest.approx(2000 * (512 - 27) / (1728 - 27))
    assert power[[4, 5]].tolist() == [2000, 2000]


def test_wind_is_stronger_at_hub_height() -> None:
    low, high = (wind_power_kw(WindPlant(1.0, hub_height_m=height), np.array([7.0]))[0] for height in (20.0, 120.0))
    assert high > low > 0


def test_unknown_weather_gives_unknown_power() -> None:
    unknown = np.array([np.nan])
    assert np.isnan(pv_power_kw(PvPlant(1.0), unknown, np.array([20.0]))[0])
    assert np.isnan(pv_power_kw(PvPlant(1.0), np.array([500.0]), unknown)[0])
    assert np.isnan(wind_power_kw(WindPlant(1.0), unknown)[0])


def test_a_curve_that_does_not_rise_is_refused() -> None:
    with pytest.raises(ValueError, match="must increase"):
        WindPlant(1.0, cut_in_m_s=13.0)
