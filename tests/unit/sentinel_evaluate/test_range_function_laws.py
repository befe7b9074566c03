"""Functions over ranges against their definitions, written out slowly: windows, resets, extrapolation, staleness."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from column_store import ColumnStore
from hypothesis import given, settings
from hypothesis import strategies as st
from promql_answers import over

from harch.sentinel.model.histograms import STALE, STALE_BITS

Points = list[tuple[int, float]]
LABELS = (("__name__", "made_total"), ("site", "a"))
START, END, STEP = 0, 60_000, 7_000

_value = st.one_of(
    st.integers(-5, 40).map(float),
    st.floats(-1e6, 1e6, allow_nan=False),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, STALE]),
)
_plain = st.integers(0, 50).map(float)


@st.composite
def series(draw: st.DrawFn, values: st.SearchStrategy[float] = _value) -> Points:
    times = draw(st.lists(st.integers(-10, 62), unique=True, max_size=25).map(sorted))
    return [(time * 1000 + draw(st.integers(0, 900)), draw(values)) for time in times]


def is_stale(value: float) -> bool:
    return int(np.array([value]).view(np.uint64)[0]) == STALE_BITS


def expected(points: Points, range_ms: int, fold: Callable[[Points, int, int], float | None]) -> dict[int, float]:
    """What a function gives at each step: over the samples later than the window's start, its end included."""
    found = {}
    for time in range(START, END + 1, STEP):
        window = [point for point in points if time - range_ms < point[0] <= time and not is_stale(point[1])]
        result = fold(window, time - range_ms, time) if window else None
        if result is not None:
            found[time] = result
    return found


def check(query: str, points: Points, range_ms: int, fold: Callable[[Points, int, int], float | None]) -> None:
    answer = over(query.replace("RANGE", f"{range_ms}ms"), START, END, STEP, ColumnStore({LABELS: points}))
    wanted = expected(points, range_ms, fold)
    got = answer.get("site=a") or answer.get("made_total site=a") or {}
    assert got.keys() == wanted.keys()
    for time, value in wanted.items():
        assert got[time] == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), time


def extrapolated(window: Points, start: int, end: int, *, is_counter: bool, is_rate: bool) -> float | None:
    """Prometheus' definition, one window at a time."""
    if len(window) < 2:
        return None
    values = [value for _, value in window]
    result = values[-1] - values[0]
    if is_counter:
        for before, now in itertools.pairwise(values):
            if now < before:
                result += before
    to_start, to_end = (window[0][0] - start) / 1000, (end - window[-1][0]) / 1000
    sampled = (window[-1][0] - window[0][0]) / 1000
    spacing = sampled / (len(window) - 1)
    if to_start >= spacing * 1.1:
        to_start = spacing / 2
    if is_counter and result > 0 and values[0] >= 0:
        to_start = min(to_start, sampled * (values[0] / result))
    if to_end >= spacing * 1.1:
        to_end = spacing / 2
    return result * ((sampled + to_start + to_end) / sampled) / ((end - start) / 1000 if is_rate else 1)


@settings(max_examples=100, deadline=None)
@given(points=series(), range_s=st.integers(1, 40))
@pytest.mark.parametrize(
    ("name", "is_counter", "is_rate"), [("rate", True, True), ("increase", True, False), ("delta", False, False)]
)
def test_rates_are_extrapolated_to_the_ends_of_the_window(
    name: str, is_counter: bool, is_rate: bool, points: Points, range_s: int
) -> None:
    def fold(window: Points, start: int, end: int) -> float | None:
        with np.errstate(all="ignore"):
            return extrapolated(window, start, end, is_counter=is_counter, is_rate=is_rate)

    check(f"{name}(made_total[RANGE])", points, range_s * 1000, fold)


def _changes(window: Points) -> float:
    values = [value for _, value in window]
    pairs = itertools.pairwise(values)
    return float(sum(now != before and not (now != now and before != before) for before, now in pairs))


