"""What do the public clients ask about carbon? Intensity, forecast, the cleanest hub, and what was saved."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.access import require, tenant_scope
from harch.api.dialects.carbon import (
    GREEN_G_PER_KWH,
    OptimalHub,
    OptimizeResult,
    ScheduleBody,
    WindowView,
    ZoneForecast,
    ZoneList,
    ZoneView,
    gpus_free,
    optimal_hub,
    optimize_result,
    window_view,
    zone_forecast,
    zones_of,
)
from harch.api.dialects.workload_in import gpu_model
from harch.api.routes.carbon_schedules import set_schedule
from harch.api.routes.context import Here, RouteContext, Viewer, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.carbon.ledger.report import GroupBy
from harch.hub.carbon.views import Action, Option, ReportQuery, advise, green_windows
from harch.hub.views import Principal, Role
from harch.sovereignty.jurisdictions import COUNTRIES, country_of
from harch.wire.carbon import GridForecast, HubPower, PowerView

router = APIRouter(tags=["carbon, public clients"])

HOURS_AHEAD_MAX = 96
HOURS_AHEAD = 24
PERIOD_DAYS = 30
PERIOD_DAYS_MAX = 366
GPU_KW = 0.7  # plate of a large GPU; advice is per kWh, so it only scales what is said to be saved

Days = Annotated[int | None, Query(ge=1, le=PERIOD_DAYS_MAX)]


class CleanestHubRequest(Struct, frozen=True, kw_only=True):
    """Unknown fields are let through: the clients send more than decides here."""

    region: str | None = None
    gpu_count: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    gpu_type: str | None = None
    carbon_max_gco2: Annotated[float, Meta(gt=0)] | None = None
    defer_ok: bool = True


class OptimizeRequest(ScheduleBody, frozen=True, kw_only=True):
    """For advice; with `workload_id` the schedule of a workload, which is the Terraform client's."""

    workload_name: str = ""
    region: str | None = None
    gpu_count: Annotated[int, Meta(ge=0, le=100_000)] = 1
    gpu_type: str | None = None
    carbon_aware: bool = True
    carbon_max_gco2: Annotated[float, Meta(gt=0)] | None = None
    estimated_duration_hours: Annotated[float, Meta(gt=0, le=100_000)] = 1.0


class CarbonMetrics(Struct, frozen=True, kw_only=True):
    """From the ledger of the asked hub. Emissions are by location, with own plants; nothing is added up with market."""

    total_carbon_saved_kg: float
    total_workloads_optimized: int
    total_workloads_deferred: int
    average_carbon_intensity_gco2_kwh: float
    best_hub_id: str | None
    best_hub_name: str
    best_hub_carbon_intensity: float
    worst_hub_carbon_intensity: float
    period_start: datetime
    period_end: datetime
    total_co2_grams: float
    total_energy_kwh: float
    avg_intensity: float
    active_schedules: int
    deferred_workloads: int
    green_window_usage_percent: float
    carbon_savings_grams: float
    carbon_savings_percent: float
    estimated_share: float


class CarbonDashboard(Struct, frozen=True, kw_only=True):
    metrics: CarbonMetrics
    hub_intensities: list[ZoneView]
    optimization_log: list[dict[str, object]]
    green_windows: list[WindowView]


@router.get("/carbon/intensity", responses=answers(ZoneList), summary="The grid of every zone with a hub")
async def intensities(_: Viewer, here: Here) -> Response:
    zones = zones_of(known_powers(here))
    return reply(ZoneList(zones=zones, total=len(zones)))


@router.get("/carbon/intensity/{zone}", responses=answers(ZoneView), summary="The grid of one zone")
async def intensity(zone: str, _: Viewer, here: Here) -> Response:
    hub_id = hub_of_zone(here, zone).hub_id
    return reply(zones_of([power for power in known_powers(here) if power.hub_id == hub_id])[0])


