"""How do the rooms of HarchOS emit metrics?

Through an OpenTelemetry meter, read by whoever the process decides; and latencies by upper bound, each with its
newest trace.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar

OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = openmetrics.CONTENT_TYPE_LATEST
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Collected(Protocol):
    """Metrics that are kept elsewhere and read when somebody asks."""

    def collect(self) -> Iterable[Metric]: ...


class Telemetry:
    """One process's instruments, readable in the Prometheus text format. Nothing is sent anywhere."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self.meter: Meter = self._provider.get_meter("harch")

    def add(self, collected: Collected) -> None:
        self._registry.register(collected)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def openmetrics(self) -> bytes:
        """With exemplars, for readers that accept it."""
        page: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
        return page


# How long does something take, and which trace shows it? Counts by upper bound, each with its newest trace.
#
# OpenMetrics calls such a trace an exemplar: SENTINEL keeps it beside the sample, so that a slow bucket leads to a
# trace.


SERIES_MAX = 1000


@dataclass(slots=True)
class ExemplarBuckets:
    """One series."""

    counts: list[int]
    traces: dict[int, Exemplar] = field(default_factory=dict)  # by bucket
    total: float = 0.0


class ExemplarHistogram:
    """Register it with a `Telemetry`. Beyond `SERIES_MAX` series further ones are not counted."""

    def __init__(self, name: str, description: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self._name, self._description, self._labels = name, description, labels
        self.bounds = tuple(bounds)
        self._series: dict[tuple[str, ...], ExemplarBuckets] = {}

    def observe(self, value: float, labels: tuple[str, ...] = (), trace_id: str = "", at_s: float = 0.0) -> None:
        """`trace_id` in hexadecimal, `at_s` since 1970."""
        series = self._series.get(labels) or self._new(labels)
        if series is None:
            return
        bucket = bisect_left(self.bounds, value)
        series.counts[bucket] += 1
        series.total += value
        if trace_id:
            series.traces[bucket] = Exemplar({"trace_id": trace_id}, value, at_s)

    def collect(self) -> Iterable[Metric]:
        found = HistogramMetricFamily(self._name, self._description, labels=self._labels)
        for labels, series in list(self._series.items()):
            found.add_metric(labels, buckets_of(self.bounds, series.counts, series.traces), series.total)
        yield found

    def _new(self, labels: tuple[str, ...]) -> ExemplarBuckets | None:
        if len(self._series) >= SERIES_MAX:
            return None
        series = self._series[labels] = ExemplarBuckets([0] * (len(self.bounds) + 1))
        return series


def buckets_of(
    bounds: Sequence[float], counts: Sequence[int], traces: dict[int, Exemplar]
) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Cumulative counts by upper bound as Prometheus wants them; `counts` has one more, for all above."""
    names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    found: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    total = 0
    for number, (name, count) in enumerate(zip(names, counts, strict=True)):
        total += count
        trace = traces.get(number)
        found.append((name, float(total)) if trace is None else (name, float(total), trace))
    return found
