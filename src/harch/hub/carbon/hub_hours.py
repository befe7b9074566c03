"""What will a hub's power be, step by step? Its present figures and its forecast, checked, as the planner wants them.

What another hub says of itself is taken only if it can be true. A hub of which nothing can be said is left out, with
the reason: unknown is never clean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from harch.base.rejection import Rejection
from harch.carbon.planning.outlook import Floats, HubHours, RestsOn
from harch.carbon.values import Signal
from harch.hub.carbon.present import BID_CURRENCY
from harch.hub.carbon.views import ForecastHour, GridForecast, HubPower
from harch.hub.routing.memory import Figures

G_PER_KWH_MAX = 2000.0  # beyond any grid or plant
KW_MAX = 1e7
PRICE_MAX = 1e6  # per MWh; it may be negative
PUE_MAX = 5.0
SAID_HOLDS = timedelta(minutes=15)  # what a hub said of its power longer ago says nothing about now
FORECAST_HOLDS = timedelta(hours=6)
ONSITE_SD_SHARE = 0.3  # how far off own power usually is, hours ahead; assumed where nobody measured it
ONSITE_G_PER_KWH = 20.0
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class HubOutlook:
    """One hub's hours, and on what they rest."""

    hours: HubHours
    figures: Figures


def hub_outlook(
    power: HubPower | None,
    forecast: GridForecast | None,
    *,
    hub_id: str,
    now: datetime,
    steps: int,
    step_s: float,
    busy_it_kw: float,
    plants: Sequence[Mapping[datetime, float]] = (),
) -> HubOutlook | Rejection:
    """`busy_it_kw` is drawn by work that the plan knows of; the rest of the load takes own power before any job does.

    `plants`: what each of its own will give, where that is known in finer steps than the forecast's.
    """
    if power is None:
        return _no(hub_id, "said", "it has not told its power")
    age = now - power.at
    if not -SAID_HOLDS <= age <= SAID_HOLDS:
        return _no(hub_id, "stale", f"its power was told {age.total_seconds():.0f} s ago")
    grid = power.figure(Signal.GRID_AVERAGE_LIFECYCLE)
    pue, loss = power.figure(Signal.PUE).value or 1.0, power.transmission_loss
    if grid.value is None or grid.at is None or not _within(grid.value, G_PER_KWH_MAX):
        return _no(hub_id, "number", "its grid's intensity is not known, or is no intensity")
    if not (_within(power.onsite_kw, KW_MAX) and _within(power.load_kw, KW_MAX) and _within(loss, 0.5)):
        return _no(hub_id, "number", "its powers or losses cannot be")
    if not 1.0 <= pue <= PUE_MAX:
        return _no(hub_id, "number", f"its PUE is {pue:g}")
    ahead = forecast if forecast is not None and abs(now - forecast.made_at) <= FORECAST_HOLDS else None
    hours = _usable(ahead.hours) if ahead is not None else {}
    moments = [now + timedelta(seconds=step_s * step) for step in range(steps)]
    grid_g = np.array([_hour_of(hours, at, grid.value) for at in moments])
    grid_g[0] = grid.value
    onsite = _plants(power, plants, moments) if plants else _onsite(power, hours, moments)
    base_kw = max(0.0, power.load_kw - busy_it_kw * pue)
    spare = np.maximum(onsite - base_kw, 0.0)
    own_g = power.figure(Signal.ONSITE_LIFECYCLE).value
    price = power.price_per_mwh if power.currency == BID_CURRENCY else None
    step_h = step_s / 3600
    source = f"{grid.source} now" + (f", {ahead.model} ahead" if hours and ahead is not None else ", the same ahead")
    rests_on = RestsOn(source, evidence=grid.evidence or "estimated")
    plan_hours = HubHours(
        hub=hub_id,
        grid_g_per_kwh=grid_g,
        onsite_kw=spare * step_h,
        onsite_sd_kw=_unsure(spare) * step_h,
        onsite_g_per_kwh=own_g if own_g is not None and _within(own_g, G_PER_KWH_MAX) else ONSITE_G_PER_KWH,
        pue=pue,
        transmission_loss=loss,
        price_per_mwh=np.full(steps, price) if price is not None and _within(abs(price), PRICE_MAX) else None,
        rests_on=rests_on,
    )
    return HubOutlook(plan_hours, Figures(f"{rests_on}; {grid.value:.0f} g/kWh now", grid.at))


def _usable(hours: Sequence[ForecastHour]) -> dict[datetime, ForecastHour]:
    return {
        hour.at: hour
        for hour in hours
        if _within(hour.g_per_kwh, G_PER_KWH_MAX) and (hour.onsite_kw is None or _within(hour.onsite_kw, KW_MAX))
    }


def _hour_of(hours: Mapping[datetime, ForecastHour], moment: datetime, otherwise: float) -> float:
    hour = hours.get(_full_hour(moment))
    return hour.g_per_kwh if hour is not None else otherwise


def _onsite(power: HubPower, hours: Mapping[datetime, ForecastHour], moments: Sequence[datetime]) -> Floats:
    """What plants will give; where no forecast tells it, nothing: own power that may not come is not counted on."""
    found = (hours.get(_full_hour(moment)) for moment in moments)
    values = np.array([hour.onsite_kw or 0.0 if hour is not None else 0.0 for hour in found])
    values[0] = power.onsite_kw
    return values


def _plants(power: HubPower, plants: Sequence[Mapping[datetime, float]], moments: Sequence[datetime]) -> Floats:
    """Each foretold value holds until the next one of its plant, an hour at most; before the first, it is as now."""
    total, begins = np.zeros(len(moments)), len(moments)
    at_s = np.array([moment.timestamp() for moment in moments])
    for plant in plants:
        times = sorted(at for at, kw in plant.items() if _within(kw, KW_MAX))
        if not times:
            continue
        times_s = np.array([at.timestamp() for at in times])
        last = np.searchsorted(times_s, at_s, side="right") - 1
        holds = (last >= 0) & (at_s - times_s[last] < HOUR.total_seconds())
        total += np.where(holds, np.array([plant[at] for at in times])[last], 0.0)
        begins = min(begins, int(np.argmax(last >= 0)) if (last >= 0).any() else len(moments))
    total[:begins] = power.onsite_kw
    total[0] = power.onsite_kw
    return total


def _unsure(spare: Floats) -> Floats:
    """The present is known; the rest as far off as forecasts of wind and sun usually are."""
    sd = ONSITE_SD_SHARE * spare
    sd[0] = 0.0
    return sd


def _full_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _within(value: float, high: float) -> bool:
    return math.isfinite(value) and 0.0 <= value <= high


def _no(hub_id: str, rule: str, detail: str) -> Rejection:
    return Rejection(hub_id, rule, detail, nearest_fix="`harch carbon now` shows what each hub knows of its power")
