"""How do bytes lie in a file so that a flipped one is found?

In pages with a checksum; native histograms by columns, buckets shared by many samples described once.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cramjam
import msgspec
import numpy as np
import numpy.typing as npt

from harch.sentinel.model.histograms import BucketSpan, NativeHistogram, ResetHint
from harch.sentinel.model.selection import Floats, Ints, Samples
from harch.sentinel.store.blocks.bytes_kernels import BROKEN
from harch.sentinel.store.blocks.columns_kernels import (
    decode_integer_columns,
    decode_value_columns,
    encode_integer_columns,
    encode_value_columns,
)

Bytes = npt.NDArray[np.uint8]

PAGE_BYTES_MAX = 1 << 30  # of one page unpacked; no writer comes near it, a broken length would
_LEVEL = 3
_WORTH = 0.97  # a page that zstd shortens by less stays as it is: nothing to unpack when it is read


class PageLocation(NamedTuple):
    """Where a page lies. Equal lengths say that it is not compressed."""

    offset: int
    stored: int
    raw: int
    checksum: int


class BrokenPage(Exception):
    """The bytes of a page are not those that were written; the message says how that shows."""


def pack(raw: bytes) -> bytes:
    """What to store of these bytes: compressed ones, or they themselves where that saves too little."""
    if len(raw) > PAGE_BYTES_MAX:
        raise ValueError(f"a page of {len(raw)} bytes")
    packed = bytes(cramjam.zstd.compress(raw, _LEVEL))
    return packed if len(packed) < _WORTH * len(raw) else raw


def place_of(stored: bytes, raw: bytes, offset: int) -> PageLocation:
    return PageLocation(offset, len(stored), len(raw), zlib.crc32(stored))


def unpack(file: memoryview, place: PageLocation) -> Bytes:
    """The bytes of a page in an array of its own. Raises BrokenPage."""
    if place.offset < 0 or place.stored < 0 or place.offset + place.stored > len(file):
        raise BrokenPage("a page is outside its file")
    if not 0 <= place.raw <= PAGE_BYTES_MAX:
        raise BrokenPage("a page claims an impossible length")
    stored = file[place.offset : place.offset + place.stored]
    if zlib.crc32(stored) != place.checksum:
        raise BrokenPage("the checksum of a page is wrong")
    raw = np.empty(place.raw, np.uint8)
    if place.stored == place.raw:
        raw[:] = np.frombuffer(stored, np.uint8)
        return raw
    try:
        written = cramjam.zstd.decompress_into(stored, raw.data)
    except cramjam.DecompressionError as broken:
        raise BrokenPage("a page does not decompress") from broken
    if written != place.raw:
        raise BrokenPage("a page decompresses to the wrong length")
    return raw


# How are native histograms kept? By columns: buckets shared by many samples are described once.
#
# A page holds the histograms of a group of series. Samples of a series that follow each other with the same shape
# (schema, spans, bounds) are a run. A run is written as columns over time: count, zero count, and every bucket, so
# that a
# bucket that seldom changes takes next to nothing. Sums are not here: they are the samples' values.


_HINTS = {int(hint): hint for hint in ResetHint}


class _Shape(msgspec.Struct, frozen=True, array_like=True):
    schema: int
    zero_threshold_bits: int  # bits, since -0.0 equals 0.0 and no NaN equals itself
    positive_spans: tuple[tuple[int, int], ...]
    negative_spans: tuple[tuple[int, int], ...]
    positive_count: int
    negative_count: int
    custom_bounds_bits: tuple[int, ...]
    is_integer: bool


class _Run(msgspec.Struct, frozen=True, array_like=True):
    series: int  # in the page
    shape: int
    length: int


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    shapes: tuple[_Shape, ...]
    runs: tuple[_Run, ...]
    integers: bytes  # by run: places of the samples in their column, reset hints
    integer_ends: tuple[int, ...]
    values: bytes  # by run: count, zero count, positive buckets, negative buckets
    value_ends: tuple[int, ...]


def encode_histograms(samples: Samples) -> bytes:
    """The histograms of these series, or nothing where all samples are floats."""
    if samples.histogram_at is None:
        return b""
    shapes: dict[_Shape, int] = {}
    runs: list[_Run] = []
    integers: list[Ints] = []
    values: list[Floats] = []
    for series, (first, count) in enumerate(zip(samples.first.tolist(), samples.count.tolist(), strict=True)):
        at = samples.histogram_at[first : first + count]
        places = np.flatnonzero(at >= 0)
        found = [samples.histograms[place] for place in at[places].tolist()]
        codes = list(_shape_codes(found, shapes))
        begin = 0
        for stop in range(1, len(codes) + 1):
            if stop == len(codes) or codes[stop] != codes[begin]:
                runs.append(_Run(series, codes[begin], stop - begin))
                run = found[begin:stop]
                integers += [places[begin:stop], np.array([histogram.reset_hint for histogram in run], np.int64)]
                values.extend(np.ascontiguousarray(_matrix(run).T))
                begin = stop
    if not runs:
        return b""
    integer_data, integer_places = encode_integer_columns(*_flat(integers, np.int64))
    value_data, value_places = encode_value_columns(*_flat(values, np.float64))
    return msgspec.msgpack.encode(
        _Contents(
            tuple(shapes),
            tuple(runs),
            integer_data.tobytes(),
            tuple(integer_places.tolist()),
            value_data.tobytes(),
            tuple(value_places.tolist()),
        )
    )


def decode_histograms(
    page: Bytes,
    wanted: dict[int, int],
    samples: Samples,
    skip: Ints,
    take: Ints,
    target: Ints,
    found: list[NativeHistogram],
) -> None:
    """Adds the histograms of wanted series (in the page -> in `samples`) to `found` and to `samples.histogram_at`.

    Of the column of series i, samples from `skip[i]` on, `take[i]` of them, lie at `target[i]`. Sums come from the
    values, which are decoded before. Raises BrokenPage.
    """
    try:
        contents = msgspec.msgpack.decode(page.data, type=_Contents)
    except msgspec.MsgspecError as broken:
        raise BrokenPage("a page of histograms is malformed") from broken
    histogram_at = samples.histogram_at
    if histogram_at is None:
        raise ValueError("no room for histograms")
    integer_data = np.frombuffer(bytearray(contents.integers), np.uint8)
    value_data = np.frombuffer(bytearray(contents.values), np.uint8)
    integer_column = value_column = 0
    for run in contents.runs:
        if not 0 <= run.shape < len(contents.shapes):
            raise BrokenPage("a histogram has no shape")
        shape = contents.shapes[run.shape]
        width = 2 + shape.positive_count + shape.negative_count
        mine = wanted.get(run.series)
        if mine is not None:
            places, hints = _integers(integer_data, contents.integer_ends, integer_column, 2, run.length)
            rows = _values(value_data, contents.value_ends, value_column, width, run.length).T
            low, high = np.searchsorted(places, [skip[mine], skip[mine] + take[mine]])
            part = slice(int(low), int(high))
            places = target[mine] + places[part] - skip[mine]
            histogram_at[places] = np.arange(len(found), len(found) + len(places))
            found += _histograms(shape, rows[part].tolist(), hints[part].tolist(), samples.values[places].tolist())
        integer_column += 2
        value_column += width


def _shape_codes(histograms: Sequence[NativeHistogram], shapes: dict[_Shape, int]) -> Iterator[int]:
    """The number of each one's shape. Most have that of the one before, which is quickly seen."""
    before, code = None, 0
    for histogram in histograms:
        if before is None or not _is_alike(before, histogram):
            code = shapes.setdefault(_shape(histogram), len(shapes))
        before = histogram
        yield code