@router.get("/carbon/forecast/{zone}", responses=answers(ZoneForecast), summary="The grid of one zone, hours ahead")
async def forecast(
    request: Request,
    zone: str,
    _: Viewer,
    here: Here,
    hours: Annotated[int | None, Query(ge=1, le=HOURS_AHEAD_MAX)] = None,
) -> Response:
    """In quarters of an hour, as the clients count; the JavaScript client uses the header `X-Query-Hours`."""
    wanted_hours = hours or _header(request, "x-query-hours", HOURS_AHEAD_MAX) or HOURS_AHEAD
    power = hub_of_zone(here, zone)
    found = here.hub.carbon.forecast(power.hub_id, wanted_hours)
    return reply(zone_forecast(found, COUNTRIES.get(power.country, power.grid_zone)))


@router.post(
    "/carbon/optimal-hub",
    responses=answers(OptimalHub),
    openapi_extra=accepts(CleanestHubRequest),
    summary="The cleanest hub that has the GPUs",
)
async def find_optimal_hub(request: Request, _: Viewer, here: Here) -> Response:
    """Advice: nothing is placed by it, and where data may go is decided when work is submitted."""
    body = await read_json(request, here, CleanestHubRequest)
    gpus = body.gpu_count or 0
    now = here.clock.now()
    advice = advise(
        _options(here, body.region, gpus, body.gpu_type),
        g_per_kwh_max=body.carbon_max_gco2,
        defer_ok=body.defer_ok,
        now=now,
        refused=Action.NO_SUITABLE_HUB,
    )
    return reply(optimal_hub(advice, now, energy_kwh=max(1, gpus) * GPU_KW))


@router.post(
    "/carbon/optimize",
    responses=answers(OptimizeResult),
    openapi_extra=accepts(OptimizeRequest),
    summary="Where and when work would run cleanest",
)
async def optimize(request: Request, caller: Viewer, here: Here) -> Response:
    """Advice, as `/carbon/optimal-hub`; kilograms are for the plates of the GPUs over the stated duration.

    With `workload_id` it is not advice: the Terraform client creates a carbon schedule of that workload.
    """
    body = await read_json(request, here, OptimizeRequest)
    if body.workload_id:
        return reply(await set_schedule(body, require(caller, Role.USER), here), status=201)
    now = here.clock.now()
    options = _options(here, body.region, body.gpu_count, body.gpu_type)
    home = next((option for option in options if option.hub_id == here.hub.hub_id), None)
    advice = advise(
        options if body.carbon_aware or home is None else [home],
        g_per_kwh_max=body.carbon_max_gco2,
        defer_ok=True,
        now=now,
        refused=Action.REJECT,
    )
    it_kwh = body.gpu_count * GPU_KW * body.estimated_duration_hours
    return reply(optimize_result(advice, home, body.workload_name, now, it_kwh=it_kwh))


@router.get("/carbon/metrics", responses=answers(CarbonMetrics), summary="What work used and saved, from the ledger")
async def metrics(request: Request, caller: Viewer, here: Here, period_days: Days = None) -> Response:
    """The JavaScript client uses the header `X-Period-Days`."""
    days = period_days or _header(request, "x-period-days", PERIOD_DAYS_MAX) or PERIOD_DAYS
    return reply(await _metrics(caller, here, days))


@router.get("/carbon/dashboard", responses=answers(CarbonDashboard), summary="All of it on one page")
async def dashboard(caller: Viewer, here: Here) -> Response:
    ahead = _forecast(here, here.hub.hub_id)
    windows = green_windows(ahead.hours, GREEN_G_PER_KWH) if ahead is not None else []
    return reply(
        CarbonDashboard(
            metrics=await _metrics(caller, here, PERIOD_DAYS),
            hub_intensities=zones_of(known_powers(here)),
            optimization_log=[],
            green_windows=[window_view(window) for window in windows],
        )
    )


