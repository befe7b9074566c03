"""What does the energy benchmark replay? Real prices and intensities by path, and own plants that are modelled here.

The plants: clear-sky PV by the sun's height at 33.6° N under a cloud factor that changes from day to day and from hour
to hour, and wind that wanders around a capacity factor of 0.3. One seed, so that every run has the same year.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from harch.energy.procurement.problem import Battery, ProcurementProblem
from harch.energy.steps import Array, Steps
from harch.energy.tariffs.prices import SpotSeries, expected_spot
from harch.energy.tariffs.terms import SpotPrice

PRICES_FILE = "hpe_electricity_prices_standardized_6zones.csv.gz"
INTENSITY_FILE = "emaps_hourly_2021_2023_ES_NO_BR_CISO.csv.gz"
# Zones with prices and intensities. Results of both day-ahead markets are out by 13:00 on the day before.
MARKETS = {
    "ES": SpotPrice("ES", ZoneInfo("Europe/Madrid"), time(13)),
    "US-CAL-CISO": SpotPrice("US-CAL-CISO", ZoneInfo("America/Los_Angeles"), time(13)),
}

LOAD_KW, PV_KW, WIND_KW = 700.0, 2000.0, 1000.0
BATTERY = Battery(energy_kwh=4000.0, power_kw=1000.0)
SALE_PER_MWH = 20.0
IMPORT_KW_MAX = 3000.0
LATITUDE_DEG = 33.6
HISTORY_DAYS = 7
SEED = 7  # of the modelled weather
# How long today's deviation from the week lasts: clouds and gusts pass sooner than the weather of a whole grid.
OWN_DECAY_H, GRID_DECAY_H = 12.0, 48.0
# Surplus is what exceeds the load, so the surplus of a mean day is less than the mean surplus. Plans that expect means
# have no room in the battery on good days; these expect one standard deviation of the week more.
SPREAD = 1.0


@dataclass(frozen=True)
class Year:
    """Hourly series from `start`; each window needs a week of history before it and two days after it."""

    start: datetime
    spot: SpotSeries
    grid_g_per_kwh: Array
    own_kw: Array

    @property
    def market(self) -> SpotPrice:
        return MARKETS[self.spot.zone]

    def world(self, first: datetime, days: int) -> ProcurementProblem:
        """What happened."""
        return self._problem(Steps(first, 3600, days * 24), now=None)

    def outlook(self, now: datetime, steps: Steps) -> ProcurementProblem:
        """What was expected at `now`: published prices, and week means drawn towards the running hour for the rest."""
        return self._problem(steps, now=now)

    def _problem(self, steps: Steps, *, now: datetime | None) -> ProcurementProblem:
        index = round((steps.start - self.start).total_seconds() / 3600)
        if now is None:
            prices = self.spot.over(steps)
            own, grid = (values[index : index + steps.count] for values in (self.own_kw, self.grid_g_per_kwh))
        else:
            prices = expected_spot(self.spot, self.market, steps, now=now)
            own = nowcast(self.own_kw, index, steps.count, OWN_DECAY_H)
            grid = nowcast(self.grid_g_per_kwh, index, steps.count, GRID_DECAY_H)
            own = own + SPREAD * spread(self.own_kw, index, steps.count)
        return ProcurementProblem(
            steps=steps,
            currency="USD",
            load_kwh=np.full(steps.count, LOAD_KW),
            own_kwh=own,
            import_per_mwh=prices,
            grid_g_per_kwh=grid,
            import_kw_max=IMPORT_KW_MAX,
            sale_per_mwh=np.full(steps.count, SALE_PER_MWH),
            battery=BATTERY,
            stored_kwh=BATTERY.energy_kwh / 2,
        )


def nowcast(values: Array, index: int, count: int, decay_h: float) -> Array:
    """The mean of the same hour of the last days plus today's deviation, which fades; never below 0."""
    offsets = np.arange(count)
    past = np.array([values[index + offsets % 24 - 24 * day] for day in range(1, HISTORY_DAYS + 1)])
    usual = past.mean(axis=0)
    return np.maximum(usual + (values[index] - usual[0]) * np.exp(-offsets / decay_h), 0.0)


def spread(values: Array, index: int, count: int) -> Array:
    """How much the same hour of the last days varied; nothing for the running hour, all of it after six hours."""
    offsets = np.arange(count)
    past = np.array([values[index + offsets % 24 - 24 * day] for day in range(1, HISTORY_DAYS + 1)])
    return past.std(axis=0) * np.minimum(offsets / 6, 1.0)


def read_year(data: Path, zone: str, year: int, seed: int = SEED) -> Year:
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    count = round((end - start).total_seconds() / 3600)
    steps = Steps(start, 3600, count)
    prices = _read(data / PRICES_FILE, zone, "zone", "Datetime (UTC)", "Price (USD/MWh)", steps)
    grid = _read(data / INTENSITY_FILE, zone, "zone", "utc", "ci_lifecycle", steps)
    return Year(start, SpotSeries(zone, "USD", steps, prices), grid, own_production_kw(steps, seed))


def _read(path: Path, zone: str, zone_key: str, time_key: str, value_key: str, steps: Steps) -> Array:
    found = np.full(steps.count, np.nan)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row[zone_key] == zone:
                moment = datetime.fromisoformat(row[time_key][:19]).replace(tzinfo=UTC)
                index = round((moment - steps.start).total_seconds() / 3600)
                if 0 <= index < steps.count and row[value_key]:
                    found[index] = float(row[value_key])
    missing = np.isnan(found)
    if missing.any():
        print(f"  {zone}, {value_key}: {int(missing.sum())} missing hours take the value before them")
        found = found[np.maximum.accumulate(np.where(missing, 0, np.arange(steps.count)))]
    return found


def own_production_kw(steps: Steps, seed: int) -> Array:
    """PV and wind of one modelled site."""
    chance = np.random.default_rng(seed)
    moments = steps.starts()
    hour = np.array([moment.hour + 0.5 for moment in moments])
    day = np.array([moment.timetuple().tm_yday for moment in moments])
    declination = np.radians(23.45) * np.sin(2 * np.pi * (284 + day) / 365)
    latitude, angle = np.radians(LATITUDE_DEG), np.radians(15 * (hour - 12.5))
    height = np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * np.cos(angle)
    by_day = _wander(chance, steps.count // 24 + 1, 0.6)[np.arange(steps.count) // 24]
    clearness = np.clip(0.72 + 0.18 * by_day + 0.10 * _wander(chance, steps.count, 0.7), 0.05, 1.0)
    pv = PV_KW * 0.85 * np.maximum(height, 0.0) ** 1.15 * clearness
    speed = np.clip(0.30 + 0.24 * _wander(chance, steps.count, 0.96), 0.0, 1.0)
    return pv + WIND_KW * speed


def _wander(chance: np.random.Generator, count: int, memory: float) -> Array:
    """A normal series whose neighbours are alike by `memory`."""
    noise = chance.standard_normal(count) * np.sqrt(1 - memory**2)
    found = np.empty(count)
    level = float(chance.standard_normal())
    for index in range(count):
        level = memory * level + noise[index]
        found[index] = level
    return found


def windows(year: int) -> list[datetime]:
    """Four windows of 30 days, one per season."""
    first = datetime(year, 1, 1, tzinfo=UTC)
    return [first + timedelta(days=days) for days in (14, 105, 196, 287)]
