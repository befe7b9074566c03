"""What does SENTINEL scrape of a hub? One page with the series that the public dashboards know, under their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from harch.api.front import Traced, Traffic
from harch.api.routes.context import Here, Operator, RouteContext
from harch.base.errors import HarchError
from harch.base.ids import DEFAULT_TENANT
from harch.base.metrics import OPENMETRICS, OPENMETRICS_TYPE, TEXT_TYPE
from harch.carbon.ledger.report import GroupBy
from harch.hub.carbon.views import ReportQuery
from harch.hub.pipelines.views import InferenceStats
from harch.hub.views import PeerView
from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
from harch.wire.carbon import GridForecast, HubPower, Used
from harch.wire.hardware import GpuView
from harch.wire.hubs import HubSummary

# Which series do the public dashboards know? A hub's own figures under their names, as a page of metrics.
#
# GPUs of the shipped fleet are modelled: their figures follow from what work holds of them, and say so in `source`.


GRID = "grid-average-lifecycle"
_GB = 1_000_000_000
_IDLE_SHARE = 0.12  # of its rated power, what a GPU draws without work; modelled
_COOL_C, _HOT_C = 30.0, 68.0  # of a modelled GPU without work and at full load
_DURATION = "harchos_hub_request_duration_seconds"
FORECAST_HOURS = (1, 6, 24)
GPUS_KEPT_MAX = 65_536  # whose labels are kept as text

_CLOSED = frozenset({"cordoned", "draining", "retired"})  # on purpose, by an operator

Pairs = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PowerPrice:
    """`evidence`: measured where a market published it, modelled where the hub's contract is."""

    per_mwh: float
    currency: str
    evidence: str


@dataclass(frozen=True, slots=True)
class HubSeries:
    """A snapshot of what the page shows."""

    summary: HubSummary
    peers: Iterable[PeerView]
    gpus: Sequence[GpuView]
    powers: Sequence[HubPower]
    forecast: GridForecast | None
    price: PowerPrice | None  # what a MWh costs here now
    used: Used | None  # since the hub keeps books, all tenants together
    workloads: Iterable[tuple[str, float]]  # names of running work of the hub's own tenant, and their kWh
    inference: Iterable[InferenceStats]
    requests: Mapping[str, int]  # by class of status: 2xx, 4xx, 5xx
    durations: Iterable[tuple[str, int]]  # cumulative count of answers, by upper bound in seconds
    durations_sum_s: float
    traces: Mapping[str, Traced]  # the newest traced answer, by upper bound
    is_compliant: bool
    frameworks: Iterable[str]


def series_page(series: HubSeries, *, openmetrics: bool = False) -> str:
    """The whole page, in the Prometheus text format, or in OpenMetrics with traces as exemplars."""
    # Each metric of the GPUs stands together already, which is what OpenMetrics wants: they are most of the page.
    gpus = _gpus(series)
    lines = [
        *_hub(series),
        *_power(series),
        *_workloads(series),
        *_inference(series),
        *_prices(series),
        *_sovereignty(series),
    ]
    if openmetrics:
        lines = [*_by_family(lines, series.traces), "# EOF"]
    return "\n".join((*gpus, *lines, ""))


def _by_family(lines: Iterable[str], traces: Mapping[str, Traced]) -> Iterator[str]:
    """As OpenMetrics wants it: all lines of a metric together, counters typed without their ending."""
    families: dict[str, list[str]] = {}
    for line in lines:
        is_type = line.startswith("# TYPE ")
        name = line.split(" ")[2] if is_type else line.partition("{")[0]
        if name.startswith(_DURATION):
            name = _DURATION
        if is_type and name.endswith("_total"):
            line = line.replace(name, name.removesuffix("_total"))
        families.setdefault(name, []).append(_with_trace(line, traces) if name == _DURATION else line)
    for family in families.values():
        yield from family


def _with_trace(line: str, traces: Mapping[str, Traced]) -> str:
    for bound, traced in traces.items():
        if f'le="{bound}"' in line:
            return f'{line} # {{trace_id="{traced.trace_id}"}} {traced.took_s!r} {traced.at_s!r}'
    return line


