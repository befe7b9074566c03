"""What was the power like, hour by hour? Means of what was read, kept for three years: what forecasts learn from.

The current hour is gathered in memory and written every few minutes; a crash costs some readings of one mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from harch.base.clock import iso
from harch.carbon.forecasts.history import DAYS_MAX, HOUR, Floats, History
from harch.carbon.signals.choice import HubSignals
from harch.carbon.signals.sources.modelled import NAME as MODELLED
from harch.carbon.values import Quantity, Reading, Signal
from harch.hub.carbon.views import PastHour
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement

KEPT = (
    Signal.GRID_AVERAGE_LIFECYCLE,
    Signal.GRID_AVERAGE_DIRECT,
    Signal.GRID_MARGINAL_LIFECYCLE,
    Signal.GRID_MARGINAL_DIRECT,
    Signal.RENEWABLE_SHARE,
    Signal.PV_POWER,
    Signal.WIND_POWER,
)
KEEP = timedelta(days=DAYS_MAX)

_SAVE = (
    "INSERT INTO carbon_hours (signal, hour, source, total, readings) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (signal, hour, source) DO UPDATE SET"
    " total = carbon_hours.total + excluded.total, readings = carbon_hours.readings + excluded.readings"
)
_TRIM = "DELETE FROM carbon_hours WHERE hour < ?"
_READ = "SELECT hour, source, total, readings FROM carbon_hours WHERE signal = ? AND hour >= ? ORDER BY hour"


@dataclass(slots=True)
class HourBook:
    """Gathers readings until they are written. Each is counted once, in the hour that it is about."""

    _sums: dict[tuple[Signal, datetime, str], tuple[float, int]] = field(default_factory=dict)
    _seen: dict[tuple[Signal, str], datetime] = field(default_factory=dict)

    def note(self, signals: HubSignals) -> None:
        for signal in KEPT:
            reading = signals.reading(signal)
            if reading is not None:
                self._add(reading, signals.taken_at)

    def take(self, now: datetime) -> list[Statement]:
        """What is to be written, and an end to what is too old."""
        statements: list[Statement] = [
            (_SAVE, (str(signal), iso(hour), source, total, count))
            for (signal, hour, source), (total, count) in self._sums.items()
        ]
        self._sums = {}
        return [*statements, (_TRIM, (iso(now - KEEP),))]

    def _add(self, reading: Reading[Quantity], now: datetime) -> None:
        # A value with a stated end holds until then: it is about now, not about the day that it was set.
        about = now if reading.valid_until is not None else reading.at
        if self._seen.get((reading.signal, reading.source)) == about:
            return
        self._seen[reading.signal, reading.source] = about
        key = (reading.signal, full_hour(about), reading.source)
        total, count = self._sums.get(key, (0.0, 0))
        self._sums[key] = (total + reading.value.number, count + 1)


@dataclass(frozen=True, slots=True)
class KnownHours:
    """One signal's past. `modelled`: nobody has ever measured it, so its hours say nothing about hours."""

    history: History
    modelled: bool


def known_hours(database: Database, signal: Signal, now: datetime) -> KnownHours | None:
    """The past of a signal up to the current hour, or None. Hours of the model fill no gap between measured ones."""
    rows = database.query(_READ, (str(signal), iso(now - KEEP)))
    live = [row for row in rows if row[1] != MODELLED]
    used = live or rows
    if not used:
        return None
    sums: dict[datetime, tuple[float, int]] = {}
    for hour, _, total, count in used:
        moment = datetime.fromisoformat(hour).astimezone(UTC)
        before = sums.get(moment, (0.0, 0))
        sums[moment] = (before[0] + total, before[1] + count)
    if not live:
        # A constant is foretold without error: only its last hour is used, so that nobody takes that for knowledge.
        sums = {max(sums): sums[max(sums)]}
    # Up to the last full hour, or the current one if it is known already: the forecast begins after it.
    start, last = min(sums), max(full_hour(now) - HOUR, max(sums))
    values: Floats = np.full((last - start) // HOUR + 1, np.nan)
    for moment, (total, count) in sums.items():
        values[(moment - start) // HOUR] = total / count
    return KnownHours(History(start, values), modelled=not live)


def past_hours(database: Database, signal: Signal, start: datetime, end: datetime) -> list[PastHour]:
    """Hours that begin in this time; where there are readings of others, the model's are left out."""
    found: dict[str, tuple[float, bool]] = {}
    for hour, source, total, count in database.query(_READ, (str(signal), iso(full_hour(start)))):
        if hour < iso(end) and (hour not in found or source != MODELLED):
            found[hour] = (total / count, source == MODELLED)
    return [
        PastHour(at=datetime.fromisoformat(hour), g_per_kwh=mean, estimated=modelled)
        for hour, (mean, modelled) in found.items()
    ]


def full_hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
