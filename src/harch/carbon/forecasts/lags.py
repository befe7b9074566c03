"""What did a series do before each day? Lags, means and deviations, every row from earlier rows only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.carbon.forecasts.history import DAYS_AHEAD, Floats, Panel

WARM_UP_DAYS = 14  # rows before this one lack some lag
_YEAR_DAYS = 365.25
_DAY_S = 86_400

# How much a standardised input may matter before it is penalised; chosen on January to June 2021 of 13 zones, for all
# zones alike. The last hours say most; the shape of a week ago says little beyond the mean of the week.
_LAST_HOUR, _LAST_HOURS, _WEEK_AGO, _WEEK_MEAN, _FORTNIGHT = 27.0, 9.0, 0.165, 0.3, 2.7
_HALF_YEAR, _WEEKDAY = 1.5, 3.0
_SEEN_MIN = 0.75  # of the hours that a row should predict


def lag(day: Floats, days: int) -> Floats:
    """Row `i` is day `i - days`; one row longer than `day`, for the first unknown day. Rows without it are NaN."""
    shifted = np.full((len(day) + 1, day.shape[1]), np.nan)
    shifted[days:] = day[: max(0, len(day) + 1 - days)]
    return shifted


def mean_before(day: Floats, days: int) -> Floats:
    """Same-hour mean of the `days` days before each row; NaN where fewer are known."""
    means = np.full((len(day) + 1, day.shape[1]), np.nan)
    rows = len(day) + 1 - days
    if rows > 0:  # a running sum would be faster, and wrong for days after a huge reading
        means[days:] = sum((day[first : first + rows] / days for first in range(1, days)), day[:rows] / days)
    return means


def ahead(day: Floats) -> Floats:
    """Row `i` is what a forecast from row `i` should say: days `i` to `i + 3`, NaN where not yet known."""
    rows = len(day) + 1
    padded = np.vstack([day, np.full((DAYS_AHEAD, day.shape[1]), np.nan)])
    return np.hstack([padded[step : step + rows] for step in range(DAYS_AHEAD)])


def four_days(day: Floats) -> Floats:
    """The same 24 hours for each of the four days ahead."""
    return np.tile(day, DAYS_AHEAD)


@dataclass(frozen=True)
class Scale:
    """What 'usual' means for a series: fixed when a model is fitted, from days before `end` only."""

    centre: float
    spread: float


def scale(day: Floats, end: int) -> Scale:
    deviation = (lag(day, 1) - mean_before(day, 7))[7:end]
    spread = float(np.std(deviation)) if len(deviation) else 0.0
    centre = float(np.mean(day[:end])) if end else 0.0
    return Scale(centre, spread if spread > 1e-9 * max(1.0, abs(centre)) else 1.0)


def deviations(day: Floats, unit: Scale) -> Floats:
    """Yesterday against the mean of its week, hour by hour, in units of the usual deviation."""
    return (lag(day, 1) - mean_before(day, 7)) / unit.spread


def lag_inputs(day: Floats, unit: Scale) -> Floats:
    """A series' own past as scaled inputs: last hours, yesterday, a week ago, level of one week and of two."""
    week = mean_before(day, 7)
    yesterday = deviations(day, unit)
    return np.hstack(
        [
            _LAST_HOUR * yesterday[:, -1:],
            _LAST_HOURS * yesterday[:, -4:-1],
            yesterday,
            yesterday.mean(axis=1, keepdims=True),
            _WEEK_AGO * (lag(day, 7) - week) / unit.spread,
            _WEEK_MEAN * (week - unit.centre) / unit.spread,
            _FORTNIGHT * (mean_before(day, 14) - week) / unit.spread,
        ]
    )


def calendar_inputs(panel: Panel) -> Floats:
    """Season (year and half year) and weekday of each row's first hour, in UTC."""
    first = panel.end.timestamp() / _DAY_S - panel.days  # in days since Thursday, 1 January 1970
    day = first + np.arange(panel.days + 1)
    angle = day[:, None] * 2 * np.pi / _YEAR_DAYS
    weekday = np.eye(7)[(np.floor(day).astype(np.int64) + 3) % 7]
    half_year = _HALF_YEAR * np.hstack([np.sin(2 * angle), np.cos(2 * angle)])
    return np.hstack([np.sin(angle), np.cos(angle), half_year, _WEEKDAY * weekday])


def row_weights(panel: Panel, end: int) -> Floats:
    """1 for each row that may teach a model made at `end`: warmed up, its four days over and mostly observed."""
    weights = np.zeros(panel.days + 1)
    rows = np.arange(WARM_UP_DAYS, end - DAYS_AHEAD + 1)
    if len(rows):
        seen = np.concatenate([[0.0], np.cumsum(panel.observed.mean(axis=1))])
        share = (seen[rows + DAYS_AHEAD] - seen[rows]) / DAYS_AHEAD
        # A feed that never delivers most of its hours teaches by what it does deliver.
        weights[rows] = share >= _SEEN_MIN if (share >= _SEEN_MIN).any() else np.maximum(share, 0.01)
    return weights