def _is_alike(one: NativeHistogram, other: NativeHistogram) -> bool:
    """Certainly of one shape? A threshold of zero has two signs, and is left to the full comparison."""
    return (
        one.positive_spans is other.positive_spans
        and one.negative_spans is other.negative_spans
        and one.custom_bounds is other.custom_bounds
        and one.schema == other.schema
        and one.is_integer == other.is_integer
        and one.zero_threshold == other.zero_threshold != 0.0
        and len(one.positive_counts) == len(other.positive_counts)
        and len(one.negative_counts) == len(other.negative_counts)
    )


def _shape(histogram: NativeHistogram) -> _Shape:
    return _Shape(
        histogram.schema,
        _bits(histogram.zero_threshold),
        tuple((span.offset, span.length) for span in histogram.positive_spans),
        tuple((span.offset, span.length) for span in histogram.negative_spans),
        len(histogram.positive_counts),
        len(histogram.negative_counts),
        tuple(_bits(bound) for bound in histogram.custom_bounds),
        histogram.is_integer,
    )


def _matrix(run: Sequence[NativeHistogram]) -> Floats:
    rows = [(one.count, one.zero_count, *one.positive_counts, *one.negative_counts) for one in run]
    return np.array(rows, np.float64)


def _histograms(
    shape: _Shape, rows: list[list[float]], hints: list[int], sums: list[float]
) -> Iterator[NativeHistogram]:
    """One for each row. What the shape says is built once, and shared."""
    if not all(hint in _HINTS for hint in set(hints)):
        raise BrokenPage("a histogram has an unknown hint")
    schema, zero_threshold, is_integer = shape.schema, _float(shape.zero_threshold_bits), shape.is_integer
    positive_spans, negative_spans = _spans(shape.positive_spans), _spans(shape.negative_spans)
    custom_bounds = tuple(_float(bits) for bits in shape.custom_bounds_bits)
    middle = 2 + shape.positive_count
    for row, hint, total in zip(rows, hints, sums, strict=True):
        yield NativeHistogram(
            row[0],
            total,
            schema,
            zero_threshold,
            row[1],
            positive_spans,
            tuple(row[2:middle]),
            negative_spans,
            tuple(row[middle:]),
            custom_bounds,
            _HINTS[hint],
            is_integer,
        )


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def _float(bits: int) -> float:
    (value,) = struct.unpack("<d", bits.to_bytes(8, "little"))
    return float(value)


