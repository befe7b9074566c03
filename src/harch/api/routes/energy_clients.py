"""What do the public clients ask about energy? Use, reports and clean hours, from the asked hub's own books."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.dialects.energy import (
    Consumption,
    EnergyReport,
    EnergySummary,
    EnergyWindow,
    advice,
    consumption,
    energy_windows,
    pue_of,
    renewable_fraction,
)
from harch.api.routes.carbon_clients import known_powers
from harch.api.routes.context import Here, RouteContext, Viewer, reply
from harch.api.schema import answers
from harch.base.errors import HarchError
from harch.carbon.ledger.report import GroupBy
from harch.hub.carbon.views import ReportQuery
from harch.hub.views import Principal
from harch.sovereignty.jurisdictions import country_of, region_word
from harch.wire.carbon import HubPower, Used

router = APIRouter(tags=["energy, public clients"])

HOURS_AHEAD = 72
PERIOD = timedelta(days=30)

Moment = Annotated[datetime | None, Query(description="With a time zone; UTC if it has none.")]


@router.get("/energy/summary", responses=answers(EnergySummary), summary="What work used at this hub in a time")
async def summary(
    caller: Viewer,
    here: Here,
    region: str | None = None,
    period_start: Moment = None,
    period_end: Moment = None,
) -> Response:
    """The last 30 days by default. For work in another region, query a hub there."""
    _check_region(here, region)
    start, end = _period(here, period_start, period_end)
    used, power = await _used(caller, here, start, end, None), _own_power(here)
    return reply(
        EnergySummary(
            total_kwh=used.kwh,
            total_co2_grams=max(0.0, used.g),
            average_pue=pue_of(power),
            average_renewable_fraction=renewable_fraction(used, power),
            resource_count=used.jobs,
            period_start=start,
            period_end=end,
            hub_id=here.hub.hub_id,
            estimated_share=used.estimated_share,
        )
    )


@router.get("/energy/green-windows", responses=answers(list[EnergyWindow]), summary="Clean hours to come")
async def windows(
    _: Viewer,
    here: Here,
    region: str | None = None,
    min_renewable_percentage: Annotated[float | None, Query(ge=0, le=100)] = None,
) -> Response:
    """Of every hub in the region, or of all; a plain list. Without a percentage: hours at or below 200 g/kWh."""
    country = country_of(region) if region else None
    if country is not None and country not in {peer.summary.country for peer in here.hub.peers() if peer.summary}:
        raise HarchError(
            "E0310", f"no hub in `{region}`", hint="GET /v1/regions lists the regions with hubs", field="region"
        )
    found: list[EnergyWindow] = []
    for power in known_powers(here):
        if country in {None, power.country}:
            found += _windows_of(here, power, min_renewable_percentage)
    return reply(sorted(found, key=lambda window: (window.start, window.estimated_co2_grams_per_kwh)))


@router.get("/energy/consumption/{resource_id}", responses=answers(Consumption), summary="What one resource used here")
async def use_of(
    resource_id: str, caller: Viewer, here: Here, period_start: Moment = None, period_end: Moment = None
) -> Response:
    """A workload by id or name, or the queried hub by its id."""
    start, end = _period(here, period_start, period_end)
    _, job = await _resource(caller, here, resource_id)
    return reply(consumption(await _used(caller, here, start, end, job), _own_power(here), start, end))


@router.get("/energy/reports/{resource_id}", responses=answers(EnergyReport), summary="Consumption with advice")
async def report_on(
    resource_id: str,
    caller: Viewer,
    here: Here,
    resource_type: str | None = None,
    period_start: Moment = None,
    period_end: Moment = None,
) -> Response:
    start, end = _period(here, period_start, period_end)
    kind, job = await _resource(caller, here, resource_id)
    used, power = await _used(caller, here, start, end, job), _own_power(here)
    clean = _windows_of(here, power, None)
    sentences, saved_g = advice(clean, used)
    return reply(
        EnergyReport(
            resource_id=resource_id,
            resource_type=resource_type or kind,
            region=region_word(here.hub.country),
            consumption=consumption(used, power, start, end),
            green_windows=clean,
            recommendations=sentences,
            savings_potential_kwh=None,  # moving work in time saves emissions, not energy
            savings_potential_co2_grams=saved_g,
        )
    )


async def _resource(caller: Principal, here: RouteContext, ref: str) -> tuple[str, str | None]:
    """Its type, and the id of the workload; None: the whole hub. Raises E0301."""
    if ref.casefold() == here.hub.hub_id.casefold():
        return "hub", None
    return "workload", await here.hub.references.workload(ref, tenant=tenant_scope(caller))


async def _used(caller: Principal, here: RouteContext, start: datetime, end: datetime, job: str | None) -> Used:
    query = ReportQuery(by=GroupBy.JOB, tenant=tenant_scope(caller), job=job, since=start, until=end)
    return (await here.hub.carbon.report(query)).used


def _own_power(here: RouteContext) -> HubPower:
    power = next((power for power in known_powers(here) if power.hub_id == here.hub.hub_id), None)
    if power is None:
        raise HarchError("E0801", "the hub does not know its power yet", hint="try again", retry_after_s=2)
    return power


def _windows_of(here: RouteContext, power: HubPower, renewable_min: float | None) -> list[EnergyWindow]:
    try:
        forecast = here.hub.carbon.forecast(power.hub_id, HOURS_AHEAD)
    except HarchError:  # there is none yet: then no hour is known to be clean
        return []
    return energy_windows(forecast, power, renewable_min)


def _check_region(here: RouteContext, region: str | None) -> None:
    if region and country_of(region) != here.hub.country:
        raise HarchError(
            "E0310",
            f"this hub's ledger holds what ran in {region_word(here.hub.country)}, not in `{region[:64]}`",
            hint="query a hub there; GET /v1/hubs lists them",
            field="region",
        )


def _period(here: RouteContext, start: datetime | None, end: datetime | None) -> tuple[datetime, datetime]:
    last = _aware(end) or here.clock.now()
    first = _aware(start) or last - PERIOD
    if first >= last:
        raise HarchError("E0201", "`period_start` is not before `period_end`", hint="swap them", field="period_start")
    return first, last


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
