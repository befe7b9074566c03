"""How do sun, wind and grid go, and what did a hub draw from them?

Quarter of an hour by quarter of an hour, modelled from one seed or read from a file; meters bill what the plants
really gave.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from harch.base.errors import HarchError
from harch.carbon.planning.outlook import Floats
from harch.carbon.signals.sites import clear_sky_w_per_m2
from harch.carbon.signals.sources.modelled import shipped_facts
from harch.fleet.model import Fleet, Hub
from harch.simulate.carbon_scenario import Weather

# How do sun, wind and grid go, quarter of an hour by quarter of an hour? Modelled from one seed, or read from a file.
#
# The sun's course is computed; clearness is a mean with good and bad days and with clouds. Wind is a mean-reverting
# process, squeezed so that its mean is the hub's capacity factor. Grids are their yearly means. All of it is
# `estimated`.


STEP_S = 900
STEPS_PER_HOUR = 3600 // STEP_S
STEPS_PER_DAY = 24 * STEPS_PER_HOUR
HISTORY_DAYS = 29  # known before the replay begins, for forecasts
TAIL_DAYS = 6  # after the last arrival: deferred work ends, and forecasts look beyond it
ROWS_MAX = 5_000_000
_COLUMNS = ("time", "hub", "pv_share", "wind_share", "grid_g_per_kwh")


@dataclass(frozen=True, eq=False)
class HubWeather:
    """Shares of the plants' plates, and the grid, per step."""

    pv_share: Floats
    wind_share: Floats
    grid_g_per_kwh: Floats


@dataclass(frozen=True, eq=False)
class WeatherYear:
    """From `HISTORY_DAYS` before the first arrival on."""

    start: datetime
    hubs: dict[str, HubWeather]


def weather_of(fleet: Fleet, weather: Weather, first_day: datetime, days: int, *, seed: int) -> WeatherYear:
    start = first_day - timedelta(days=HISTORY_DAYS)
    steps = (HISTORY_DAYS + days + TAIL_DAYS) * STEPS_PER_DAY
    if weather.csv is not None:
        return _read(Path(weather.csv), fleet, start, steps)
    random = np.random.default_rng([seed, first_day.toordinal()])
    shared = _mean_reverting(steps, weather.wind_hours, random)
    return WeatherYear(start, {hub.id: _modelled(hub, weather, start, steps, shared, random) for hub in fleet.hubs})


