"""What does an export of OpenTelemetry metrics say? Series, metadata, and the points that were not taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harch.base.errors import HarchError
from harch.sentinel.collect.names import label_pairs, metric_name
from harch.sentinel.collect.otlp.attributes import origin, string_pairs
from harch.sentinel.model.histograms import EXPONENTIAL_SCHEMA_RANGE, STALE, BucketSpan, NativeHistogram
from harch.sentinel.model.labels import BUCKET_LABEL, METRIC_NAME, QUANTILE_LABEL, MetricMetadata, MetricType, labels
from harch.sentinel.model.selection import Exemplar, SeriesBatch

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb


_BUCKETS_MAX = 10_000
_GAP_MAX = 2  # up to this many empty buckets in a row are cheaper written out than skipped by a new span


def native_histogram(point: pb.ExponentialHistogramDataPoint, *, stale: bool) -> NativeHistogram:
    """Raises E0672 for scales that are too coarse; finer ones than ours are merged down."""
    if stale:
        return NativeHistogram(count=0, sum=STALE)
    least, most = EXPONENTIAL_SCHEMA_RANGE
    if point.scale < least:
        raise HarchError("E0672", f"an exponential histogram has scale {point.scale}; the coarsest is {least}")
    merge = max(0, point.scale - most)
    positive_spans, positive = _buckets(point.positive.offset, list(point.positive.bucket_counts), merge)
    negative_spans, negative = _buckets(point.negative.offset, list(point.negative.bucket_counts), merge)
    return NativeHistogram(
        count=float(point.count),
        sum=point.sum,
        schema=min(point.scale, most),
        zero_threshold=point.zero_threshold or 1e-128,
        zero_count=float(point.zero_count),
        positive_spans=positive_spans,
        positive_counts=positive,
        negative_spans=negative_spans,
        negative_counts=negative,
        is_integer=True,
    )


def _buckets(offset: int, counts: list[int], merge: int) -> tuple[tuple[BucketSpan, ...], tuple[float, ...]]:
    """OpenTelemetry's bucket i ends where our bucket i + 1 does."""
    if len(counts) > _BUCKETS_MAX:
        raise HarchError("E0672", f"an exponential histogram has {len(counts)} buckets; at most {_BUCKETS_MAX}")
    merged: dict[int, float] = {}
    for place, count in enumerate(counts):
        if count:
            index = ((offset + place) >> merge) + 1
            merged[index] = merged.get(index, 0.0) + count
    spans: list[BucketSpan] = []
    values: list[float] = []
    expected = 0  # the bucket that would come next in the running span; the first span counts from bucket 0
    for index in sorted(merged):
        gap = index - expected
        if spans and gap <= _GAP_MAX:
            values.extend([0.0] * gap)
            spans[-1] = BucketSpan(spans[-1].offset, spans[-1].length + gap + 1)
        else:
            spans.append(BucketSpan(gap, 1))
        values.append(merged[index])
        expected = index + 1
    return tuple(spans), tuple(values)


# What does one data point say? Samples of one or several series.


_NO_VALUE = 1  # the flag of a point that says that there is none
_NS_PER_MS = 1_000_000

Pairs = dict[str, str]


def number_point(name: str, pairs: Pairs, point: pb.NumberDataPoint, *, counts: bool) -> Iterator[SeriesBatch]:
    value = float(point.as_int) if point.WhichOneof("value") == "as_int" else point.as_double
    yield _batch(name, pairs, point, _or_stale(point, value), counts=counts, exemplars=_exemplars(point.exemplars))


def summary_point(name: str, pairs: Pairs, point: pb.SummaryDataPoint) -> Iterator[SeriesBatch]:
    yield _batch(f"{name}_sum", pairs, point, _or_stale(point, point.sum))
    yield _batch(f"{name}_count", pairs, point, _or_stale(point, float(point.count)))
    for at in point.quantile_values:
        with_quantile = {**pairs, QUANTILE_LABEL: bound_text(at.quantile)}
        yield _batch(name, with_quantile, point, _or_stale(point, at.value))


