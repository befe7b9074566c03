"""How do the public clients want to hear of carbon? Our figures in their words; what is not known is said to be so.

Their models demand a renewable and a fossil percentage. Where nobody tells them, both are 0 and `renewable_known` is
false: whoever adds them up sees that they are no mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from harch.hub.carbon.views import Advice, GreenWindow, Option, green_windows
from harch.hub.views import PeerView
from harch.sovereignty.jurisdictions import COUNTRIES, region_word
from harch.wire.carbon import GridForecast, HubPower
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import CarbonPreferences

GREEN_G_PER_KWH = 200.0  # the public clients' own threshold
ALTERNATIVES_MAX = 5
STEPS_PER_HOUR = 4  # they count a quarter of an hour per point


class ZoneView(Struct, frozen=True, kw_only=True):
    """The grid of one zone now: its yearly mean where nobody measures it."""

    zone: str
    zone_name: str
    carbon_intensity_gco2_kwh: float
    renewable_percentage: float
    fossil_percentage: float
    renewable_known: bool
    fuel_mix: list[dict[str, object]]
    source: str
    estimated: bool
    note: str
    is_forecast: bool
    read_at: datetime = field(name="datetime")
    updated_at: datetime


class ZoneList(Struct, frozen=True, kw_only=True):
    zones: list[ZoneView]
    total: int


class ForecastPoint(Struct, frozen=True, kw_only=True):
    """A quarter of an hour; `timestamp`, `carbon_intensity` and `is_green_window` are the Terraform client's words."""

    at: datetime = field(name="datetime")
    timestamp: datetime
    carbon_intensity_gco2_kwh: float
    carbon_intensity: float
    low_gco2_kwh: float
    high_gco2_kwh: float
    renewable_percentage: float
    is_green: bool
    is_green_window: bool


class WindowView(Struct, frozen=True, kw_only=True):
    start: datetime
    end: datetime
    start_at: datetime
    end_at: datetime
    min_intensity: float
    avg_intensity: float
    duration_min: int
    estimated: bool = True


class ZoneForecast(Struct, frozen=True, kw_only=True):
    zone: str
    zone_name: str
    forecast: list[ForecastPoint]
    green_windows: list[WindowView]
    model: str
    estimated: bool
    notes: tuple[str, ...]


def zone_view(power: HubPower) -> ZoneView | None:
    """None if the hub does not know its grid."""
    grid, share = power.figure("grid-average-lifecycle"), power.figure("renewable-share")
    if grid.value is None or grid.at is None:
        return None
    known = share.value is not None
    renewable = 100 * (share.value or 0.0)
    return ZoneView(
        zone=power.grid_zone,
        zone_name=COUNTRIES.get(power.country, power.grid_zone),
        carbon_intensity_gco2_kwh=grid.value,
        renewable_percentage=renewable,
        fossil_percentage=100 - renewable if known else 0.0,
        renewable_known=known,
        fuel_mix=[],
        source=grid.source,
        estimated=grid.evidence != "measured",
        note=grid.note,
        is_forecast=False,
        read_at=grid.at,
        updated_at=power.at,
    )


def zone_forecast(forecast: GridForecast, zone_name: str) -> ZoneForecast:
    points = [
        ForecastPoint(
            at=(at := hour.at + timedelta(minutes=15 * quarter)),
            timestamp=at,
            carbon_intensity_gco2_kwh=hour.g_per_kwh,
            carbon_intensity=hour.g_per_kwh,
            low_gco2_kwh=hour.low,
            high_gco2_kwh=hour.high,
            renewable_percentage=0.0,
            is_green=hour.g_per_kwh <= GREEN_G_PER_KWH,
            is_green_window=hour.g_per_kwh <= GREEN_G_PER_KWH,
        )
        for hour in forecast.hours
        for quarter in range(STEPS_PER_HOUR)
    ]
    return ZoneForecast(
        zone=forecast.grid_zone,
        zone_name=zone_name,
        forecast=points,
        green_windows=[window_view(one) for one in green_windows(forecast.hours, GREEN_G_PER_KWH)],
        model=forecast.model,
        estimated=True,
        notes=forecast.notes,
    )


