"""How do the public clients want to hear of energy? Our ledger and forecast in their words.

Their models demand a renewable fraction. It counts what own plants gave; the grid's share only where somebody tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from harch.wire.carbon import ForecastHour, GridForecast, HubPower, Used

GREEN_G_PER_KWH = 200.0  # the public clients' own threshold
UNTESTED_CONFIDENCE = 0.5  # of forecasts whose error nobody knows; the clients' own default
HOUR = timedelta(hours=1)


class Consumption(Struct, frozen=True, kw_only=True):
    """Grams are by location, with own plants. `estimated_share`: of the energy, what no meter measured."""

    kwh_consumed: float
    co2_grams: float
    pue: float
    renewable_fraction: float
    grid_intensity_gco2_kwh: float
    period_start: datetime
    period_end: datetime
    estimated_share: float


class EnergyWindow(Struct, frozen=True, kw_only=True):
    """Hours in a row that are clean, by forecast."""

    start: datetime
    end: datetime
    renewable_percentage: float
    estimated_co2_grams_per_kwh: float
    energy_sources: tuple[str, ...]
    confidence: float
    estimated: bool = True


class EnergyReport(Struct, frozen=True, kw_only=True):
    resource_id: str
    resource_type: str
    region: str
    consumption: Consumption
    green_windows: list[EnergyWindow]
    recommendations: list[str]
    savings_potential_kwh: float | None
    savings_potential_co2_grams: float | None


class EnergySummary(Struct, frozen=True, kw_only=True):
    """Of the asked hub's ledger."""

    total_kwh: float
    total_co2_grams: float
    average_pue: float
    average_renewable_fraction: float
    resource_count: int
    period_start: datetime
    period_end: datetime
    hub_id: str
    estimated_share: float


def consumption(used: Used, power: HubPower, start: datetime, end: datetime) -> Consumption:
    grid = power.figure("grid-average-lifecycle").value or 0.0
    return Consumption(
        kwh_consumed=used.kwh,
        co2_grams=max(0.0, used.g),
        pue=pue_of(power),
        renewable_fraction=renewable_fraction(used, power),
        grid_intensity_gco2_kwh=max(0.0, grid),
        period_start=start,
        period_end=end,
        estimated_share=used.estimated_share,
    )


def renewable_fraction(used: Used, power: HubPower) -> float:
    if used.kwh <= 0:
        return 0.0
    own = min(1.0, used.onsite_kwh / used.kwh)
    return own + (1 - own) * (power.figure("renewable-share").value or 0.0)


def pue_of(power: HubPower) -> float:
    return power.figure("pue").value or 1.0


def energy_windows(forecast: GridForecast, power: HubPower, renewable_min: float | None) -> list[EnergyWindow]:
    """Hours at or below the clients' threshold; with `renewable_min`, hours with at least that percentage."""
    windows: list[EnergyWindow] = []
    run: list[tuple[ForecastHour, float, float]] = []
    for hour in (*forecast.hours, None):
        mixed = _mixed(hour, power) if hour is not None else None
        if hour is not None and mixed is not None and _is_green(*mixed, renewable_min):
            run.append((hour, *mixed))
        elif run:
            windows.append(_window(run, forecast, power))
            run = []
    return windows


def advice(windows: Sequence[EnergyWindow], used: Used) -> tuple[list[str], float | None]:
    """Sentences, and the grams that the same energy would have saved in the cleanest window; None: no such window."""
    if not windows:
        return ["no hour of the forecast is clean: a cleaner hub is the only way to emit less"], None
    best = min(windows, key=lambda window: window.estimated_co2_grams_per_kwh)
    saved = max(0.0, used.g - used.kwh * best.estimated_co2_grams_per_kwh)
    sentence = (
        f"work that can wait emits least from {best.start:%Y-%m-%d %H:%M} to {best.end:%H:%M} UTC: "
        f"{best.estimated_co2_grams_per_kwh:.0f} g/kWh (estimated)"
    )
    return [sentence], saved


def _is_green(renewable: float, g_per_kwh: float, renewable_min: float | None) -> bool:
    return g_per_kwh <= GREEN_G_PER_KWH if renewable_min is None else renewable >= renewable_min


def _mixed(hour: ForecastHour, power: HubPower) -> tuple[float, float]:
    """Renewable percentage and grams per kWh of what the hub draws now, if it drew it in that hour."""
    own_kw = hour.onsite_kw or 0.0
    own = min(1.0, own_kw / power.load_kw) if power.load_kw > 0 else float(own_kw > 0)
    onsite_g = power.figure("onsite-lifecycle").value or 0.0
    share = own + (1 - own) * (power.figure("renewable-share").value or 0.0)
    return 100 * share, own * onsite_g + (1 - own) * hour.g_per_kwh


def _window(run: Sequence[tuple[ForecastHour, float, float]], forecast: GridForecast, power: HubPower) -> EnergyWindow:
    sources = [word for word, signal in (("solar", "pv-power"), ("wind", "wind-power")) if power.figure(signal).value]
    if any(renewable < 100 for _, renewable, _ in run):
        sources.append("grid_mix")
    error = forecast.error_pct_by_day[0] if forecast.error_pct_by_day else None
    confidence = UNTESTED_CONFIDENCE if error is None else min(1.0, max(0.0, 1 - error / 100))
    return EnergyWindow(
        start=run[0][0].at,
        end=run[-1][0].at + HOUR,
        renewable_percentage=sum(renewable for _, renewable, _ in run) / len(run),
        estimated_co2_grams_per_kwh=sum(g for _, _, g in run) / len(run),
        energy_sources=tuple(sources) or ("other",),
        confidence=confidence,
    )