def _spans(pairs: tuple[tuple[int, int], ...]) -> tuple[BucketSpan, ...]:
    return tuple(BucketSpan(offset, length) for offset, length in pairs)


def _flat(columns: Sequence[Any], kind: type[Any]) -> tuple[Any, Ints, Ints]:
    count = np.array([len(column) for column in columns], np.int64)
    return np.concatenate(columns).astype(kind), np.cumsum(count) - count, count


def _integers(data: Bytes, ends: tuple[int, ...], column: int, columns: int, length: int) -> Ints:
    out = np.empty((columns, length), np.int64)
    if decode_integer_columns(data, *_regions(ends, column, columns, length), out.reshape(-1)) == BROKEN:
        raise BrokenPage("a column of histograms does not decode")
    return out


def _values(data: Bytes, ends: tuple[int, ...], column: int, columns: int, length: int) -> Floats:
    out = np.empty((columns, length), np.float64)
    if decode_value_columns(data, *_regions(ends, column, columns, length), out.reshape(-1)) == BROKEN:
        raise BrokenPage("a column of histograms does not decode")
    return out


def _regions(
    ends: tuple[int, ...], column: int, columns: int, length: int
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """Begin, stop, length, skip, take and target of columns that are wanted whole."""
    if length < 0 or column + columns >= len(ends):
        raise BrokenPage("a histogram lacks columns")
    places = np.array(ends[column : column + columns + 1], np.int64)
    lengths = np.full(columns, length, np.int64)
    return (
        places[:-1].copy(),
        places[1:].copy(),
        lengths,
        np.zeros(columns, np.int64),
        lengths,
        np.arange(columns) * length,
    )
