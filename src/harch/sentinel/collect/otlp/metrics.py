"""What does an export of OpenTelemetry metrics say? Series, metadata, and the points that were not taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harch.base.errors import HarchError
from harch.sentinel.collect.otlp.attributes import origin, texts
from harch.sentinel.collect.otlp.names import label_pairs, metric_name
from harch.sentinel.collect.otlp.points import (
    Pairs,
    exponential_point,
    histogram_point,
    number_point,
    summary_point,
)
from harch.sentinel.model.labels import METRIC_NAME, labels
from harch.sentinel.model.metadata import Metadata, MetricType
from harch.sentinel.model.selection import SeriesBatch

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

_DELTA = 1
_TYPES = {
    "gauge": MetricType.GAUGE,
    "histogram": MetricType.HISTOGRAM,
    "exponential_histogram": MetricType.HISTOGRAM,
    "summary": MetricType.SUMMARY,
}


@dataclass(slots=True)
class Exported:
    batches: list[SeriesBatch] = field(default_factory=list)
    metadata: dict[str, Metadata] = field(default_factory=dict)
    rejected: int = 0
    reason: str = ""  # of the first point that was not taken

    def reject(self, points: int, reason: str) -> None:
        self.rejected += points
        self.reason = self.reason or reason


def exported_metrics(request: ExportMetricsServiceRequest) -> Exported:
    """All that can be taken; what cannot is counted and explained, and takes nothing else with it."""
    exported = Exported()
    for resource in request.resource_metrics:
        job, instance, others = origin(resource.resource.attributes)
        base: Pairs = {name: value for name, value in (("job", job), ("instance", instance)) if value}
        newest = 0
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                newest = max(newest, _metric(metric, base, exported))
        if others and base and newest:
            pairs = {**label_pairs(others), **base, METRIC_NAME: "target_info"}
            exported.batches.append(SeriesBatch(labels(pairs), (newest,), (1.0,)))
    return exported


def _metric(metric: pb.Metric, base: Pairs, exported: Exported) -> int:
    """Adds the metric's series; returns the time of its newest point in milliseconds."""
    kind = metric.WhichOneof("data")
    if kind is None:
        return 0
    data = getattr(metric, kind)
    is_counter = kind == "sum" and data.is_monotonic
    if getattr(data, "aggregation_temporality", None) == _DELTA:
        reason = f"`{metric.name}` counts anew for each export (delta); set the exporter to cumulative temporality"
        exported.reject(len(data.data_points), reason)
        return 0
    name = metric_name(metric.name, metric.unit, is_counter=is_counter, is_gauge=kind == "gauge")
    if not name:
        exported.reject(len(data.data_points), "a metric has no name")
        return 0
    told = MetricType.COUNTER if is_counter else _TYPES.get(kind, MetricType.GAUGE)
    exported.metadata[name.removesuffix("_total") if is_counter else name] = Metadata(
        told, metric.unit, metric.description
    )
    newest = 0
    for point in data.data_points:
        pairs = {**label_pairs(texts(point.attributes)), **base}
        try:
            exported.batches.extend(_point(kind, name, pairs, point, is_counter))
        except HarchError as problem:
            exported.reject(1, problem.message)
        newest = max(newest, point.time_unix_nano // 1_000_000)
    return newest


def _point(kind: str, name: str, pairs: Pairs, point: object, is_counter: bool) -> Iterator[SeriesBatch]:
    match kind:
        case "gauge" | "sum":
            return number_point(name, pairs, point, counts=is_counter)  # type: ignore[arg-type]
        case "histogram":
            return histogram_point(name, pairs, point)  # type: ignore[arg-type]
        case "exponential_histogram":
            return exponential_point(name, pairs, point)  # type: ignore[arg-type]
        case _:
            return summary_point(name, pairs, point)  # type: ignore[arg-type]
