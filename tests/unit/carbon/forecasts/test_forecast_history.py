"""What is known, hour by hour: gaps, impossible values, whole days that end now."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from harch.carbon.forecasts.history import DAYS_MAX, Fuel, NothingKnown, SeriesHistory, filled_causally, panel
from harch.carbon.forecasts.models import ahead, calendar_inputs, lag, mean_before, row_weights
from unit.carbon.forecasts.zones import START, zone


@pytest.mark.parametrize(
    "start",
    [
        START.replace(tzinfo=None),
        START.replace(minute=30),
        START.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
    ids=["without zone", "half past", "local time"],
)
def test_a_history_starts_at_a_full_hour_in_utc(start: datetime) -> None:
    with pytest.raises(ValueError, match="a full hour in UTC"):
        SeriesHistory(start, np.ones(24))


def test_every_fuel_needs_every_hour() -> None:
    with pytest.raises(ValueError, match="one number per hour"):
        SeriesHistory(START, np.ones(24), (Fuel("gas", np.ones(23), 490),))


def test_nothing_usable_is_an_error_of_its_own() -> None:
    for values in (np.zeros(0), np.full(30, np.nan), np.full(30, -1.0), np.full(30, np.inf), np.full(30, 1e30)):
        with pytest.raises(NothingKnown):
            panel(SeriesHistory(START, values))


def test_days_end_with_the_history_and_the_rest_of_the_first_day_is_left_out() -> None:
    known = panel(SeriesHistory(START, np.arange(53.0)))
    assert known.days == 2
    assert known.day[0, 0] == 5.0
    assert known.day[-1, -1] == 52.0


def test_only_the_last_three_years_are_used() -> None:
    assert panel(SeriesHistory(START, np.ones((DAYS_MAX + 40) * 24))).days == DAYS_MAX


def test_a_gap_gets_yesterdays_shape_from_where_the_series_stood() -> None:
    values = np.tile(np.arange(24.0), 3)
    values[24:48] += 12.0
    values[48 + 6 :] = np.nan
    filled = filled_causally(values)
    offset = (values[53] - values[29]) * np.exp(-1 / 12)
    assert filled[54] == pytest.approx(values[30] + offset)
    assert np.isfinite(filled).all()


def test_gaps_are_filled_from_the_past_alone() -> None:
    values = zone(10).values.copy()
    values[100:140] = np.nan
    other = values.copy()
    other[140:] = 1.0
    assert (filled_causally(values)[:140] == filled_causally(other)[:140]).all()


def test_impossible_values_count_as_gaps_and_are_told() -> None:
    values = zone(10).values.copy()
    values[50], values[51], values[-1] = -5.0, np.inf, np.nan
    known = panel(SeriesHistory(START, values))
    assert (~known.observed).sum() == 3
    assert known.day.min() > 0
    assert "3 of 240 hours" in known.notes[0]
    assert "1 of the last 24 hours" in known.notes[1]


def test_a_fuel_that_was_never_reported_is_left_out() -> None:
    history = zone(10, mix=True)
    empty = Fuel("oil", np.full(240, np.nan), 650)
    assert panel(replace(history, mix=(*history.mix, empty))).fuel_names == ("nat_gas", "wind", "solar")


def test_rows_look_back_only_and_the_last_row_is_the_first_unknown_day() -> None:
    day = np.arange(20.0)[:, None] * np.ones(24)
    assert lag(day, 1)[20, 0] == 19.0
    assert np.isnan(lag(day, 7)[6]).all()
    assert mean_before(day, 7)[20, 0] == pytest.approx(np.mean(range(13, 20)))
    assert ahead(day)[16, [0, 24, 48, 72]].tolist() == [16, 17, 18, 19]
    assert np.isnan(ahead(day)[17, 72:]).all()


def test_a_row_teaches_only_when_its_four_days_are_over_and_were_seen() -> None:
    known = panel(zone(40))
    assert np.flatnonzero(row_weights(known, 30)).tolist() == list(range(14, 27))
    values = zone(40).values.copy()
    values[20 * 24 : 22 * 24] = np.nan
    holes = np.flatnonzero(row_weights(panel(SeriesHistory(START, values)), 30))
    assert not {18, 19, 20} & set(holes)
    assert {14, 15, 16, 22} <= set(holes)


def test_the_weekday_is_that_of_the_rows_first_hour() -> None:
    known = panel(zone(14))  # ends on a Monday at 00:00
    weekday = calendar_inputs(known)[:, -7:].argmax(axis=1)
    assert weekday[:8].tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
    late = panel(zone(14.5))
    assert calendar_inputs(late)[-1, -7:].argmax() == 0
    assert late.end.weekday() == 0
