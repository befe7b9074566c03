"""Forecasts of carbon intensity, over random histories: sane, scale-free, and blind to the future."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.carbon.forecasts.forecast import QUANTILES
from harch.carbon.forecasts.history import HOUR, SeriesHistory, usable_hours
from harch.carbon.forecasts.site_generation import onsite_nowcast
from harch.carbon.forecasts.training import due, forecast, train, train_and_forecast
from unit.carbon.forecasts.zones import zone

START = datetime(2023, 5, 6, 7, tzinfo=UTC)
readings = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.floats(0, 900)


@given(values=st.lists(readings, min_size=1, max_size=200), repeats=st.sampled_from([1, 1, 9, 30]))
@settings(max_examples=120, deadline=None)
def test_whatever_a_feed_delivers_the_forecast_is_sane(values: list[float], repeats: int) -> None:
    series = np.tile(np.array(values, dtype=np.float64), repeats)[: 24 * 90]
    if not usable_hours(series).any():
        return
    said = train_and_forecast(SeriesHistory(START, series))
    ordered = np.array([said.quantiles[level] for level in QUANTILES])
    assert np.isfinite(said.mean).all()
    assert np.isfinite(ordered).all()
    assert said.mean.min() >= 0.0
    assert ordered.min() >= 0.0
    assert (np.diff(ordered, axis=0) >= 0).all()


@given(seed=st.integers(0, 10_000), days=st.integers(2, 120), factor=st.sampled_from([0.01, 3.0, 1000.0]))
@settings(max_examples=25, deadline=None)
def test_the_unit_does_not_matter(seed: int, days: int, factor: float) -> None:
    history = zone(days, seed)
    one, other = train_and_forecast(history), train_and_forecast(SeriesHistory(history.start, history.values * factor))
    assert other.mean == pytest.approx(one.mean * factor, rel=1e-6)
    assert other.quantiles[0.05] == pytest.approx(one.quantiles[0.05] * factor, rel=1e-6)


@given(seed=st.integers(0, 10_000), days=st.integers(3, 90), hour=st.integers(0, 23), junk=st.floats(0, 2000))
@settings(max_examples=25, deadline=None)
def test_the_future_does_not_reach_a_forecast(seed: int, days: int, hour: int, junk: float) -> None:
    history = zone(days + 5, seed)
    now = history.start + timedelta(days=days, hours=hour)
    changed = history.values.copy()
    changed[(now - history.start) // HOUR :] = junk
    past = history.until(now)
    trained = train(past)
    assert due(trained, now) is None
    said = forecast(trained, past)
    assert (said.mean == train_and_forecast(SeriesHistory(history.start, changed).until(now)).mean).all()
    assert said.trained_on.end == said.start == now


@given(values=st.lists(readings, max_size=300), hours=st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_a_nowcast_is_finite_and_not_negative(values: list[float], hours: int) -> None:
    said = onsite_nowcast(np.array(values, dtype=np.float64), hours)
    assert said.shape == (hours,)
    assert np.isfinite(said).all()
    assert (said >= 0).all()