def window_view(window: GreenWindow) -> WindowView:
    return WindowView(
        start=window.start,
        end=window.end,
        start_at=window.start,
        end_at=window.end,
        min_intensity=window.g_per_kwh_min,
        avg_intensity=window.g_per_kwh_mean,
        duration_min=int((window.end - window.start) / timedelta(minutes=1)),
    )


def gpus_free(peer: PeerView, model: str | None) -> int:
    """Of this model, or of any."""
    models = peer.summary.models if peer.summary is not None else []
    return sum(one.free for one in models if model in (None, one.model))


def zones_of(powers: Sequence[HubPower]) -> list[ZoneView]:
    """One view per zone; of several hubs, the first that is given."""
    views: dict[str, ZoneView] = {}
    for power in powers:
        view = zone_view(power)
        if view is not None:
            views.setdefault(view.zone, view)
    return list(views.values())


class OptimalHub(Struct, frozen=True, kw_only=True):
    """Advice: nothing is placed by it. Intensities are of one more kWh at the hub's meter, estimated."""

    recommended_hub_id: str | None
    recommended_hub_name: str
    hub_region: str
    hub_zone: str
    carbon_intensity_gco2_kwh: float
    renewable_percentage: float
    available_gpus: int
    action: str
    defer_hours: float
    defer_reason: str
    estimated_carbon_saved_kg: float
    alternative_hubs: list[dict[str, object]]
    analyzed_at: datetime
    estimated: bool = True


class OptimizeResult(Struct, frozen=True, kw_only=True):
    """The same advice with a duration. The baseline is the asked hub, at once; energy is of the GPUs' plates."""

    action: str
    workload_name: str
    selected_hub_id: str | None
    selected_hub_name: str
    recommended_hub: str
    carbon_intensity_at_schedule_gco2_kwh: float
    carbon_intensity_gco2_kwh: float
    carbon_saved_kg: float
    baseline_carbon_kg: float
    actual_carbon_kg: float
    deferred_hours: float
    defer_hours: float
    reason: str
    estimated_green_window: dict[str, object] | None
    optimized_at: datetime
    estimated: bool = True


def optimal_hub(advice: Advice, now: datetime, *, energy_kwh: float) -> OptimalHub:
    option, delay_h = advice.option, delay_hours(advice, now)
    worst = max((other.g_per_kwh * other.pue for other in advice.others), default=0.0)
    own = advice.g_per_kwh * (option.pue if option else 1.0)
    return OptimalHub(
        recommended_hub_id=option.hub_id if option else None,
        recommended_hub_name=option.name if option else "",
        hub_region=region_word(option.country) if option else "",
        hub_zone=option.grid_zone if option else "",
        carbon_intensity_gco2_kwh=advice.g_per_kwh,
        renewable_percentage=100 * ((option.renewable_share if option else None) or 0.0),
        available_gpus=option.gpus_free if option else 0,
        action=advice.action,
        defer_hours=delay_h,
        defer_reason=advice.reason if delay_h else "",
        estimated_carbon_saved_kg=max(0.0, worst - own) * energy_kwh / 1000 if option else 0.0,
        alternative_hubs=[
            {"hub_id": one.hub_id, "hub_name": one.name, "carbon_intensity_gco2_kwh": one.g_per_kwh, "pue": one.pue}
            for one in advice.others[:ALTERNATIVES_MAX]
        ],
        analyzed_at=now,
    )


def optimize_result(advice: Advice, home: Option | None, name: str, now: datetime, *, it_kwh: float) -> OptimizeResult:
    option, delay_h = advice.option, delay_hours(advice, now)
    actual = advice.g_per_kwh * option.pue * it_kwh / 1000 if option else 0.0
    baseline = home.g_per_kwh * home.pue * it_kwh / 1000 if home else actual
    return OptimizeResult(
        action=advice.action,
        workload_name=name,
        selected_hub_id=option.hub_id if option else None,
        selected_hub_name=option.name if option else "",
        recommended_hub=option.name if option else "",
        carbon_intensity_at_schedule_gco2_kwh=advice.g_per_kwh,
        carbon_intensity_gco2_kwh=advice.g_per_kwh,
        carbon_saved_kg=max(0.0, baseline - actual) if option else 0.0,
        baseline_carbon_kg=baseline,
        actual_carbon_kg=actual,
        deferred_hours=delay_h,
        defer_hours=delay_h,
        reason=advice.reason,
        estimated_green_window={"start": advice.start, "end": advice.start + timedelta(hours=1)}
        if advice.start is not None
        else None,
        optimized_at=now,
    )