def _line(name: str, pairs: Pairs, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in pairs.items() if text)
    return f"{name}{{{inside}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@lru_cache(maxsize=GPUS_KEPT_MAX)
def _gpu_labels(hub: str, model: str, index: int, node_id: str) -> str:
    """They never change, and hubs with 10,000 GPUs are asked every 30 s, in the loop that takes work in."""
    pairs = {
        "job": "harchos-gpu",
        "hub_name": hub,
        "deviceName": model,
        "deviceIndex": str(index),
        "node": node_id,
        "source": "modelled",
    }
    return _line("", pairs, 0.0).removesuffix("0.0")


def _gpus(series: HubSeries) -> list[str]:
    """Modelled ones only: real ones tell their own figures, through their node's agent."""
    hub = series.summary.name
    rows = [
        (_gpu_labels(hub, gpu.model, gpu.index, gpu.node_id), gpu.held_milli / 1000, gpu.memory_gb, gpu.power_w)
        for gpu in series.gpus
        if gpu.provenance == "modelled"
    ]
    used, idle, hot = 1 - _IDLE_SHARE, _IDLE_SHARE, _HOT_C - _COOL_C
    return [
        *(f"harchos_gpu_utilization_percent{labels}{100.0 * load!r}" for labels, load, _, _ in rows),
        *(f"harchos_gpu_temperature_celsius{labels}{_COOL_C + hot * load!r}" for labels, load, _, _ in rows),
        *(f"harchos_gpu_vram_used_bytes{labels}{float(size * _GB) * load!r}" for labels, load, size, _ in rows),
        *(f"harchos_gpu_vram_total_bytes{labels}{float(size * _GB)!r}" for labels, _, size, _ in rows),
        *(f"harchos_gpu_power_draw_watts{labels}{watts * (idle + used * load)!r}" for labels, load, _, watts in rows),
    ]


def _hub(series: HubSeries) -> Iterator[str]:
    own = {"job": "harchos-hub", "hub_name": series.summary.name}
    yield _line("harchos_hub_status", own, 1.0 if series.summary.status == "ready" else 0.0)
    yield _line("harchos_hub_closed", own, 1.0 if series.summary.status in _CLOSED else 0.0)
    for peer in series.peers:
        if not peer.own and peer.rtt_ms is not None:
            yield _line("harchos_hub_latency_ms", {**own, "peer": peer.hub_id}, peer.rtt_ms)
    total = sum(series.requests.values())
    failed = sum(count for status, count in series.requests.items() if status.startswith("5"))
    yield "# TYPE harchos_hub_requests_total counter"
    for status, count in series.requests.items():
        yield _line("harchos_hub_requests_total", {**own, "code": status}, float(count))
    yield _line("harchos_hub_error_rate_percent", own, 100.0 * failed / total if total else 0.0)
    yield f"# TYPE {_DURATION} histogram"
    for bound, count in series.durations:
        yield _line(f"{_DURATION}_bucket", {**own, "le": bound}, float(count))
    yield _line(f"{_DURATION}_count", own, float(total))
    yield _line(f"{_DURATION}_sum", own, series.durations_sum_s)


def _power(series: HubSeries) -> Iterator[str]:
    for power in series.powers:
        place = _place(power)
        at = {"job": "harchos-carbon", **place}
        grid = power.figure(GRID)
        if grid.value is not None:
            yield _line("carbon_intensity_gco2_kwh", {**at, "source": grid.source, "type": grid.evidence}, grid.value)
        if power.hub_id != series.summary.hub_id:
            continue
        energy = {"job": "harchos-energy", **place}
        measured = power.figure("facility-power").evidence or "estimated"
        yield _line("energy_consumption_watts", {**energy, "type": measured}, 1000.0 * power.load_kw)
        share = min(1.0, power.onsite_kw / power.load_kw) if power.load_kw > 0 else 0.0
        renewable = {**energy, "source": "on-site", "type": "estimated"}
        yield _line("energy_renewable_percent", renewable, 100.0 * share)
    if series.forecast is not None:
        at = {"job": "harchos-carbon", "hub": series.forecast.hub_id, "zone": series.forecast.grid_zone}
        for ahead in FORECAST_HOURS:
            if ahead <= len(series.forecast.hours):
                hour = series.forecast.hours[ahead - 1]
                yield _line("carbon_intensity_forecast_gco2_kwh", {**at, "ahead": f"{ahead}h"}, hour.g_per_kwh)
    if series.used is not None:
        here = _own_power(series)
        own = {**(_place(here) if here is not None else {"hub": series.summary.hub_id}), "type": "estimated"}
        # The public dashboards look for what was emitted among energy, and for what was saved among carbon.
        yield _line("carbon_emissions_grams", {"job": "harchos-energy", **own}, series.used.g)
        yield _line("carbon_savings_grams", {"job": "harchos-carbon", **own}, series.used.saved_g)


