"""Which real series do the carbon benchmarks use? Public files by name: they are not part of HarchOS."""

from __future__ import annotations

import csv
import gzip
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from harch.carbon.forecasts.history import DAYS_AHEAD, Floats, Fuel, SeriesHistory

MIX_FILE = "carboncast_hourly_mix_2020_2021_13zones.csv.gz"
PUBLISHED_FILE = "carboncast_tier1_forecast_lifecycle_jul_dec_2021.csv.gz"
UNSEEN_FILE = "emaps_hourly_2021_2023_ES_NO_BR_CISO.csv.gz"
# Lifecycle grams per kWh with which the file's own intensity was computed.
LIFECYCLE_G_PER_KWH = {
    "coal": 820, "nat_gas": 490, "nuclear": 12, "oil": 650, "hydro": 24, "solar": 45, "wind": 11, "other": 700,
    "unknown": 700, "biomass": 230, "geothermal": 38,
}  # fmt: skip
# Where only shares are reported: round figures between those above. The models correct their level by yesterday's.
FOSSIL_G_PER_KWH, RENEWABLE_G_PER_KWH = 600, 40


def zones_with_mix(data: Path) -> dict[str, SeriesHistory]:
    """Lifecycle intensity and MW per fuel, 2020 and 2021."""
    columns: dict[str, list[list[float]]] = {}
    with gzip.open(data / MIX_FILE, "rt") as lines:
        for row in csv.DictReader(lines):
            fuels = [float(row[fuel] or "nan") for fuel in LIFECYCLE_G_PER_KWH]
            columns.setdefault(row["zone"], []).append([float(row["ci_lifecycle"] or "nan"), *fuels])
    return {zone: _history(np.array(rows)) for zone, rows in columns.items()}


def _history(rows: Floats) -> SeriesHistory:
    mix = [Fuel(name, rows[:, 1 + i], g) for i, (name, g) in enumerate(LIFECYCLE_G_PER_KWH.items())]
    given = tuple(fuel for fuel in mix if np.isfinite(fuel.mw).any())
    return SeriesHistory(datetime(2020, 1, 1, tzinfo=UTC), rows[:, 0], given)


def zones_unseen(data: Path, shares: bool = False) -> dict[str, SeriesHistory]:
    """Lifecycle intensity, 2021 to 2023; with `shares`, the reported low-carbon and renewable % stand in for a mix."""
    columns: dict[str, list[list[float]]] = {}
    with gzip.open(data / UNSEEN_FILE, "rt") as lines:
        for row in csv.DictReader(lines):
            names = ("ci_lifecycle", "low_carbon_pct", "renewable_pct")
            columns.setdefault(row["zone"], []).append([float(row[name] or "nan") for name in names])
    found = {}
    for zone, rows in columns.items():
        intensity, low_carbon, renewable = np.array(rows).T
        mix = (
            Fuel("fossil", 100.0 - low_carbon, FOSSIL_G_PER_KWH),
            Fuel("nuclear", np.maximum(low_carbon - renewable, 0.0), LIFECYCLE_G_PER_KWH["nuclear"]),
            Fuel("renewable", renewable, RENEWABLE_G_PER_KWH),
        )
        found[zone] = SeriesHistory(datetime(2021, 1, 1, tzinfo=UTC), intensity, mix if shares else ())
    return found


def published_errors_pct(data: Path) -> dict[str, Floats]:
    """MAPE of CarbonCast's shipped forecasts per zone and day ahead: 181 blocks of 96 h from 1 July 2021 on."""
    rows: dict[str, list[tuple[float, float]]] = {}
    with gzip.open(data / PUBLISHED_FILE, "rt") as lines:
        for row in csv.DictReader(lines):
            actual, said = row["actual_carbon_intensity_lifecycle"], row["forecasted_carbon_intensity_lifecycle"]
            rows.setdefault(row["zone"], []).append((float(actual), float(said)))
    found = {}
    for zone, pairs in rows.items():
        actual, said = np.array(pairs).reshape(-1, DAYS_AHEAD, 24, 2).transpose(3, 0, 1, 2)
        found[zone] = 100 * (np.abs(said - actual) / actual).mean(axis=(0, 2))
    return found
