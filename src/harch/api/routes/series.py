"""What does SENTINEL scrape of a hub? One page with the series that the public dashboards ask for."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from harch.api.routes.context import Context, Here, Operator
from harch.api.series_page import FORECAST_HOURS, HubFigures, PowerPrice, series_page
from harch.api.traffic import Traffic
from harch.base.errors import HarchError
from harch.base.telemetry import OPENMETRICS, OPENMETRICS_TYPE, TEXT_TYPE
from harch.base.tenants import DEFAULT_TENANT
from harch.carbon.ledger.report import GroupBy
from harch.hub.carbon.reports import ReportQuery, Used
from harch.hub.carbon.views import GridForecast
from harch.sovereignty.in_force import jurisdictions_in_force

router = APIRouter(tags=["health"])

WORKLOADS_MAX = 1000
BOOKS_KEPT_S = 300.0  # a month of bookings is not read for every scrape; they change once in some minutes anyway


@dataclass(slots=True)
class Books:
    """What was used this month, as it was read last."""

    read_s: float = float("-inf")
    used: Used | None = None
    jobs: tuple[tuple[str, float], ...] = ()


@router.get("/metrics/series", response_class=PlainTextResponse, summary="Figures under the public dashboards' names")
async def series(request: Request, _: Operator, here: Here) -> Response:
    """In the Prometheus text format. GPUs of a modelled fleet are marked with `source="modelled"`."""
    traffic: Traffic = request.app.state.traffic
    books: Books = request.app.state.books
    await _renew(books, here)
    summary = here.hub.summary()
    figures = HubFigures(
        summary=summary,
        peers=here.hub.peers(),
        gpus=here.hub.gpus(tenant=None),
        powers=[view.power for view in here.hub.carbon.now() if view.power is not None],
        forecast=_forecast(here),
        price=_price(here),
        used=books.used,
        workloads=books.jobs,
        inference=here.hub.pipelines.inference(),
        requests=traffic.by_status,
        durations=traffic.durations(),
        durations_sum_s=traffic.seconds,
        traces=traffic.traces(),
        is_compliant=not here.hub.ready(),
        frameworks=jurisdictions_in_force().frameworks_in(summary.country),
    )
    openmetrics = OPENMETRICS in request.headers.get("accept", "")
    page = series_page(figures, openmetrics=openmetrics)
    return Response(page, headers={"content-type": OPENMETRICS_TYPE if openmetrics else TEXT_TYPE})


async def _renew(books: Books, here: Context) -> None:
    if here.clock.monotonic_s() - books.read_s < BOOKS_KEPT_S:
        return
    books.read_s = here.clock.monotonic_s()
    month = here.clock.now().strftime("%Y-%m")
    books.used = (await here.hub.carbon.report(ReportQuery(by=GroupBy.HUB, month=month))).used
    # Whose jobs may be named: the page is stored where this tenant can read it.
    own = await here.hub.carbon.report(ReportQuery(by=GroupBy.JOB, tenant=DEFAULT_TENANT, month=month))
    lines = own.report.get("lines")
    found = [(str(line["name"]), float(line["energy_kwh"])) for line in lines] if isinstance(lines, list) else []
    books.jobs = tuple(sorted(found, key=lambda job: -job[1])[:WORKLOADS_MAX])


def _forecast(here: Context) -> GridForecast | None:
    try:
        return here.hub.carbon.forecast(here.hub.hub_id, max(FORECAST_HOURS))
    except HarchError:
        return None  # no history yet, or no source: the other figures stand for themselves


def _price(here: Context) -> PowerPrice | None:
    """The market's price where a source tells it, else the contract's of this hour."""
    for view in here.hub.carbon.now():
        power = view.power
        if power is not None and power.hub_id == here.hub.hub_id and power.price_per_mwh is not None:
            return PowerPrice(power.price_per_mwh, power.currency, "measured")
    try:
        prices = here.hub.energy.prices()
    except HarchError:
        return None  # nothing is planned yet
    step = next((step for step in reversed(prices.steps) if step.at <= here.clock.now()), None)
    if step is None:
        return None
    return PowerPrice(step.tariff_per_mwh, prices.currency, "modelled" if prices.modelled else "contract")
