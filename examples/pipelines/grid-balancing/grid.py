"""What does a small grid's frequency do? Sun, wind and load by the second, simple and seeded: modelled, not measured.

A 10 MW island grid: the frequency falls while load exceeds generation, and a slow engine follows it. Clouds come over
an upwind irradiance sensor some seconds before they reach the panels. A battery answers set-points after a delay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
STEP_S = 1  # of a decision; SENSE slides its windows by it
DELAY_STEPS = 2  # until a set-point is in effect
WINDOW_S = 10
CLOUD_LEAD_S = 4
RATED_KW = 10_000.0
BATTERY_KW = 2_000.0
BATTERY_KWH = 1_000.0
INERTIA_S = 6.0
DAMPING = 2.0  # per unit of power for each per unit of frequency
ENGINE_S = 8.0
ENGINE_DROOP = 0.08
HERTZ = 50.0


@dataclass
class Hour:
    """Per second: panels, upwind sensor, wind turbines and load, in kW (the sensor in W/m²)."""

    pv_kw: Array
    upwind_w_m2: Array
    wind_kw: Array
    load_kw: Array

    @property
    def seconds(self) -> int:
        return len(self.pv_kw)

    @property
    def scheduled_kw(self) -> Array:
        """What the engine was told to give for the hour: the mean of what was expected to be missing."""
        return np.full(self.seconds, float((self.load_kw - self.pv_kw - self.wind_kw).mean()))

    @property
    def missing_kw(self) -> Array:
        return self.load_kw - self.pv_kw - self.wind_kw - self.scheduled_kw


def make_hours(hours: int, seed: int, seconds: int = 3600) -> list[Hour]:
    return [_hour(np.random.default_rng((seed, number)), seconds) for number in range(hours)]


def _hour(rng: np.random.Generator, seconds: int) -> Hour:
    total = seconds + CLOUD_LEAD_S
    clear = np.ones(total)
    at = 0
    while at < total:
        at += int(rng.exponential(110)) + 10
        length, depth, edge = int(rng.exponential(45)) + 15, rng.uniform(0.2, 0.7), int(rng.uniform(4, 12))
        shape = np.minimum(1, np.minimum(np.arange(length), np.arange(length)[::-1]) / edge)
        part = slice(at, min(at + length, total))
        clear[part] = np.minimum(clear[part], 1 - depth * shape[: max(0, part.stop - part.start)])
    sun = rng.uniform(600, 950)
    over_sensor, over_panels = clear[CLOUD_LEAD_S:], clear[:seconds]
    wind = _wander(rng, seconds, 2_000, 350, 40)
    load = _wander(rng, seconds, 7_000, 250, 90)
    for second in rng.integers(0, seconds, 6):  # pumps and ovens
        load[second:] += rng.choice([-1, 1]) * rng.uniform(100, 500)
    return Hour(
        pv_kw=4_000 * sun / 950 * over_panels,
        upwind_w_m2=sun * over_sensor + rng.normal(0, 8, seconds),
        wind_kw=np.maximum(wind, 0),
        load_kw=load,
    )


def _wander(rng: np.random.Generator, seconds: int, mean: float, spread: float, memory_s: float) -> Array:
    """An Ornstein-Uhlenbeck walk."""
    keep = np.exp(-1 / memory_s)
    steps = rng.normal(0, spread * np.sqrt(1 - keep**2), seconds)
    walk = np.empty(seconds)
    state = rng.normal(0, spread)
    for second in range(seconds):
        state = keep * state + steps[second]
        walk[second] = state
    return mean + walk


FEATURES = (
    "frequency.last",
    "pv.last",
    "pv.mean",
    "upwind.last",
    "upwind.mean",
    "wind.last",
    "wind.mean",
    "load.last",
    "load.mean",
    "scheduled.last",
    "charge.last",
)


def observed(hour: Hour) -> Array:
    """What SENSE knows at each second (seconds, features): last values, and means of the last ten seconds.

    Frequency and charge depend on what the controller does, and are filled in while it does it.
    """
    columns = [np.full(hour.seconds, HERTZ)]
    for series in (hour.pv_kw, hour.upwind_w_m2, hour.wind_kw, hour.load_kw):
        total = np.concatenate(([0.0], np.cumsum(series)))
        end = np.arange(1, hour.seconds + 1)
        start = np.maximum(end - WINDOW_S, 0)
        columns += [series, (total[end] - total[start]) / (end - start)]
    return np.column_stack((*columns, hour.scheduled_kw, np.full(hour.seconds, 0.5)))


@dataclass
class Ride:
    """One hour under a controller. `charge` is the battery's state, 0 to 1."""

    deviation_hz: Array
    battery_kw: Array
    curtailed_kw: Array

    @property
    def rms_mhz(self) -> float:
        return float(np.sqrt((self.deviation_hz**2).mean()) * 1000)

    @property
    def share_beyond_200_mhz(self) -> float:
        return float((np.abs(self.deviation_hz) > 0.2).mean())

    @property
    def battery_kwh(self) -> float:
        """Energy through the battery: what wears it."""
        return float(np.abs(self.battery_kw).sum() / 3600)

    @property
    def curtailed_kwh(self) -> float:
        return float(self.curtailed_kw.sum() / 3600)
