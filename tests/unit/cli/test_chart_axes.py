"""Are the ticks of a chart round, in order, and readable side by side?"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harch.cli.views.axes import DAY_S, label_row, time_ticks, value_scale

VALUES = st.floats(-1e15, 1e15)
TIMES = st.floats(0.0, 4e9)
SPANS = st.one_of(st.floats(0.001, 100.0), st.floats(60.0, 1e5), st.floats(1e5, 2e8))


def labels_of(start: str, length_s: float, width: int = 68) -> list[str]:
    begin = datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp()
    return label_row(time_ticks(begin, begin + length_s, width), width).split("  ")


@given(VALUES, VALUES, st.integers(2, 8))
def test_a_scale_holds_all_values_between_few_ticks(one: float, other: float, ticks_max: int) -> None:
    low, high = min(one, other), max(one, other)
    scale = value_scale(low, high, ticks_max)
    slack = 1e-6 * max(abs(low), abs(high), 1e-12)
    assert scale.low <= low + slack
    assert scale.high >= high - slack
    assert 2 <= len(scale.ticks) <= max(ticks_max, 3 if low < 0 < high else 2)
    assert all(before < after for before, after in pairwise(scale.ticks))


@given(st.floats(-1e6, 1e6), st.floats(0.001, 1e6), st.integers(2, 8))
def test_neighbours_on_a_scale_have_different_labels(low: float, span: float, ticks_max: int) -> None:
    labels = value_scale(low, low + span, ticks_max).labels
    assert len(set(labels)) == len(labels)


def test_a_scale_is_round() -> None:
    assert value_scale(0.0, 1_234_567.0, 4).labels == ("0", "0.5M", "1.0M", "1.5M")
    assert value_scale(501.2, 501.4, 4).labels == ("501.2", "501.3", "501.4")
    assert value_scale(3.0, 3.0, 4).labels == ("0", "2", "4", "6")


@given(TIMES, SPANS, st.integers(20, 160))
def test_ticks_of_time_lie_in_the_chart_and_their_labels_never_touch(start: float, span: float, width: int) -> None:
    ticks = time_ticks(start, start + span, width)
    assert ticks
    assert all(0 <= tick.column < width for tick in ticks)
    assert all(before.column < after.column for before, after in pairwise(ticks))
    row = label_row(ticks, width)
    assert len(row) == width
    shown = [tick.label for tick in ticks if f" {tick.label} " in f" {row} "]
    assert len(shown) >= (len(ticks) + 1) // 2  # beside those that were moved inwards at the ends there may be no room


def test_times_are_round_clock_times_in_utc_and_days_have_dates() -> None:
    hour = " ".join(labels_of("2026-11-19T14:53:20", 3600)).split()
    assert hour == ["15:00", "15:10", "15:20", "15:30", "15:40", "15:50"]
    day = " ".join(labels_of("2026-11-19T14:53:20", DAY_S))
    assert "20 Nov" in day
    assert "18:00" in day
    assert "2027-04-22" in " ".join(labels_of("2026-11-19T14:53:20", 400 * DAY_S))


def test_time_since_a_start_has_units() -> None:
    row = label_row(time_ticks(0.0, 24 * 3600, 68, elapsed=True), 68)
    assert "6 h" in row
    assert "1 d" not in row