async def _metrics(caller: Principal, here: RouteContext, days: int) -> CarbonMetrics:
    now = here.clock.now()
    since = now - timedelta(days=days)
    query = ReportQuery(by=GroupBy.JOB, tenant=tenant_scope(caller), since=since)
    used = (await here.hub.carbon.report(query)).used
    hubs = sorted(
        (power.marginal_g_per_kwh, power.hub_id) for power in known_powers(here) if power.marginal_g_per_kwh is not None
    )
    names = {peer.hub_id: peer.summary.name for peer in here.hub.peers() if peer.summary is not None}
    best_g, best_id = hubs[0] if hubs else (0.0, None)
    saved_g = max(0.0, used.saved_g)
    held = here.hub.carbon.plan(tenant=tenant_scope(caller)).held
    return CarbonMetrics(
        total_carbon_saved_kg=saved_g / 1000,
        total_workloads_optimized=used.jobs_away,
        total_workloads_deferred=await _deferred(here, tenant_scope(caller), since),
        average_carbon_intensity_gco2_kwh=used.g / used.kwh if used.kwh else 0.0,
        best_hub_id=best_id,
        best_hub_name=names.get(best_id or "", best_id or ""),
        best_hub_carbon_intensity=best_g,
        worst_hub_carbon_intensity=hubs[-1][0] if hubs else 0.0,
        period_start=since,
        period_end=now,
        total_co2_grams=used.g,
        total_energy_kwh=used.kwh,
        avg_intensity=used.g / used.kwh if used.kwh else 0.0,
        active_schedules=held,
        deferred_workloads=held,
        green_window_usage_percent=0.0,
        carbon_savings_grams=saved_g,
        carbon_savings_percent=100 * saved_g / (used.g + saved_g) if used.g + saved_g else 0.0,
        estimated_share=used.estimated_share,
    )


async def _deferred(here: RouteContext, tenant: str | None, since: datetime) -> int:
    """By the hub's history, as far back as it reaches, at most a thousand."""
    found = await here.hub.events(after=0, limit=1000, tenant=tenant, subject=None, kind="workload.deferred")
    return sum(event.at >= since for event in found)


def _options(here: RouteContext, region: str | None, gpus: int, gpu_type: str | None) -> list[Option]:
    """Hubs that answer, stand in the region and have so many GPUs free."""
    country, model = country_of(region) if region else None, gpu_model(gpu_type)
    powers = {view.hub_id: view.power for view in here.hub.carbon.now()}
    options: list[Option] = []
    for peer in here.hub.peers():
        power, summary = powers.get(peer.hub_id), peer.summary
        if power is None or summary is None or not peer.reachable or power.marginal_g_per_kwh is None:
            continue
        free = gpus_free(peer, model)
        if country not in {None, summary.country} or free < max(1, gpus):
            continue
        ahead = _forecast(here, peer.hub_id)
        pue = power.figure("pue").value or summary.pue
        options.append(
            Option(
                hub_id=peer.hub_id,
                name=summary.name,
                country=summary.country,
                grid_zone=power.grid_zone,
                g_per_kwh=power.marginal_g_per_kwh / pue,
                pue=pue,
                gpus_free=free,
                renewable_share=power.figure("renewable-share").value,
                ahead=ahead.hours if ahead is not None else (),
            )
        )
    return options


def _forecast(here: RouteContext, hub_id: str) -> GridForecast | None:
    try:
        return here.hub.carbon.forecast(hub_id, HOURS_AHEAD_MAX)
    except HarchError:  # there is none yet: advice is given without
        return None


def known_powers(here: RouteContext) -> list[HubPower]:
    views: list[PowerView] = here.hub.carbon.now()
    return [view.power for view in views if view.power is not None]


def hub_of_zone(here: RouteContext, zone: str) -> HubPower:
    """By grid zone, country or hub; the asked hub before others. Raises E0310."""
    wanted = zone.casefold()
    for power in known_powers(here):
        names = {power.grid_zone.casefold(), power.country.casefold(), power.hub_id.casefold()}
        if wanted in names and power.figure("grid-average-lifecycle").value is not None:
            return power
    raise HarchError("E0310", f"no hub in zone `{zone[:64]}`", hint="GET /v1/carbon/intensity lists the zones")


def _header(request: Request, name: str, most: int) -> int | None:
    word = request.headers.get(name, "")
    return min(int(word), most) or None if word.isdecimal() and len(word) < 10 else None
