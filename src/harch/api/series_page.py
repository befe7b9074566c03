"""Which series do the public dashboards know? A hub's own figures under their names, as a page of metrics.

GPUs of the shipped fleet are modelled: their figures follow from what work holds of them, and say so in `source`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harch.api.traffic import Traced
from harch.hub.carbon.reports import Used
from harch.hub.carbon.views import GridForecast, HubPower
from harch.hub.pipelines.views import InferenceFigures
from harch.hub.views import GpuView, HubSummary, PeerView

GRID = "grid-average-lifecycle"
_GB = 1_000_000_000
_IDLE_SHARE = 0.12  # of its rated power, what a GPU draws without work; modelled
_COOL_C, _HOT_C = 30.0, 68.0  # of a modelled GPU without work and at full load
_DURATION = "harchos_hub_request_duration_seconds"
FORECAST_HOURS = (1, 6, 24)

_CLOSED = frozenset({"cordoned", "draining", "retired"})  # on purpose, by an operator

Pairs = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PowerPrice:
    """`evidence`: measured where a market told it, modelled where the hub's contract is."""

    per_mwh: float
    currency: str
    evidence: str


@dataclass(frozen=True, slots=True)
class HubFigures:
    """A snapshot of what the page shows."""

    summary: HubSummary
    peers: Iterable[PeerView]
    gpus: Sequence[GpuView]
    powers: Sequence[HubPower]
    forecast: GridForecast | None
    price: PowerPrice | None  # what a MWh costs here now
    used: Used | None  # since the hub keeps books, all tenants together
    workloads: Iterable[tuple[str, float]]  # names of running work of the hub's own tenant, and their kWh
    inference: Iterable[InferenceFigures]
    requests: Mapping[str, int]  # by class of status: 2xx, 4xx, 5xx
    durations: Iterable[tuple[str, int]]  # cumulative count of answers, by upper bound in seconds
    durations_sum_s: float
    traces: Mapping[str, Traced]  # the newest traced answer, by upper bound
    is_compliant: bool
    frameworks: Iterable[str]


def series_page(figures: HubFigures, *, openmetrics: bool = False) -> str:
    """The whole page, in the Prometheus text format, or in OpenMetrics with traces as exemplars."""
    lines = [
        *_gpus(figures),
        *_hub(figures),
        *_power(figures),
        *_workloads(figures),
        *_inference(figures),
        *_prices(figures),
        *_sovereignty(figures),
    ]
    if openmetrics:
        lines = [*_by_family(lines, figures.traces), "# EOF"]
    return "".join(f"{line}\n" for line in lines)


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


def _gpus(figures: HubFigures) -> Iterator[str]:
    hub = figures.summary.name
    for gpu in figures.gpus:
        if gpu.provenance != "modelled":
            continue  # real ones tell their own figures, through their node's agent
        load = gpu.held_milli / 1000
        pairs = {
            "job": "harchos-gpu",
            "hub_name": hub,
            "deviceName": gpu.model,
            "deviceIndex": str(gpu.index),
            "node": gpu.node_id,
            "source": "modelled",
        }
        yield _line("harchos_gpu_utilization_percent", pairs, 100.0 * load)
        yield _line("harchos_gpu_temperature_celsius", pairs, _COOL_C + (_HOT_C - _COOL_C) * load)
        yield _line("harchos_gpu_vram_used_bytes", pairs, float(gpu.memory_gb * _GB) * load)
        yield _line("harchos_gpu_vram_total_bytes", pairs, float(gpu.memory_gb * _GB))
        yield _line("harchos_gpu_power_draw_watts", pairs, gpu.power_w * (_IDLE_SHARE + (1 - _IDLE_SHARE) * load))


def _hub(figures: HubFigures) -> Iterator[str]:
    own = {"job": "harchos-hub", "hub_name": figures.summary.name}
    yield _line("harchos_hub_status", own, 1.0 if figures.summary.status == "ready" else 0.0)
    yield _line("harchos_hub_closed", own, 1.0 if figures.summary.status in _CLOSED else 0.0)
    for peer in figures.peers:
        if not peer.own and peer.rtt_ms is not None:
            yield _line("harchos_hub_latency_ms", {**own, "peer": peer.hub_id}, peer.rtt_ms)
    total = sum(figures.requests.values())
    failed = sum(count for status, count in figures.requests.items() if status.startswith("5"))
    yield "# TYPE harchos_hub_requests_total counter"
    for status, count in figures.requests.items():
        yield _line("harchos_hub_requests_total", {**own, "code": status}, float(count))
    yield _line("harchos_hub_error_rate_percent", own, 100.0 * failed / total if total else 0.0)
    yield f"# TYPE {_DURATION} histogram"
    for bound, count in figures.durations:
        yield _line(f"{_DURATION}_bucket", {**own, "le": bound}, float(count))
    yield _line(f"{_DURATION}_count", own, float(total))
    yield _line(f"{_DURATION}_sum", own, figures.durations_sum_s)


