"""How does an exponential histogram of OpenTelemetry become a native one? The same buckets, one place further on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import EXPONENTIAL_SCHEMA_RANGE, STALE, Histogram, Span

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

_BUCKETS_MAX = 10_000
_GAP_MAX = 2  # up to this many empty buckets in a row are cheaper written out than skipped by a new span


def native_histogram(point: pb.ExponentialHistogramDataPoint, *, stale: bool) -> Histogram:
    """Raises E0672 for scales that are too coarse; finer ones than ours are merged down."""
    if stale:
        return Histogram(count=0, sum=STALE)
    least, most = EXPONENTIAL_SCHEMA_RANGE
    if point.scale < least:
        raise HarchError("E0672", f"an exponential histogram has scale {point.scale}; the coarsest is {least}")
    merge = max(0, point.scale - most)
    positive_spans, positive = _buckets(point.positive.offset, list(point.positive.bucket_counts), merge)
    negative_spans, negative = _buckets(point.negative.offset, list(point.negative.bucket_counts), merge)
    return Histogram(
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


def _buckets(offset: int, counts: list[int], merge: int) -> tuple[tuple[Span, ...], tuple[float, ...]]:
    """OpenTelemetry's bucket i ends where our bucket i + 1 does."""
    if len(counts) > _BUCKETS_MAX:
        raise HarchError("E0672", f"an exponential histogram has {len(counts)} buckets; {_BUCKETS_MAX} may be")
    merged: dict[int, float] = {}
    for place, count in enumerate(counts):
        if count:
            index = ((offset + place) >> merge) + 1
            merged[index] = merged.get(index, 0.0) + count
    spans: list[Span] = []
    values: list[float] = []
    expected = 0  # the bucket that would come next in the running span; the first span counts from bucket 0
    for index in sorted(merged):
        gap = index - expected
        if spans and gap <= _GAP_MAX:
            values.extend([0.0] * gap)
            spans[-1] = Span(spans[-1].offset, spans[-1].length + gap + 1)
        else:
            spans.append(Span(gap, 1))
        values.append(merged[index])
        expected = index + 1
    return tuple(spans), tuple(values)