def histogram_point(name: str, pairs: Pairs, point: pb.HistogramDataPoint) -> Iterator[SeriesBatch]:
    """Classic buckets: cumulative counts, one series for each upper bound. An exemplar stands with its bucket."""
    yield _batch(f"{name}_sum", pairs, point, _or_stale(point, point.sum))
    yield _batch(f"{name}_count", pairs, point, _or_stale(point, float(point.count)))
    waiting = sorted(_exemplars(point.exemplars), key=lambda exemplar: exemplar.value)
    below = 0
    counts = list(point.bucket_counts) or [point.count]
    for place, count in enumerate(counts):
        below += count
        last = place == len(counts) - 1
        bound = float("inf") if last else point.explicit_bounds[place]
        here = [exemplar for exemplar in waiting if exemplar.value <= bound or last]
        waiting = waiting[len(here) :]
        value = _or_stale(point, float(point.count if last else below))
        yield _batch(f"{name}_bucket", {**pairs, BUCKET_LABEL: bound_text(bound)}, point, value, exemplars=here[-1:])


def exponential_point(name: str, pairs: Pairs, point: pb.ExponentialHistogramDataPoint) -> Iterator[SeriesBatch]:
    histogram = native_histogram(point, stale=bool(point.flags & _NO_VALUE))
    named = labels({**pairs, METRIC_NAME: name})
    start = point.start_time_unix_nano // _NS_PER_MS
    at = point.time_unix_nano // _NS_PER_MS
    yield SeriesBatch(named, (at,), (histogram,), (start,), _exemplars(point.exemplars))


def bound_text(bound: float) -> str:
    """As Go writes it: `+Inf`, `0.5`, `10`, `1e+06`."""
    if bound == float("inf"):
        return "+Inf"
    if bound == float("-inf"):
        return "-Inf"
    if bound == int(bound) and abs(bound) < 1e21:
        return str(int(bound))
    return repr(bound)


def _batch(
    name: str,
    pairs: Pairs,
    point: pb.NumberDataPoint | pb.SummaryDataPoint | pb.HistogramDataPoint,
    value: float,
    *,
    counts: bool = True,
    exemplars: Sequence[Exemplar] = (),
) -> SeriesBatch:
    start = point.start_time_unix_nano // _NS_PER_MS if counts else 0
    at = point.time_unix_nano // _NS_PER_MS
    return SeriesBatch(labels({**pairs, METRIC_NAME: name}), (at,), (value,), (start,) if start else (), exemplars)


def _or_stale(point: pb.NumberDataPoint | pb.SummaryDataPoint | pb.HistogramDataPoint, value: float) -> float:
    return STALE if point.flags & _NO_VALUE else value


def _exemplars(found: Sequence[pb.Exemplar]) -> tuple[Exemplar, ...]:
    converted = []
    for exemplar in found:
        pairs = string_pairs(exemplar.filtered_attributes)
        if exemplar.trace_id:
            pairs.append(("trace_id", exemplar.trace_id.hex()))
        if exemplar.span_id:
            pairs.append(("span_id", exemplar.span_id.hex()))
        value = float(exemplar.as_int) if exemplar.WhichOneof("value") == "as_int" else exemplar.as_double
        converted.append(Exemplar(labels(pairs), value, exemplar.time_unix_nano // _NS_PER_MS))
    return tuple(converted)


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
    metadata: dict[str, MetricMetadata] = field(default_factory=dict)
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
        reason = f"`{metric.name}` has delta temporality; set the exporter to cumulative temporality"
        exported.reject(len(data.data_points), reason)
        return 0
    name = metric_name(metric.name, metric.unit, is_counter=is_counter, is_gauge=kind == "gauge")
    if not name:
        exported.reject(len(data.data_points), "a metric has no name")
        return 0
    metric_type = MetricType.COUNTER if is_counter else _TYPES.get(kind, MetricType.GAUGE)
    exported.metadata[name.removesuffix("_total") if is_counter else name] = MetricMetadata(
        metric_type, metric.unit, metric.description
    )
    newest = 0
    for point in data.data_points:
        pairs = {**label_pairs(string_pairs(point.attributes)), **base}
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