def _smallest(window: Points) -> float:
    known = [value for _, value in window if value == value]
    return min(known) if known else math.nan


_FOLDS: dict[str, Callable[[Points], float]] = {
    "count_over_time": lambda window: float(len(window)),
    "last_over_time": lambda window: window[-1][1],
    "first_over_time": lambda window: window[0][1],
    "present_over_time": lambda window: 1.0,
    "min_over_time": _smallest,
    "changes": _changes,
    "resets": lambda window: float(sum(b[1] < a[1] for a, b in itertools.pairwise(window))),
    "ts_of_first_over_time": lambda window: window[0][0] / 1000,
    "ts_of_last_over_time": lambda window: window[-1][0] / 1000,
}
_PLAIN_FOLDS: dict[str, Callable[[Points], float]] = {
    "sum_over_time": lambda window: math.fsum(value for _, value in window),
    "avg_over_time": lambda window: statistics.fmean(value for _, value in window),
    "stdvar_over_time": lambda window: statistics.pvariance([value for _, value in window]),
    "mad_over_time": lambda window: _median_deviation([value for _, value in window]),
}


def _median_deviation(values: list[float]) -> float:
    middle = statistics.median(values)
    return statistics.median([abs(value - middle) for value in values])


@settings(max_examples=40, deadline=None)
@given(points=series(), range_s=st.integers(1, 40))
@pytest.mark.parametrize("name", _FOLDS)
def test_windows_hold_what_lies_in_them_and_no_stale_marker(name: str, points: Points, range_s: int) -> None:
    check(f"{name}(made_total[RANGE])", points, range_s * 1000, lambda window, *_: _FOLDS[name](window))


@settings(max_examples=40, deadline=None)
@given(points=series(_plain), range_s=st.integers(1, 40))
@pytest.mark.parametrize("name", _PLAIN_FOLDS)
def test_sums_and_spreads_are_those_of_statistics(name: str, points: Points, range_s: int) -> None:
    check(f"{name}(made_total[RANGE])", points, range_s * 1000, lambda window, *_: _PLAIN_FOLDS[name](window))


@settings(max_examples=40, deadline=None)
@given(points=series(_plain), range_s=st.integers(1, 40), quantile=st.floats(0, 1))
def test_quantiles_over_time_lie_between_neighbours(points: Points, range_s: int, quantile: float) -> None:
    def fold(window: Points, *_: int) -> float:
        return float(np.quantile([value for _, value in window], quantile))

    check(f"quantile_over_time({quantile!r}, made_total[RANGE])", points, range_s * 1000, fold)


@settings(max_examples=40, deadline=None)
@given(points=series(_plain), range_s=st.integers(1, 40))
def test_a_derivative_is_the_slope_of_the_best_line(points: Points, range_s: int) -> None:
    def fold(window: Points, *_: int) -> float | None:
        if len(window) < 2:
            return None
        if len({value for _, value in window}) == 1:
            return 0.0
        return statistics.linear_regression(*zip(*((t / 1000, v) for t, v in window), strict=True)).slope

    check("deriv(made_total[RANGE])", points, range_s * 1000, fold)


@settings(max_examples=80, deadline=None)
@given(points=series(), lookback_steps=st.integers(0, 3))
def test_a_selector_sees_the_latest_sample_unless_it_is_stale_or_old(points: Points, lookback_steps: int) -> None:
    """Asked with an offset that differs from the step, so that steps fall between samples."""
    offset = lookback_steps * 1700
    answer = over(f"made_total offset {offset}ms", START, END, STEP, ColumnStore({LABELS: points}))
    got = answer.get("made_total site=a", {})
    for time in range(START, END + 1, STEP):
        seen = [point for point in points if point[0] <= time - offset]
        if seen and not is_stale(seen[-1][1]) and seen[-1][0] > time - offset - 300_000:
            assert got[time] == pytest.approx(seen[-1][1], nan_ok=True)
        else:
            assert time not in got