def _modelled(
    hub: Hub, weather: Weather, start: datetime, steps: int, shared: Floats, random: np.random.Generator
) -> HubWeather:
    facts = shipped_facts()
    middles = [start + timedelta(seconds=STEP_S * (step + 0.5)) for step in range(steps)]
    light = np.array([clear_sky_w_per_m2(at, hub.latitude, hub.longitude) for at in middles]) / 1000.0
    days = _memory(-(-steps // STEPS_PER_DAY), weather.clearness_day_memory, random) * weather.clearness_day_sd
    clouds = _mean_reverting(steps, weather.clearness_step_hours, random) * weather.clearness_step_sd
    clearness = np.clip(weather.clearness_mean + np.repeat(days, STEPS_PER_DAY)[:steps] + clouds, 0.05, 1.0)
    own = _mean_reverting(steps, weather.wind_hours, random)
    wind = np.sqrt(weather.wind_shared) * shared + np.sqrt(1 - weather.wind_shared) * own
    factor = facts.wind_capacity_factors.get(hub.id, facts.wind_capacity_factor_elsewhere)
    return HubWeather(
        np.minimum(light * clearness * weather.performance, 1.0),
        _with_mean(factor, weather.wind_spread, wind),
        np.full(steps, facts.grid(hub.grid_zone, hub.country)[0]),
    )


def _mean_reverting(steps: int, hours: float, random: np.random.Generator) -> Floats:
    return _memory(steps, float(np.exp(-1 / (hours * STEPS_PER_HOUR))), random)


def _memory(count: int, kept: float, random: np.random.Generator) -> Floats:
    """A standard normal value per step, each correlated with the one before."""
    noise = random.standard_normal(count)
    values = np.empty(count)
    values[0] = noise[0]
    for step in range(1, count):
        values[step] = kept * values[step - 1] + np.sqrt(1 - kept**2) * noise[step]
    return values


def _with_mean(mean: float, spread: float, normal: Floats) -> Floats:
    """Squeezed into 0 to 1 so that the long-run mean is `mean`, whatever this sample's is."""
    middle = (np.arange(2000) + 0.5) / 2000
    grid = np.sqrt(2.0) * _inverse_erf(2 * middle - 1)
    low, high = -20.0, 20.0
    for _ in range(60):
        shift = (low + high) / 2
        low, high = (shift, high) if float(_squeezed(shift + spread * grid).mean()) < mean else (low, shift)
    return _squeezed(low + spread * normal)


def _squeezed(values: Floats) -> Floats:
    squeezed: Floats = 1.0 / (1.0 + np.exp(-values))
    return squeezed


def _inverse_erf(values: Floats) -> Floats:
    """Winitzki's approximation, good to 0.004."""
    logs = np.log1p(-(values**2))
    first = 2 / (np.pi * 0.147) + logs / 2
    found: Floats = np.sign(values) * np.sqrt(np.sqrt(first**2 - logs / 0.147) - first)
    return found


def _read(path: Path, fleet: Fleet, start: datetime, steps: int) -> WeatherYear:
    """`time,hub,pv_share,wind_share` and if known `grid_g_per_kwh`; a value holds until the hub's next one."""
    arrays = {hub.id: np.full((3, steps), np.nan) for hub in fleet.hubs}
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                if number > ROWS_MAX:
                    raise HarchError("E0201", f"{path}: more than {ROWS_MAX:,} rows")
                _enter(arrays, row, start, steps, f"{path}, line {number}")
    except OSError as error:
        raise HarchError("E0202", f"cannot read `{path}`: {(error.strerror or 'not a file').lower()}") from error
    found = {}
    for hub in fleet.hubs:
        values = arrays[hub.id]
        grid = shipped_facts().grid(hub.grid_zone, hub.country)[0]
        known = ~np.isnan(values[0])
        if not known[: STEPS_PER_DAY // 4].any():
            raise HarchError(
                "E0201",
                f"{path} does not cover hub {hub.id} from {start:%Y-%m-%d} on",
                hint=f"weather data must begin {HISTORY_DAYS} days before the first week",
            )
        last = np.maximum.accumulate(np.where(known, np.arange(steps), 0))
        held = values[:, np.maximum(last, int(np.argmax(known)))]
        found[hub.id] = HubWeather(held[0], held[1], np.where(np.isnan(held[2]), grid, held[2]))
    return WeatherYear(start, found)


def _enter(arrays: dict[str, Floats], row: dict[str, str], start: datetime, steps: int, where: str) -> None:
    try:
        at = datetime.fromisoformat(row["time"])
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        values = [float(row["pv_share"]), float(row["wind_share"]), float(row.get("grid_g_per_kwh") or "nan")]
    except (KeyError, TypeError, ValueError) as error:
        raise HarchError("E0201", f"{where}: {error}", hint=f"columns are {', '.join(_COLUMNS)}") from error
    if not all(0 <= share <= 1 for share in values[:2]) or values[2] < 0:
        raise HarchError("E0201", f"{where}: shares must be 0 to 1, intensities at least 0")
    step = int((at - start).total_seconds() // STEP_S)
    if row["hub"] in arrays and 0 <= step < steps:
        arrays[row["hub"]][:, step] = values


# How much power did a hub draw, and from where? A meter that bills what the plants really gave, never the forecast.


@dataclass(eq=False)
class Plants:
    """What really happens at a hub, per step of the weather."""

    pv_kw: Floats
    wind_kw: Floats
    grid_g_per_kwh: Floats
    onsite_g_per_kwh: float
    pue: float

    def __post_init__(self) -> None:
        self.onsite_kw: Floats = self.pv_kw + self.wind_kw

    def step(self, now_s: float) -> int:
        """The step that holds this moment of the replay; after the end of the weather, its last."""
        return min(HISTORY_DAYS * STEPS_PER_DAY + int(now_s // STEP_S), len(self.onsite_kw) - 1)


@dataclass
class PowerMeter:
    """Facility energy of one hub: from on site while it lasts, the rest from the grid."""

    plants: Plants
    it_kw: float = 0.0
    grid_kwh: float = 0.0
    onsite_kwh: float = 0.0
    grams: float = 0.0
    it_kwh: float = 0.0
    _now_s: float = 0.0
    hourly_kwh: dict[int, tuple[float, float]] = field(default_factory=dict)  # by hour: on site, grid

    def advance(self, now_s: float) -> None:
        while self._now_s < now_s:
            step = self.plants.step(self._now_s)
            until_s = min(now_s, (self._now_s // STEP_S + 1) * STEP_S)
            hours = (until_s - self._now_s) / 3600
            load_kw = self.it_kw * self.plants.pue
            onsite = min(load_kw, float(self.plants.onsite_kw[step])) * hours
            self._book(step, onsite, load_kw * hours - onsite)
            self.it_kwh += self.it_kw * hours
            self._now_s = until_s

    def change(self, now_s: float, it_kw: float) -> None:
        self.advance(now_s)
        self.it_kw = max(self.it_kw + it_kw, 0.0)

    def transfer(self, now_s: float, kwh: float) -> None:
        """Energy of moving data, billed as the grid's: nobody knows whose surplus the routers used."""
        self.advance(now_s)
        self._book(self.plants.step(now_s), 0.0, kwh)

    def _book(self, step: int, onsite_kwh: float, grid_kwh: float) -> None:
        plants = self.plants
        self.onsite_kwh += onsite_kwh
        self.grid_kwh += grid_kwh
        self.grams += onsite_kwh * plants.onsite_g_per_kwh + grid_kwh * float(plants.grid_g_per_kwh[step])
        hour = int(self._now_s // 3600)
        before = self.hourly_kwh.get(hour, (0.0, 0.0))
        self.hourly_kwh[hour] = (before[0] + onsite_kwh, before[1] + grid_kwh)

    @property
    def kwh(self) -> float:
        return self.grid_kwh + self.onsite_kwh


def hourly_until(series_kw: Floats, step: int, hours: int) -> Floats:
    """Means of the last hours up to a step; the last is what the meter shows at this moment."""
    first = step - hours * STEPS_PER_HOUR
    if first < 0:
        raise ValueError("the weather does not go back that far")
    means: Floats = series_kw[first:step].reshape(hours, STEPS_PER_HOUR).mean(axis=1)
    return np.concatenate([means[1:], series_kw[step : step + 1]])


def hourly_from(series_kw: Floats, step: int, hours: int) -> Floats:
    """What will really be: for the oracle only."""
    wanted = np.minimum(np.arange(step, step + hours * STEPS_PER_HOUR), len(series_kw) - 1)
    means: Floats = series_kw[wanted].reshape(hours, STEPS_PER_HOUR).mean(axis=1)
    return means
