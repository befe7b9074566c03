"""What do users of the Carbon Aware SDK ask? Its routes and shapes, with a hub, a zone or a country as location.

Ratings are g CO2eq/kWh of the grid, average and lifecycle. A hub keeps its own past; for another hub's it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.routes.carbon_clients import hub_of_zone
from harch.api.routes.context import Here, RouteContext, Viewer, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.clock import parse_iso
from harch.base.errors import HarchError
from harch.hub.carbon.views import PastHour
from harch.wire.carbon import ForecastHour

router = APIRouter(tags=["carbon aware SDK"])

HOURS_AHEAD_MAX = 96
LOCATIONS_MAX = 64
BATCH_MAX = 100
MINUTES_PER_HOUR = 60

Locations = Annotated[list[str], Query(min_length=1, max_length=LOCATIONS_MAX, description="Hubs, zones or countries.")]
Moment = Annotated[str | None, Query(description="ISO 8601 with a time zone.")]


class EmissionsData(Struct, frozen=True, kw_only=True):
    """`duration` is hours:minutes:seconds. `estimated`: not measured."""

    location: str
    time: datetime
    rating: float
    duration: str = "01:00:00"
    estimated: bool = True


class DataPoint(Struct, frozen=True, kw_only=True):
    location: str
    timestamp: datetime
    duration: int  # minutes
    value: float


class EmissionsForecast(Struct, frozen=True, kw_only=True, rename="camel"):
    generated_at: datetime
    requested_at: datetime
    location: str
    data_start_at: datetime
    data_end_at: datetime
    window_size: int
    optimal_data_points: list[DataPoint]
    forecast_data: list[DataPoint]


class MeanIntensityRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    location: Annotated[str, Meta(min_length=1, max_length=128)]
    start_time: str
    end_time: str


class MeanIntensity(Struct, frozen=True, kw_only=True, rename="camel"):
    location: str
    start_time: datetime
    end_time: datetime
    carbon_intensity: float


class LocationView(Struct, frozen=True, kw_only=True):
    name: str
    latitude: float
    longitude: float


@router.get("/locations", responses=answers(dict[str, LocationView]), summary="Locations of hubs")
async def locations(_: Viewer, here: Here) -> Response:
    summaries = [peer.summary for peer in here.hub.peers() if peer.summary is not None]
    return reply(
        {one.hub_id: LocationView(name=one.hub_id, latitude=one.latitude, longitude=one.longitude) for one in summaries}
    )


@router.get("/emissions/bylocation", responses=answers(list[EmissionsData]), summary="The grid of one location")
async def by_location(_: Viewer, here: Here, location: str, time: Moment = None, toTime: Moment = None) -> Response:
    """Now, or hour by hour between two moments of the past."""
    return reply(await _emissions(here, [location], time, toTime))


@router.get("/emissions/bylocations", responses=answers(list[EmissionsData]), summary="The grids of several locations")
async def by_locations(
    _: Viewer,
    here: Here,
    location: Locations,
    time: Moment = None,
    toTime: Moment = None,
) -> Response:
    return reply(await _emissions(here, location, time, toTime))


@router.get("/emissions/bylocations/best", responses=answers(list[EmissionsData]), summary="The lowest of them")
async def best_of_locations(
    _: Viewer,
    here: Here,
    location: Locations,
    time: Moment = None,
    toTime: Moment = None,
) -> Response:
    found = await _emissions(here, location, time, toTime)
    lowest = min((one.rating for one in found), default=0.0)
    return reply([one for one in found if one.rating == lowest])


@router.get(
    "/emissions/forecasts/current",
    responses=answers(list[EmissionsForecast]),
    summary="Forecasts, and when in them the mean over a window is lowest",
)
async def current_forecasts(
    _: Viewer,
    here: Here,
    location: Locations,
    dataStartAt: Moment = None,
    dataEndAt: Moment = None,
    windowSize: Annotated[int | None, Query(ge=1, le=HOURS_AHEAD_MAX * MINUTES_PER_HOUR)] = None,
) -> Response:
    """`windowSize` is in minutes and counts in whole hours here, rounded up."""
    start, end = _moment(dataStartAt, "dataStartAt"), _moment(dataEndAt, "dataEndAt")
    return reply([_forecast(here, name, start, end, windowSize) for name in location])


@router.get("/emissions/average-carbon-intensity", responses=answers(MeanIntensity), summary="The mean over a time")
async def mean_intensity(
    _: Viewer,
    here: Here,
    location: str,
    startTime: Moment = None,
    endTime: Moment = None,
) -> Response:
    return reply(await _mean(here, location, startTime, endTime))


@router.post(
    "/emissions/average-carbon-intensity/batch",
    responses=answers(list[MeanIntensity]),
    openapi_extra=accepts(list[MeanIntensityRequest]),
    summary="Means over several times",
)
async def mean_intensities(request: Request, _: Viewer, here: Here) -> Response:
    bodies = await read_json(request, here, list[MeanIntensityRequest])
    if len(bodies) > BATCH_MAX:
        raise HarchError("E0201", f"{len(bodies)} queries in one request", hint=f"send at most {BATCH_MAX}")
    return reply([await _mean(here, body.location, body.start_time, body.end_time) for body in bodies])


async def _emissions(here: RouteContext, names: Sequence[str], time: str | None, to: str | None) -> list[EmissionsData]:
    start, end = _moment(time, "time"), _moment(to, "toTime")
    found: list[EmissionsData] = []
    for name in names:
        power = hub_of_zone(here, name)
        if start is not None:
            past = await _past(here, power.hub_id, start, end or here.clock.now())
            found += [EmissionsData(location=name, time=h.at, rating=h.g_per_kwh, estimated=h.estimated) for h in past]
            continue
        grid = power.figure("grid-average-lifecycle")
        found.append(
            EmissionsData(
                location=name,
                time=grid.at or power.at,
                rating=grid.value or 0.0,
                estimated=grid.evidence != "measured",
            )
        )
    return found


async def _mean(here: RouteContext, name: str, start_word: str | None, end_word: str | None) -> MeanIntensity:
    start, end = _moment(start_word, "startTime"), _moment(end_word, "endTime")
    if start is None or end is None:
        raise HarchError("E0201", "`startTime` and `endTime` are needed", hint="write e.g. 2026-03-01T00:00:00Z")
    past = await _past(here, hub_of_zone(here, name).hub_id, start, end)
    if not past:
        raise HarchError("E0820", f"no data on {name[:64]} for that time", hint="choose a later time")
    mean = sum(hour.g_per_kwh for hour in past) / len(past)
    return MeanIntensity(location=name, start_time=start, end_time=end, carbon_intensity=mean)


async def _past(here: RouteContext, hub_id: str, start: datetime, end: datetime) -> list[PastHour]:
    if hub_id != here.hub.hub_id:
        url = next((peer.url for peer in here.hub.peers() if peer.hub_id == hub_id), "")
        raise HarchError(
            "E0305",
            f"the history of `{hub_id}` is known to that hub only",
            hint=f"use its API at {url}" if url else "query that hub",
            meta={"hub_id": hub_id, "url": url},
        )
    return await here.hub.carbon.past(start, end)


def _forecast(
    here: RouteContext, name: str, start: datetime | None, end: datetime | None, window_min: int | None
) -> EmissionsForecast:
    made = here.hub.carbon.forecast(hub_of_zone(here, name).hub_id, HOURS_AHEAD_MAX)
    hours = [
        hour
        for hour in made.hours
        if (start is None or hour.at + timedelta(hours=1) > start) and (end is None or hour.at < end)
    ]
    if not hours:
        raise HarchError("E0201", "no hour of the forecast lies in that time", hint="it reaches 96 hours from now")
    window_h = min(len(hours), -(-(window_min or len(hours) * MINUTES_PER_HOUR) // MINUTES_PER_HOUR))
    data = _windows(name, hours, window_h)
    lowest = min(point.value for point in data)
    return EmissionsForecast(
        generated_at=made.made_at,
        requested_at=here.clock.now(),
        location=name,
        data_start_at=hours[0].at,
        data_end_at=hours[-1].at + timedelta(hours=1),
        window_size=window_h * MINUTES_PER_HOUR,
        optimal_data_points=[point for point in data if point.value == lowest][:1],
        forecast_data=data,
    )


def _windows(name: str, hours: Sequence[ForecastHour], window_h: int) -> list[DataPoint]:
    """Rolling means over whole hours, each at the hour where its window begins."""
    return [
        DataPoint(
            location=name,
            timestamp=hours[first].at,
            duration=window_h * MINUTES_PER_HOUR,
            value=round(sum(hour.g_per_kwh for hour in hours[first : first + window_h]) / window_h, 2),
        )
        for first in range(len(hours) - window_h + 1)
    ]


def _moment(word: str | None, field: str) -> datetime | None:
    try:
        return None if word is None else parse_iso(word)
    except ValueError as error:
        raise HarchError("E0201", f"{field}: {error}", hint="write e.g. 2026-03-01T00:00:00Z", field=field) from None
