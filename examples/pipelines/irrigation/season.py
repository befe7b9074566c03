"""What happens to water in a field? Weather and soil by the hour, simple and seeded: modelled, not measured.

A field is a bucket. Rain and the valve fill it; plants and sun empty it (by the Jensen-Haise formula, times a crop
factor), the wetter it is the more, because bare wet soil evaporates too; what does not fit drains away and is lost.
Below half full, plants suffer and take less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
HOURS = 24
WET_SOIL = 0.4  # how much more a full field loses than one that is half full
STRESS = 0.5  # of the capacity; below it plants suffer
MINUTES_MAX = 120.0


@dataclass
class Season:
    """Hourly weather (days, 24) for all fields, forecasts for each day (days,), and what each field is like."""

    temperature_c: Array
    radiation_w_m2: Array
    humidity: Array
    rain_mm: Array
    rain_forecast_mm: Array
    sun_forecast_w_m2: Array
    capacity_mm: Array
    valve_mm_per_min: Array
    crop_factor: Array
    noise: Array  # of the moisture sensor, (days, fields)

    @property
    def days(self) -> int:
        return len(self.temperature_c)

    @property
    def fields(self) -> int:
        return len(self.capacity_mm)

    def demand_mm(self, day: int) -> Array:
        """What well-watered plants would take in each hour, (24, fields)."""
        warmth = np.maximum(0.025 * self.temperature_c[day] + 0.08, 0)
        evaporation = warmth * self.radiation_w_m2[day] * 3600 / 2.45e6
        return evaporation[:, None] * self.crop_factor


def make_season(days: int, fields: int, seed: int) -> Season:
    """A spring and summer of the Gharb plain, roughly: heat, and now and then a day or two of rain."""
    rng = np.random.default_rng(seed)
    hour = np.arange(HOURS)
    season = np.sin(np.pi * np.arange(days) / max(days - 1, 1))
    cloud = np.empty(days)
    state = 0.2
    for day in range(days):
        state = 0.65 * state + rng.normal(0.11, 0.2)
        cloud[day] = state
    cloud = np.clip(cloud, 0, 1)
    sun = np.maximum(np.sin(np.pi * (hour - 6) / 13), 0)
    radiation = (650 + 250 * season)[:, None] * sun * (1 - 0.75 * cloud)[:, None]
    temperature = (17 + 8 * season)[:, None] + 7 * np.sin(np.pi * (hour - 9) / 12) - 4 * cloud[:, None]
    temperature = temperature + rng.normal(0, 1, (days, 1))
    humidity = np.clip(0.75 - 0.012 * (temperature - 15) + 0.25 * cloud[:, None], 0.1, 1)
    wet = (cloud > 0.45) & (rng.random(days) < 0.75)
    daily = np.where(wet, rng.gamma(1.6, 6.0, days), 0.0)
    rain = np.zeros((days, HOURS))
    for day in np.flatnonzero(wet):
        start, length = rng.integers(0, 18), rng.integers(2, 7)
        rain[day, start : start + length] = daily[day] / length
    # Forecasts miss the amount, one wet day in ten altogether, and cry wolf on some cloudy days.
    forecast = daily * rng.lognormal(-0.06, 0.35, days) * (rng.random(days) > 0.1)
    forecast = forecast + np.where(~wet & (cloud > 0.4) & (rng.random(days) < 0.3), rng.gamma(1.2, 3.0, days), 0)
    return Season(
        temperature_c=temperature,
        radiation_w_m2=radiation,
        humidity=humidity,
        rain_mm=rain,
        rain_forecast_mm=forecast,
        sun_forecast_w_m2=radiation.mean(axis=1) * rng.lognormal(0, 0.12, days),
        capacity_mm=rng.uniform(45, 110, fields),
        valve_mm_per_min=rng.uniform(0.10, 0.25, fields),
        crop_factor=rng.uniform(0.7, 1.15, fields),
        noise=rng.normal(0, 0.02, (days, fields)),
    )


def live_a_day(season: Season, day: int, water_mm: Array, minutes: Array) -> tuple[Array, Array, Array]:
    """A day from 5 in the morning, the valve first: water at its end, hours of stress, and what drained away.

    `minutes` is one value for each field, or several rows of them to try."""
    given = minutes * season.valve_mm_per_min
    water = water_mm + given
    drained = np.maximum(water - season.capacity_mm, 0)
    water = water - drained
    demand = season.demand_mm(day)
    stressed = np.zeros_like(water)
    for hour in range(HOURS):
        fullness = water / season.capacity_mm
        stressed += fullness < STRESS
        wetness = np.clip((fullness - STRESS) / (1 - STRESS), 0, 1)
        taken = demand[hour] * (np.minimum(fullness / STRESS, 1) + WET_SOIL * wetness)
        water = np.maximum(water - taken, 0) + season.rain_mm[day, hour]
        surplus = np.maximum(water - season.capacity_mm, 0)
        water, drained = water - surplus, drained + surplus
    return water, stressed, drained


FEATURES = (
    "soil-moisture.last",
    "air-temp.mean",
    "air-temp.max",
    "radiation.mean",
    "sun-forecast.last",
    "humidity.mean",
    "rain-forecast.last",
    "capacity_mm",
    "valve_mm_per_min",
    "crop_factor",
)


def features(season: Season, day: int, water_mm: Array) -> Array:
    """What SENSE knows at 5 in the morning: the last day's weather, the sensor in the soil, and the forecast."""
    before = max(day - 1, 0)
    weather = (
        season.temperature_c[before].mean(),
        season.temperature_c[before].max(),
        season.radiation_w_m2[before].mean(),
        season.sun_forecast_w_m2[day],
        season.humidity[before].mean(),
        season.rain_forecast_mm[day],
    )
    moisture = np.clip(water_mm / season.capacity_mm + season.noise[day], 0, 1) * 100
    shared = np.broadcast_to(weather, (season.fields, len(weather)))
    own = (season.capacity_mm, season.valve_mm_per_min, season.crop_factor)
    return np.column_stack((moisture, shared, *own))


def need_mm(season: Season, day: int, water_mm: Array) -> Array:
    """Looking back: how much water in the morning would just have kept the field above stress until the next one."""
    tried = np.arange(0.0, 40.0, 0.5)[:, None]
    stressed = live_a_day(season, day, water_mm, tried / season.valve_mm_per_min)[1] > 0
    return tried[np.minimum(stressed.sum(axis=0), len(tried) - 1), 0]  # more water never means more stress