def _power(figures: HubFigures) -> Iterator[str]:
    for power in figures.powers:
        place = _place(power)
        at = {"job": "harchos-carbon", **place}
        grid = power.figure(GRID)
        if grid.value is not None:
            yield _line("carbon_intensity_gco2_kwh", {**at, "source": grid.source, "type": grid.evidence}, grid.value)
        if power.hub_id != figures.summary.hub_id:
            continue
        energy = {"job": "harchos-energy", **place}
        measured = power.figure("facility-power").evidence or "estimated"
        yield _line("energy_consumption_watts", {**energy, "type": measured}, 1000.0 * power.load_kw)
        share = min(1.0, power.onsite_kw / power.load_kw) if power.load_kw > 0 else 0.0
        renewable = {**energy, "source": "on-site", "type": "estimated"}
        yield _line("energy_renewable_percent", renewable, 100.0 * share)
    if figures.forecast is not None:
        at = {"job": "harchos-carbon", "hub": figures.forecast.hub_id, "zone": figures.forecast.grid_zone}
        for ahead in FORECAST_HOURS:
            if ahead <= len(figures.forecast.hours):
                hour = figures.forecast.hours[ahead - 1]
                yield _line("carbon_intensity_forecast_gco2_kwh", {**at, "ahead": f"{ahead}h"}, hour.g_per_kwh)
    if figures.used is not None:
        here = _own_power(figures)
        own = {**(_place(here) if here is not None else {"hub": figures.summary.hub_id}), "type": "estimated"}
        # The public dashboards look for what was emitted among energy, and for what was saved among carbon.
        yield _line("carbon_emissions_grams", {"job": "harchos-energy", **own}, figures.used.g)
        yield _line("carbon_savings_grams", {"job": "harchos-carbon", **own}, figures.used.saved_g)


def _place(power: HubPower) -> dict[str, str]:
    return {"hub": power.hub_id, "zone": power.grid_zone, "region_name": power.country}


def _own_power(figures: HubFigures) -> HubPower | None:
    return next((one for one in figures.powers if one.hub_id == figures.summary.hub_id), None)


def _workloads(figures: HubFigures) -> Iterator[str]:
    for name, kwh in figures.workloads:
        pairs = {"job": "harchos-workload", "hub": figures.summary.hub_id, "workload_name": name, "type": "estimated"}
        yield _line("harchos_workload_energy_kwh", pairs, kwh)


def _inference(figures: HubFigures) -> Iterator[str]:
    name = "harchos_inference_duration_seconds"
    for one in figures.inference:
        pairs = {
            "job": "harchos-inference",
            "hub": figures.summary.hub_id,
            "model": one.model,
            "pipeline": one.pipeline,
        }
        yield _line("harchos_inference_requests_total", pairs, float(one.rows))
        yield _line("harchos_inference_errors_total", pairs, float(one.failed))
        for bound, count in one.within:
            yield _line(f"{name}_bucket", {**pairs, "le": bound}, float(count))


def _prices(figures: HubFigures) -> Iterator[str]:
    """What the power of one GPU at full load costs in an hour: HarchOS has no price list of its own."""
    own, price = _own_power(figures), figures.price
    if own is None or price is None:
        return
    for model, watts in sorted({gpu.model: gpu.power_w for gpu in figures.gpus}.items()):
        cost = price.per_mwh * watts / 1e6 * figures.summary.pue
        pairs = {"job": "harchos-pricing", **_place(own), "model": model, "type": f"energy, {price.currency}"}
        yield _line("harchos_gpu_hourly_price", {**pairs, "source": price.evidence}, cost)


def _sovereignty(figures: HubFigures) -> Iterator[str]:
    for framework in figures.frameworks:
        pairs = {"job": "harchos-sovereignty", "hub": figures.summary.hub_id, "type": framework}
        yield _line("sovereignty_compliance", pairs, 1.0 if figures.is_compliant else 0.0)
