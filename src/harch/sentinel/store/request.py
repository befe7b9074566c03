"""What did one request bring? Columns of samples, and few objects for what is rare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.metadata import Metadata
from harch.sentinel.model.selection import Exemplar, SeriesBatch, Written
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.label_bytes import Refusal, check_given
from harch.sentinel.store.limits import Limits

NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class HistogramSample:
    row: int  # which series of the request
    timestamp: int
    histogram: Histogram
    start: int = 0


@dataclass(slots=True)
class Request:
    """Series as rows, told by the bytes of their labels; samples as columns, each with the row of its series."""

    data: Array  # u8: where labels lie
    label_starts: Array  # i64, one a row
    label_ends: Array
    rows: Array  # i32, one a sample
    timestamps: Array  # i64
    bits: Array  # u64
    starts: Array = field(default_factory=lambda: NOTHING)  # i64, one a sample, or empty
    histograms: Sequence[HistogramSample] = ()
    exemplars: Sequence[tuple[int, Exemplar]] = ()  # with the row of the series
    metadata: Sequence[tuple[str, Metadata]] = ()
    refusals: dict[int, Refusal] = field(default_factory=dict)  # rows that are refused whatever their labels
    rare_refused: Sequence[Refusal] = ()  # histograms and exemplars that are not valid in themselves


@dataclass(frozen=True, slots=True)
class Receipt(Written):
    """What became of a request, with the first reason for what was not taken."""

    first_refusal: Refusal | None = None


def request_of(batches: Sequence[SeriesBatch], limits: Limits) -> Request:
    """The request that brings these batches."""
    keys = bytearray()
    starts_at, ends_at = [], []
    rows: list[int] = []
    timestamps: list[int] = []
    values: list[float] = []
    starts: list[int] = []
    histograms: list[HistogramSample] = []
    exemplars: list[tuple[int, Exemplar]] = []
    refusals: dict[int, Refusal] = {}
    for row, batch in enumerate(batches):
        starts_at.append(len(keys))
        try:
            keys += check_given(batch.labels, limits)
        except Refusal as refusal:
            refusals[row] = refusal
        ends_at.append(len(keys))
        for place, (time, value) in enumerate(zip(batch.timestamps, batch.values, strict=True)):
            start = batch.starts[place] if batch.starts else 0
            if isinstance(value, Histogram):
                histograms.append(HistogramSample(row, time, value, start))
            else:
                rows.append(row)
                timestamps.append(time)
                values.append(value)
                starts.append(start)
        exemplars.extend((row, exemplar) for exemplar in batch.exemplars)
    data = np.frombuffer(bytes(keys), np.uint8)
    label_starts, label_ends = np.array(starts_at, np.int64), np.array(ends_at, np.int64)
    return Request(
        data,
        label_starts,
        label_ends,
        np.array(rows, np.int32),
        np.array(timestamps, np.int64),
        np.array(values, np.float64).view(np.uint64),
        np.array(starts, np.int64) if any(starts) else NOTHING,
        histograms,
        exemplars,
        refusals=refusals,
    )
