"""What is known up to now, hour by hour? A series with its gaps, and the same series with the gaps filled causally."""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

HOUR = timedelta(hours=1)
HOURS_PER_DAY = 24
DAYS_AHEAD = 4
HORIZON_H = DAYS_AHEAD * HOURS_PER_DAY
DAYS_MAX = 1096  # three years: more adds cost, and grids change
FUELS_MAX = 24
VALUE_MAX = 1e9
FADE_H = 12.0  # how long a deviation from the usual day is believed to last


class NothingKnown(ValueError):
    """Not one usable hour: no forecast can be made, not even a wide one."""


@dataclass(frozen=True, eq=False)
class Fuel:
    """Generation of one fuel, hour by hour beside the intensity, and the grams that a kWh of it stands for."""

    name: str
    mw: Floats
    g_per_kwh: float


@dataclass(frozen=True, eq=False)
class SeriesHistory:
    """Hourly values from `start` on (aware, a full UTC hour); the forecast begins with the hour after the last one.

    Missing, negative and absurdly large values count as gaps. The mix is optional; with it forecasts are better.
    """

    start: datetime
    values: Floats
    mix: tuple[Fuel, ...] = ()

    def __post_init__(self) -> None:
        if (
            self.start.utcoffset() != timedelta(0)
            or self.start.replace(minute=0, second=0, microsecond=0) != self.start
        ):
            raise ValueError(f"history starts at {self.start}, not at a full hour in UTC")
        if self.values.ndim != 1 or any(fuel.mw.shape != self.values.shape for fuel in self.mix):
            raise ValueError("the values and each fuel need one number per hour")
        if len(self.mix) > FUELS_MAX:
            raise ValueError(f"{len(self.mix)} fuels; at most {FUELS_MAX} are used")

    @property
    def end(self) -> datetime:
        """The first hour that is not known: where the forecast begins."""
        return self.start + len(self.values) * HOUR

    def until(self, end: datetime) -> SeriesHistory:
        """What was known at `end`."""
        hours = max(0, min(len(self.values), (end - self.start) // HOUR))
        mix = tuple(Fuel(fuel.name, fuel.mw[:hours], fuel.g_per_kwh) for fuel in self.mix)
        return SeriesHistory(self.start, self.values[:hours], mix)


@dataclass(frozen=True, eq=False)
class HourPanel:
    """The history as whole days that end at its end: row `i` of `day` holds 24 hours, row `days` is the first unknown.

    Everything derived for row `i` uses rows before `i` only; that is what makes back-tests honest.
    """

    end: datetime
    day: Floats  # [days, 24], gaps filled
    observed: Bools  # [days, 24]
    fuel_mw: Floats  # [fuels, days, 24], gaps filled
    fuel_names: tuple[str, ...]
    fuel_g_per_kwh: Floats
    notes: tuple[str, ...] = field(default=())

    @property
    def days(self) -> int:
        return len(self.day)

    @property
    def stale_h(self) -> int:
        """How many of the last hours are not known."""
        known = np.flatnonzero(self.observed)
        return self.observed.size - 1 - int(known[-1]) if len(known) else self.observed.size

    def tail(self, days: int) -> HourPanel:
        """The last days only: enough for a forecast, and much faster."""
        first = max(0, self.days - days)
        return replace(self, day=self.day[first:], observed=self.observed[first:], fuel_mw=self.fuel_mw[:, first:])


def panel(history: SeriesHistory) -> HourPanel:
    """Cuts the history into days and fills its gaps from what came before them. Raises `NothingKnown`."""
    usable = usable_hours(history.values)
    known = np.flatnonzero(usable)
    if len(known) == 0:
        raise NothingKnown("no usable hours in the history")
    first = max(int(known[0]), len(usable) - DAYS_MAX * HOURS_PER_DAY)
    days = (len(usable) - first) // HOURS_PER_DAY
    cut = len(usable) - days * HOURS_PER_DAY
    filled = filled_causally(history.values)
    fuels = [fuel for fuel in history.mix if usable_hours(fuel.mw)[first:].any()]
    mw = [filled_causally(fuel.mw)[cut:].reshape(days, HOURS_PER_DAY) for fuel in fuels]
    return HourPanel(
        end=history.end,
        day=filled[cut:].reshape(days, HOURS_PER_DAY),
        observed=usable[cut:].reshape(days, HOURS_PER_DAY),
        fuel_mw=np.array(mw) if mw else np.zeros((0, days, HOURS_PER_DAY)),
        fuel_names=tuple(fuel.name for fuel in fuels),
        fuel_g_per_kwh=np.array([fuel.g_per_kwh for fuel in fuels], dtype=np.float64),
        notes=_notes(usable, first),
    )


def filled_causally(values: Floats) -> Floats:
    """Gaps become yesterday's shape plus a fading offset of the last known hour; leading gaps the first known value.

    A value from after the gap would be easier and is never used: it would leak into a back-test that starts inside.
    """
    usable = usable_hours(values)
    filled = np.where(usable, values, 0.0)
    known = np.flatnonzero(usable)
    if len(known) == 0:
        return filled
    first = int(known[0])
    filled[:first] = filled[first]
    last_known = np.maximum.accumulate(np.where(usable, np.arange(len(values)), 0))
    for hour in np.flatnonzero(~usable[first:]) + first:  # in order: a filled hour may be yesterday's of a later one
        last = int(last_known[hour])
        if hour < HOURS_PER_DAY:
            filled[hour] = filled[last]
        else:
            offset = filled[last] - filled[last - HOURS_PER_DAY] if last >= HOURS_PER_DAY else 0.0
            fade = float(np.exp(-(hour - last) / FADE_H))
            filled[hour] = max(0.0, filled[hour - HOURS_PER_DAY] + offset * fade)
    return filled


def usable_hours(values: Floats) -> Bools:
    """Which values can be true? Not a gap, not below 0, not beyond any unit in use."""
    known = np.nan_to_num(values, nan=-1.0, posinf=-1.0, neginf=-1.0)
    return (known >= 0.0) & (known <= VALUE_MAX)


def _notes(usable: Bools, first: int) -> tuple[str, ...]:
    notes = []
    missing = int((~usable[first:]).sum())
    if missing:
        notes.append(f"{missing} of {len(usable) - first} hours were missing or implausible and were filled in")
    recent = int((~usable[-HOURS_PER_DAY:]).sum())
    if recent:
        notes.append(f"{recent} of the last {min(HOURS_PER_DAY, len(usable))} hours are missing")
    return tuple(notes)