def _place(power: HubPower) -> dict[str, str]:
    return {"hub": power.hub_id, "zone": power.grid_zone, "region_name": power.country}


def _own_power(series: HubSeries) -> HubPower | None:
    return next((one for one in series.powers if one.hub_id == series.summary.hub_id), None)


def _workloads(series: HubSeries) -> Iterator[str]:
    for name, kwh in series.workloads:
        pairs = {"job": "harchos-workload", "hub": series.summary.hub_id, "workload_name": name, "type": "estimated"}
        yield _line("harchos_workload_energy_kwh", pairs, kwh)


def _inference(series: HubSeries) -> Iterator[str]:
    name = "harchos_inference_duration_seconds"
    for one in series.inference:
        pairs = {
            "job": "harchos-inference",
            "hub": series.summary.hub_id,
            "model": one.model,
            "pipeline": one.pipeline,
        }
        yield _line("harchos_inference_requests_total", pairs, float(one.rows))
        yield _line("harchos_inference_errors_total", pairs, float(one.failed))
        for bound, count in one.within:
            yield _line(f"{name}_bucket", {**pairs, "le": bound}, float(count))


def _prices(series: HubSeries) -> Iterator[str]:
    """What the power of one GPU at full load costs in an hour: HarchOS has no price list of its own."""
    own, price = _own_power(series), series.price
    if own is None or price is None:
        return
    for model, watts in sorted({gpu.model: gpu.power_w for gpu in series.gpus}.items()):
        cost = price.per_mwh * watts / 1e6 * series.summary.pue
        pairs = {"job": "harchos-pricing", **_place(own), "model": model, "type": f"energy, {price.currency}"}
        yield _line("harchos_gpu_hourly_price", {**pairs, "source": price.evidence}, cost)


def _sovereignty(series: HubSeries) -> Iterator[str]:
    for framework in series.frameworks:
        pairs = {"job": "harchos-sovereignty", "hub": series.summary.hub_id, "type": framework}
        yield _line("sovereignty_compliance", pairs, 1.0 if series.is_compliant else 0.0)


# What does SENTINEL scrape of a hub? One page with the series that the public dashboards ask for.


router = APIRouter(tags=["health"])

WORKLOADS_MAX = 1000
BOOKS_KEPT_S = 300.0  # a month of bookings is not read for every scrape; they change once in some minutes anyway


@dataclass(slots=True)
class MonthUse:
    """What was used this month, as it was read last."""

    read_s: float = float("-inf")
    used: Used | None = None
    jobs: tuple[tuple[str, float], ...] = ()


@router.get(
    "/metrics/series", response_class=PlainTextResponse, summary="Metrics under the names of the public dashboards"
)
async def series(request: Request, _: Operator, here: Here) -> Response:
    """In the Prometheus text format. GPUs of a modelled fleet are marked with `source="modelled"`."""
    traffic: Traffic = request.app.state.traffic
    books: MonthUse = request.app.state.books
    await _renew(books, here)
    summary = here.hub.summary()
    hub_series = HubSeries(
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
    page = series_page(hub_series, openmetrics=openmetrics)
    return Response(page, headers={"content-type": OPENMETRICS_TYPE if openmetrics else TEXT_TYPE})


async def _renew(books: MonthUse, here: RouteContext) -> None:
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


def _forecast(here: RouteContext) -> GridForecast | None:
    try:
        return here.hub.carbon.forecast(here.hub.hub_id, max(FORECAST_HOURS))
    except HarchError:
        return None  # no history yet, or no source: the other figures stand for themselves


def _price(here: RouteContext) -> PowerPrice | None:
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
