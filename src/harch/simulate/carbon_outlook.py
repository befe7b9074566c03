"""What does the planner know of power and GPUs at a moment of a replay? Meters until now, and forecasts from them.

PV is forecast as HarchOS does on site: the usual day, moved by the present. Wind has no usual day: it returns from
where it is to its mean, as slowly as it did in the last weeks. The oracle is told what will be instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harch.carbon.forecasts.nowcast import onsite_nowcast
from harch.carbon.planning.outlook import Floats, HubHours, Outlook, Pool, RestsOn
from harch.fleet.model import Fleet
from harch.simulate.carbon_meter import Plants, hourly_from, hourly_until
from harch.simulate.carbon_weather import HISTORY_DAYS

HORIZON_H = 48
# GPUs of a pool that are left to work that cannot wait: a share, and in small pools a node's worth, at most a quarter.
KEPT_SHARE, KEPT_MIN, KEPT_OF_POOL_MAX = 0.06, 8, 0.25
LOAD_SPREAD = 0.1  # of a hub's power: what comes and ends meanwhile is not known either
FADE_H = 12.0
_FADING = float(np.exp(-1 / FADE_H))
_DAYS_OF_SUN = 7
_MEMORY_MAX = 0.995
FORECAST = RestsOn("on-site meters of the last weeks, yearly mean of the grid")
PERFECT = RestsOn("what will be, yearly mean of the grid")


def outlook_of(
    fleet: Fleet, plants: Mapping[str, Plants], pools: tuple[Pool, ...], now_s: float, *, perfect: bool
) -> Outlook:
    hubs = []
    for hub in fleet.hubs:
        own = plants[hub.id]
        load_kw = LOAD_SPREAD * sum(node.power_w_max for node in hub.nodes) / 1000
        variance = load_kw**2 * _unknown(_FADING)
        if perfect:
            onsite_kw = hourly_from(own.onsite_kw, own.step(now_s), HORIZON_H)
        else:
            pv_kw, pv_variance = forecast_pv(hourly_until(own.pv_kw, own.step(now_s), _DAYS_OF_SUN * 24))
            wind_kw, wind_variance = forecast_wind(hourly_until(own.wind_kw, own.step(now_s), (HISTORY_DAYS - 1) * 24))
            onsite_kw = pv_kw + wind_kw
            variance = variance + pv_variance + wind_variance
        hubs.append(
            HubHours(
                hub=hub.id,
                grid_g_per_kwh=np.full(HORIZON_H, float(own.grid_g_per_kwh[own.step(now_s)])),
                onsite_kw=onsite_kw,
                onsite_sd_kw=np.sqrt(variance),
                onsite_g_per_kwh=own.onsite_g_per_kwh,
                pue=own.pue,
                rests_on=PERFECT if perfect else FORECAST,
            )
        )
    return Outlook(tuple(hubs), pools)


def forecast_pv(measured_kw: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the next hours, from a week of them. The present hour is what the meter shows."""
    mean = onsite_nowcast(measured_kw, HORIZON_H)
    mean[0] = measured_kw[-1]
    by_day = np.resize(measured_kw.reshape(-1, 24).var(axis=0), HORIZON_H)
    return mean, by_day * _unknown(_FADING)


def forecast_wind(measured_kw: Floats) -> tuple[Floats, Floats]:
    """As above: a mean-reverting process with the mean, the spread and the memory of the hours that were measured."""
    mean, variance = float(measured_kw.mean()), float(measured_kw.var())
    away = measured_kw - mean
    square = float(away @ away)
    memory = float(np.clip(away[1:] @ away[:-1] / square, 0.0, _MEMORY_MAX)) if square > 0 else 0.0
    ahead = mean + (measured_kw[-1] - mean) * memory ** np.arange(HORIZON_H)
    return np.maximum(ahead, 0.0), variance * _unknown(memory)


def _unknown(memory: float) -> Floats:
    """How much of the variance is open again after so many hours."""
    hours = np.arange(HORIZON_H, dtype=np.float64)
    return 1.0 - memory ** (2.0 * hours)


def pools_of(fleet: Fleet) -> tuple[Pool, ...]:
    pools = []
    for hub in fleet.hubs:
        for model in hub.gpu_models:
            nodes = [node for node in hub.nodes if node.gpu_model.name == model]
            gpus = sum(len(node.gpus) for node in nodes)
            kw = sum(node.power_w_max for node in nodes) / 1000 / gpus
            kept = max(round(KEPT_SHARE * gpus), min(KEPT_MIN, int(KEPT_OF_POOL_MAX * gpus)))
            pools.append(Pool(hub.id, model, gpus, kw, gpus_kept=kept))
    return tuple(pools)
