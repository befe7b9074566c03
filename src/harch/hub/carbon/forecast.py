"""What was the power like, hour by hour? Means of what was read, kept for three years: what forecasts learn from.

The current hour is gathered in memory and written every few minutes; a crash costs some readings of one mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from harch.base.clock import iso
from harch.carbon.forecasts.forecast import CarbonForecast
from harch.carbon.forecasts.history import DAYS_MAX, HOUR, Floats, SeriesHistory
from harch.carbon.forecasts.site_generation import PvPlant, WindPlant, pv_power_kw, wind_power_kw
from harch.carbon.forecasts.training import Trained, due, forecast, train
from harch.carbon.signals.choice import HubSignals
from harch.carbon.signals.sites import SignalSite
from harch.carbon.signals.sources.modelled import NAME as MODELLED
from harch.carbon.values import Quantity, Reading, Signal
from harch.hub.carbon.views import PastHour
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.wire.carbon import ForecastHour, GridForecast

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

    history: SeriesHistory
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
    return KnownHours(SeriesHistory(start, values), modelled=not live)


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


# What will the hub's own plants give? What their source foretells, else what the weather makes of their plates.


MILD_C = 20.0  # where nobody foretells the temperature: panels lose 0.4 % per degree
_HEIGHTS_M = {Signal.WIND_SPEED_80M: 80.0, Signal.WIND_SPEED_10M: 10.0}  # the nearest to a turbine's hub first
_WEATHER_HEIGHT_M = 10.0  # that the curve of turbines starts from

Outlook = Callable[[Signal], tuple[Reading[Quantity], ...]]


@dataclass(frozen=True, slots=True)
class PlantAhead:
    """Power of one kind of plant, in the steps of who foretells it."""

    kw: dict[datetime, float]
    rests_on: str


def plants_ahead(outlook: Outlook, site: SignalSite) -> tuple[PlantAhead, ...]:
    """PV and wind, as far as there are any."""
    found = []
    for signal, by_weather in ((Signal.PV_POWER, _pv), (Signal.WIND_POWER, _wind)):
        known = outlook(signal)
        plant = None if known and known[0].source != MODELLED else by_weather(outlook, site)
        if plant is None and known:
            rests_on = f"{signal}: {known[0].source} ({known[0].note})"
            plant = PlantAhead({reading.at: reading.value.number for reading in known}, rests_on)
        found += [] if plant is None else [plant]
    return tuple(found)


def _pv(outlook: Outlook, site: SignalSite) -> PlantAhead | None:
    light = outlook(Signal.IRRADIANCE)
    if not site.onsite.pv_kw_peak or not light or light[0].source == MODELLED:
        return None
    warmth = {reading.at: reading.value.number for reading in outlook(Signal.TEMPERATURE)}
    air_c = np.array([warmth.get(reading.at, MILD_C) for reading in light])
    plant = PvPlant(site.onsite.pv_kw_peak)
    kw = pv_power_kw(plant, np.array([reading.value.number for reading in light]), air_c)
    return _ahead(Signal.PV_POWER, light, kw)


def _wind(outlook: Outlook, site: SignalSite) -> PlantAhead | None:
    if not site.onsite.wind_kw:
        return None
    plant = WindPlant(site.onsite.wind_kw)
    for signal, height_m in _HEIGHTS_M.items():
        wind = outlook(signal)
        if wind and wind[0].source != MODELLED:
            low = (_WEATHER_HEIGHT_M / height_m) ** plant.shear_exponent
            return _ahead(
                Signal.WIND_POWER,
                wind,
                wind_power_kw(plant, low * np.array([reading.value.number for reading in wind])),
            )
    return None


def _ahead(signal: Signal, weather: tuple[Reading[Quantity], ...], kw: np.ndarray) -> PlantAhead:
    at = (reading.at for reading in weather)
    return PlantAhead(
        dict(zip(at, kw.tolist(), strict=True)), f"{signal}: {weather[0].source} (weather, on the plate of the plant)"
    )


# What will the power be like? Trains when it is due, forecasts once an hour, in a thread: nothing waits for it.


MODELLED_NOTE = "this grid is not measured: the same yearly mean for every hour, with guessed intervals"


@dataclass(slots=True)
class Forecaster:
    """One zone's models, by the hour of the day from which they forecast; each is trained again when it is due."""

    _trained: dict[int, Trained] = field(default_factory=dict)

    def forecast(self, known: KnownHours) -> CarbonForecast:
        """Slow: call it in a thread, one at a time."""
        history = known.history
        trained = self._trained.get(history.end.hour)
        if trained is None or due(trained, history.end) is not None:
            trained = self._trained[history.end.hour] = train(history)
        return forecast(trained, history)


@dataclass(frozen=True, slots=True)
class OnsiteAhead:
    """What the hub's own plants are expected to give, by full hour, and who says so."""

    kw: dict[datetime, float]
    rests_on: str


def onsite_ahead(plants: Sequence[PlantAhead]) -> OnsiteAhead:
    """All plants together."""
    kw: dict[datetime, float] = {}
    for plant in plants:
        for at, power_kw in plant.kw.items():
            kw[at] = kw.get(at, 0.0) + power_kw
    return OnsiteAhead(kw, "; ".join(plant.rests_on for plant in plants))


def grid_forecast(
    made: CarbonForecast, onsite: OnsiteAhead, *, hub_id: str, grid_zone: str, modelled: bool, now: datetime
) -> GridForecast:
    """As it is shown. Without a back-test the errors are left out: no figure is better than a made-up one."""
    low, low_half, high_half, high = (made.quantiles[level] for level in (0.05, 0.25, 0.75, 0.95))
    hours = tuple(
        ForecastHour(
            at=(at := made.start + index * HOUR),
            g_per_kwh=_round(made.mean[index]),
            low=_round(low[index]),
            high=_round(high[index]),
            low_half=_round(low_half[index]),
            high_half=_round(high_half[index]),
            onsite_kw=onsite.kw.get(at),
        )
        for index in range(len(made.mean))
    )
    tested = made.error.days > 0
    return GridForecast(
        hub_id=hub_id,
        grid_zone=grid_zone,
        made_at=now,
        hours=hours,
        model=made.model,
        kind=("average", "lifecycle", "location"),
        error_days=made.error.days,
        error_pct_by_day=_known(made.error.by_day_pct) if tested else (),
        persistence_error_pct_by_day=_known(made.error.persistence_by_day_pct) if tested else (),
        trained_from=made.trained_on.start,
        trained_until=made.trained_on.end,
        hours_observed=made.trained_on.hours_observed,
        onsite_rests_on=onsite.rests_on,
        notes=(MODELLED_NOTE,) if modelled else made.notes,
    )


def cut_to(forecast: GridForecast, hours: int, now: datetime) -> tuple[ForecastHour, ...]:
    """The next hours that are not over yet."""
    return tuple(hour for hour in forecast.hours if hour.at + timedelta(hours=1) > now)[:hours]


def _known(errors: tuple[float, ...]) -> tuple[float, ...]:
    """Days ahead in order; a day whose error is not known ends the list."""
    known: list[float] = []
    for error in errors:
        if not math.isfinite(error):
            break
        known.append(_round(error))
    return tuple(known)


def _round(value: float) -> float:
    return round(float(value), 2)
