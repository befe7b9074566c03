"""What does one data point say? Samples of one or several series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harch.sentinel.collect.otlp.attributes import texts
from harch.sentinel.collect.otlp.native import native_histogram
from harch.sentinel.model.histograms import STALE
from harch.sentinel.model.labels import BUCKET_LABEL, METRIC_NAME, QUANTILE_LABEL, labels
from harch.sentinel.model.selection import Exemplar, SeriesBatch

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

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
    told = []
    for exemplar in found:
        pairs = texts(exemplar.filtered_attributes)
        if exemplar.trace_id:
            pairs.append(("trace_id", exemplar.trace_id.hex()))
        if exemplar.span_id:
            pairs.append(("span_id", exemplar.span_id.hex()))
        value = float(exemplar.as_int) if exemplar.WhichOneof("value") == "as_int" else exemplar.as_double
        told.append(Exemplar(labels(pairs), value, exemplar.time_unix_nano // _NS_PER_MS))
    return tuple(told)
