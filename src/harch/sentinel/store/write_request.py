"""What did one request bring, and which of its series may its sender write?

Columns of samples, few objects for what is rare; refused series are named by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import MetricMetadata
from harch.sentinel.model.selection import Exemplar, SeriesBatch, Written
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.series_encoding import SeriesRefusal, check_given, read_labels

NO_VALUES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class HistogramSample:
    row: int  # which series of the request
    timestamp: int
    histogram: NativeHistogram
    start: int = 0


@dataclass(slots=True)
class WriteRequest:
    """Series as rows, identified by the bytes of their labels; samples as columns, each with the row of its series."""

    data: Array  # u8: where labels lie
    label_starts: Array  # i64, one a row
    label_ends: Array
    rows: Array  # i32, one a sample
    timestamps: Array  # i64
    bits: Array  # u64
    starts: Array = field(default_factory=lambda: NO_VALUES)  # i64, one a sample, or empty
    histograms: Sequence[HistogramSample] = ()
    exemplars: Sequence[tuple[int, Exemplar]] = ()  # with the row of the series
    metadata: Sequence[tuple[str, MetricMetadata]] = ()
    refusals: dict[int, SeriesRefusal] = field(default_factory=dict)  # rows that are refused whatever their labels
    rare_refused: Sequence[SeriesRefusal] = ()  # histograms and exemplars that are not valid in themselves


@dataclass(frozen=True, slots=True)
class Receipt(Written):
    """What became of a request, with the first reason for what was not taken."""

    first_refusal: SeriesRefusal | None = None


def request_of(batches: Sequence[SeriesBatch], limits: TenantLimits) -> WriteRequest:
    """The request that brings these batches."""
    keys = bytearray()
    starts_at, ends_at = [], []
    rows: list[int] = []
    timestamps: list[int] = []
    values: list[float] = []
    starts: list[int] = []
    histograms: list[HistogramSample] = []
    exemplars: list[tuple[int, Exemplar]] = []
    refusals: dict[int, SeriesRefusal] = {}
    for row, batch in enumerate(batches):
        starts_at.append(len(keys))
        try:
            keys += check_given(batch.labels, limits)
        except SeriesRefusal as refusal:
            refusals[row] = refusal
        ends_at.append(len(keys))
        for place, (time, value) in enumerate(zip(batch.timestamps, batch.values, strict=True)):
            start = batch.starts[place] if batch.starts else 0
            if isinstance(value, NativeHistogram):
                histograms.append(HistogramSample(row, time, value, start))
            else:
                rows.append(row)
                timestamps.append(time)
                values.append(value)
                starts.append(start)
        exemplars.extend((row, exemplar) for exemplar in batch.exemplars)
    data = np.frombuffer(bytes(keys), np.uint8)
    label_starts, label_ends = np.array(starts_at, np.int64), np.array(ends_at, np.int64)
    return WriteRequest(
        data,
        label_starts,
        label_ends,
        np.array(rows, np.int32),
        np.array(timestamps, np.int64),
        np.array(values, np.float64).view(np.uint64),
        np.array(starts, np.int64) if any(starts) else NO_VALUES,
        histograms,
        exemplars,
        refusals=refusals,
    )


# Which series of a request may its sender write? Asked before anything is stored; the others are refused by row.


@dataclass(frozen=True, slots=True)
class WriteAuthorizer:
    """`why_not` answers why labels may not be written, or nothing. It may raise HarchError to refuse all of a request.

    A request whose bytes have none of `markers` is not looked at any further; without markers every row is.
    """

    why_not: Callable[[Mapping[str, str]], str]
    markers: Sequence[bytes] = ()


def authorize_rows(request: WriteRequest, judge: WriteAuthorizer | None, limits: TenantLimits) -> None:
    """Adds refusals to the request. Raises whatever the judge raises."""
    if judge is None or not len(request.label_starts):
        return
    ends, starts = request.label_ends.tolist(), request.label_starts.tolist()
    data = request.data[: max(ends)].tobytes()
    if judge.markers and not any(marker in data for marker in judge.markers):
        return
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        try:
            why = judge.why_not(dict(read_labels(data[start:end], limits)))
        except SeriesRefusal:
            continue  # labels that cannot be read are refused with their own reason
        if why:
            request.refusals[row] = SeriesRefusal("E0103", why)


def authorize_batches(
    batches: Sequence[SeriesBatch], judge: WriteAuthorizer | None
) -> tuple[list[SeriesBatch], int, str]:
    """Those that may be written, the number of samples that may not, and the first reason."""
    if judge is None:
        return list(batches), 0, ""
    kept, refused, first = [], 0, ""
    for batch in batches:
        why = judge.why_not(dict(batch.labels))
        if why:
            refused += len(batch.timestamps)
            first = first or why
        else:
            kept.append(batch)
    return kept, refused, first