def delay_hours(advice: Advice, now: datetime) -> float:
    return 0.0 if advice.start is None else round((advice.start - now) / timedelta(hours=1), 2)


# How does the Terraform client speak of waiting for clean power? A schedule of one workload, in its annotations.


ANNOTATION = "harch.dev/carbon-schedule"
PREFIX = "sched_"
DEFER_S = 86400.0  # the client names no deadline: a day is what its words promise at most


class ScheduleBody(Struct, kw_only=True, frozen=True):
    """Unknown fields are let through, as for all advice."""

    workload_id: str = ""
    enabled: bool = True
    max_carbon_intensity: Annotated[float, Meta(ge=0)] = 0.0
    preferred_region: str = ""
    defer_when_high_carbon: bool = False
    green_window_only: bool = False
    sovereignty: str = "strict"


class _Kept(ScheduleBody, kw_only=True, frozen=True):
    created_at: datetime
    updated_at: datetime


class CarbonAwareSchedule(Struct, frozen=True, kw_only=True):
    """What the client decodes: flat, no nulls."""

    id: str
    workload_id: str
    enabled: bool
    max_carbon_intensity: float
    preferred_region: str
    defer_when_high_carbon: bool
    green_window_only: bool
    sovereignty: str
    status: str
    current_intensity: float
    recommended_action: str
    next_green_window: str
    created_at: datetime
    updated_at: datetime


def carbon_preferences(body: ScheduleBody, before: CarbonPreferences) -> CarbonPreferences:
    """`defer_when_high_carbon` gives it a day of slack; `green_window_only` makes the intensity a hard limit."""
    if not body.enabled:
        return replace(before, aware=None, slack_s=0.0, finish_by=None, g_per_kwh_max=None)
    ceiling = body.max_carbon_intensity or None
    return replace(
        before,
        aware=True,
        slack_s=DEFER_S if body.defer_when_high_carbon or body.green_window_only else 0.0,
        g_per_kwh_max=ceiling if body.green_window_only else None,
    )


def annotation_of(body: ScheduleBody, workload: Workload, now: datetime) -> dict[str, str]:
    kept = _kept(workload)
    fields = {name: getattr(body, name) for name in ScheduleBody.__struct_fields__} | {"workload_id": workload.id}
    made = _Kept(**fields, created_at=kept.created_at if kept is not None else now, updated_at=now)
    return {ANNOTATION: msgspec.json.encode(made).decode()}


def schedule_of(workload: Workload, g_per_kwh: float) -> CarbonAwareSchedule | None:
    """None: nobody made one for it."""
    kept = _kept(workload)
    if kept is None:
        return None
    held = workload.carbon is not None and workload.carbon.held
    start = workload.carbon.start_at if workload.carbon is not None and held else None
    active = kept.enabled and not workload.state.is_final
    return CarbonAwareSchedule(
        id=PREFIX + workload.id,
        workload_id=workload.id,
        enabled=kept.enabled,
        max_carbon_intensity=kept.max_carbon_intensity,
        preferred_region=kept.preferred_region,
        defer_when_high_carbon=kept.defer_when_high_carbon,
        green_window_only=kept.green_window_only,
        sovereignty=kept.sovereignty,
        status="deferred" if active and held else "active" if active else "inactive",
        current_intensity=g_per_kwh,
        recommended_action="defer" if held else "schedule_now",
        next_green_window=start.isoformat() if start is not None else "",
        created_at=kept.created_at,
        updated_at=kept.updated_at,
    )


def _kept(workload: Workload) -> _Kept | None:
    text = workload.annotations.get(ANNOTATION)
    try:
        return msgspec.json.decode(text, type=_Kept) if text else None
    except msgspec.DecodeError:
        return None
