"""What does the hub know of the next hours? Its signals and forecasts, as the planning of energy wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from harch.base.errors import HarchError
from harch.carbon.signals.sites import OnSite, Site
from harch.carbon.signals.sources.modelled import Modelled
from harch.carbon.values import Price, Signal
from harch.energy.site import EnergySite, Plant
from harch.energy.steps import Array, Steps
from harch.energy.tariffs.prices import SpotSeries
from harch.hub.carbon.service import HubCarbon
from harch.hub.energy.outlook import Known, step_of
from harch.hub.energy.step import StepRecord

HOURS_AHEAD = 96


def known_now(
    carbon: HubCarbon, hub_id: str, now: datetime, past: Sequence[StepRecord], *, spot: SpotSeries | None, prices: str
) -> Known:
    """Asks nobody: signals and forecasts are as the hub last heard or made them."""
    power = carbon.power()
    grid = power.figure("grid-average-lifecycle")
    g_ahead, rests_on = {}, [f"load: {power.load_kw:.0f} kW now, what the hub draws with its PUE (estimated)"]
    if grid.value is not None:
        rests_on.append(f"grid now: {grid.source} ({grid.evidence})")
    try:
        forecast = carbon.forecast(hub_id, HOURS_AHEAD)
        g_ahead = {hour.at: hour.g_per_kwh for hour in forecast.hours}
        rests_on.append(f"grid ahead: {forecast.model} ({forecast.evidence})")
    except HarchError:
        rests_on.append("grid ahead: no forecast yet")
    onsite = carbon.onsite_ahead()
    if any(onsite.kw.values()):
        rests_on.append(f"own plants: {onsite.rests_on} (estimated)")
    if prices:
        rests_on.append(f"spot prices: {prices}")
    return Known(
        now=now,
        load_kw=power.load_kw,
        own_kw=power.onsite_kw,
        g_per_kwh=grid.value,
        own_kw_ahead=onsite.kw,
        g_per_kwh_ahead=g_ahead,
        past=past,
        spot=spot,
        rests_on=tuple(rests_on),
    )


def prices_read(
    carbon: HubCarbon, past: Sequence[StepRecord], site: EnergySite, now: datetime
) -> dict[datetime, float]:
    """Prices by step as the hub's sources told them: past steps, the running one, and what is published ahead."""
    currency = site.tariff.currency
    found = {record.at: record.per_mwh for record in past if record.per_mwh is not None}
    power = carbon.power()
    if power.price_per_mwh is not None and power.currency == currency:
        found[step_of(now, site.step_s)] = power.price_per_mwh
    for reading in carbon.prices_ahead():
        if isinstance(reading.value, Price) and reading.value.currency == currency:
            found[step_of(reading.at, site.step_s)] = reading.value.per_mwh
    return found


def plants_ahead(plants: Mapping[str, Plant], site: Site, model: Modelled, steps: Steps) -> dict[str, Array]:
    """What plants elsewhere give, by the model of the hub's own ones."""
    return {name: _plant_kw(plant, site, model, steps) * steps.hours for name, plant in plants.items()}


def _plant_kw(plant: Plant, site: Site, model: Modelled, steps: Steps) -> Array:
    there = replace(
        site,
        latitude=site.latitude if plant.latitude is None else plant.latitude,
        longitude=site.longitude if plant.longitude is None else plant.longitude,
        onsite=OnSite(
            pv_kw_peak=plant.pv_kw_peak, wind_kw=plant.wind_kw, wind_capacity_factor=plant.wind_capacity_factor
        ),
    )
    kw = []
    for moment in steps.starts():
        middle = moment + timedelta(seconds=steps.step_s / 2)
        found = model.readings(there, middle, received_at=moment)
        kw.append(sum(one.value.number for one in found if one.signal in (Signal.PV_POWER, Signal.WIND_POWER)))
    return np.array(kw)
