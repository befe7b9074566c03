"""What do few series of a request have?

Native histograms, exemplars and descriptions: protobuf messages read field by field, for what the kernels leave.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import (
    CUSTOM_BUCKETS_SCHEMA,
    EXPONENTIAL_SCHEMA_RANGE,
    STALE_BITS,
    BucketSpan,
    NativeHistogram,
    ResetHint,
)
from harch.sentinel.model.labels import Labels, MetricMetadata, MetricType
from harch.sentinel.model.selection import Exemplar
from harch.sentinel.store.series_encoding import SeriesRefusal, bits_of

_DOUBLE = struct.Struct("<d")
_U64 = (1 << 64) - 1

Field = tuple[int, int | bytes]  # number; a varint, or the bytes of the others


def fields(message: bytes) -> Iterator[Field]:
    """All fields. Raises E0605 where a field does not end inside the message."""
    at, end = 0, len(message)
    while at < end:
        tag, at = varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = varint(message, at)
            yield number, value
            continue
        if wire == 2:
            size, at = varint(message, at)
        else:
            size = 8 if wire == 1 else 4 if wire == 5 else end + 1
        if number == 0 or size > end - at:
            raise malformed("a field extends beyond its message")
        yield number, message[at : at + size]
        at += size


def varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for step in range(min(10, len(message) - at)):
        byte = message[at + step]
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value & _U64, at + step + 1
    raise malformed("a number is truncated")


def varints(value: int | bytes) -> list[int]:
    """Numbers of a repeated field, packed or one by one."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def doubles(value: int | bytes) -> list[float]:
    if isinstance(value, int) or len(value) % 8:
        raise malformed("a floating-point number is not 8 bytes")
    return [number for (number,) in _DOUBLE.iter_unpack(value)]


def double(value: int | bytes) -> float:
    found = doubles(value)
    if len(found) != 1:
        raise malformed("a floating-point number is not 8 bytes")
    return found[0]


def integer(value: int | bytes) -> int:
    """A number of 64 bits with a sign."""
    if not isinstance(value, int):
        raise malformed("a field is not a number")
    return value - (1 << 64) if value >> 63 else value


def signed(value: int) -> int:
    """A number in zigzag form."""
    return (value >> 1) ^ -(value & 1)


def text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise malformed("a field is not a string")
    try:
        return value.decode()
    except UnicodeDecodeError as broken:
        raise malformed("a string is not UTF-8") from broken


def part(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise malformed("a field is not a message")
    return value


def malformed(what: str) -> HarchError:
    return HarchError("E0605", f"the message is not remote-write: {what}")


def delimited(number: int, content: bytes) -> bytes:
    """A field that holds these bytes."""
    head = bytearray((number << 3 | 2,))
    size = len(content)
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


# What do few series have? Native histograms, exemplars and descriptions, read one by one.


_TYPES = (
    MetricType.UNKNOWN,
    MetricType.COUNTER,
    MetricType.GAUGE,
    MetricType.HISTOGRAM,
    MetricType.GAUGE_HISTOGRAM,
    MetricType.SUMMARY,
    MetricType.INFO,
    MetricType.STATESET,
)
_BUCKETS_MAX = 10_000
_EXEMPLAR_LABELS_MAX = 128  # characters of all labels together, as in OpenMetrics

Symbols = Sequence[bytes]


def metric_type(number: int) -> MetricType:
    return _TYPES[number] if 0 <= number < len(_TYPES) else MetricType.UNKNOWN


def read_metadata(message: bytes) -> tuple[str, MetricMetadata]:
    """What a remote-write 1 request says about one metric."""
    name, kind, unit, about = "", MetricType.UNKNOWN, "", ""
    for number, value in fields(message):
        match number:
            case 1:
                kind = metric_type(integer(value))
            case 2:
                name = text(value)
            case 4:
                about = text(value)
            case 5:
                unit = text(value)
    return name, MetricMetadata(kind, unit, about)


def read_exemplar(message: bytes, symbols: Symbols | None) -> Exemplar:
    """An exemplar; with symbols, of remote-write 2. Raises a Refusal where its labels are too long."""
    pairs: list[tuple[str, str]] = []
    references: list[int] = []
    value, timestamp = 0.0, 0
    for number, content in fields(message):
        match number:
            case 1 if symbols is None:
                pairs.append(_label(part(content)))
            case 1:
                references += varints(content)
            case 2:
                value = double(content)
            case 3:
                timestamp = integer(content)
    if symbols is not None:
        pairs = _referenced(references, symbols)
    kept: Labels = tuple(sorted((name, held) for name, held in pairs if held))
    if len({name for name, _ in kept}) != len(kept) or any(not name for name, _ in kept):
        raise SeriesRefusal("E0607", "an exemplar has a duplicate label, or one without a name")
    if sum(len(name) + len(held) for name, held in kept) > _EXEMPLAR_LABELS_MAX:
        raise SeriesRefusal("E0607", f"an exemplar's labels have more than {_EXEMPLAR_LABELS_MAX} characters")
    return Exemplar(kept, value, timestamp)


def read_histogram(message: bytes) -> tuple[int, int, NativeHistogram]:
    """Time, start and the histogram itself. Raises a Refusal where its parts do not fit each other."""
    found = _HistogramFields()
    for number, value in fields(message):
        reader = _READERS.get(number)
        if reader is not None:
            reader(found, value)
    return found.timestamp, found.start, _checked(found)


class _HistogramFields:
    def __init__(self) -> None:
        self.timestamp = self.start = self.schema = self.hint = 0
        self.count = self.sum = self.zero_threshold = self.zero_count = 0.0
        self.is_integer = False
        self.spans: tuple[list[BucketSpan], list[BucketSpan]] = ([], [])  # negative, positive
        self.deltas: tuple[list[int], list[int]] = ([], [])
        self.counts: tuple[list[float], list[float]] = ([], [])
        self.bounds: list[float] = []

    def set_count(self, value: int | bytes) -> None:
        self.is_integer = isinstance(value, int)
        self.count = float(value) if isinstance(value, int) else double(value)

    def set_zero_count(self, value: int | bytes) -> None:
        self.zero_count = float(value) if isinstance(value, int) else double(value)

    def add_span(self, side: int, value: int | bytes) -> None:
        offset = length = 0
        for number, content in fields(part(value)):
            if number == 1:
                offset = signed(varints(content)[0])
            elif number == 2:
                length = integer(content)
        if not (0 <= length <= _BUCKETS_MAX and -(1 << 31) <= offset < 1 << 31):
            raise SeriesRefusal("E0607", "a span of a histogram is out of bounds")
        self.spans[side].append(BucketSpan(offset, length))

    def buckets(self, side: int) -> tuple[float, ...]:
        if self.is_integer:
            return tuple(map(float, accumulate(self.deltas[side])))
        return tuple(self.counts[side])


_READERS: dict[int, Callable[[_HistogramFields, int | bytes], None]] = {
    1: _HistogramFields.set_count,
    2: _HistogramFields.set_count,
    3: lambda found, value: setattr(found, "sum", double(value)),
    4: lambda found, value: setattr(found, "schema", signed(varints(value)[0])),
    5: lambda found, value: setattr(found, "zero_threshold", double(value)),
    6: _HistogramFields.set_zero_count,
    7: _HistogramFields.set_zero_count,
    8: lambda found, value: found.add_span(0, value),
    9: lambda found, value: found.deltas[0].extend(map(signed, varints(value))),
    10: lambda found, value: found.counts[0].extend(doubles(value)),
    11: lambda found, value: found.add_span(1, value),
    12: lambda found, value: found.deltas[1].extend(map(signed, varints(value))),
    13: lambda found, value: found.counts[1].extend(doubles(value)),
    14: lambda found, value: setattr(found, "hint", integer(value)),
    15: lambda found, value: setattr(found, "timestamp", integer(value)),
    16: lambda found, value: found.bounds.extend(doubles(value)),
    17: lambda found, value: setattr(found, "start", integer(value)),
}


def _checked(found: _HistogramFields) -> NativeHistogram:
    custom = found.schema == CUSTOM_BUCKETS_SCHEMA
    low, high = EXPONENTIAL_SCHEMA_RANGE
    if not custom and not low <= found.schema <= high:
        raise SeriesRefusal("E0607", f"histograms of schema {found.schema} are not known")
    negative, positive = found.buckets(0), found.buckets(1)
    for spans, buckets in zip(found.spans, (negative, positive), strict=True):
        if sum(span.length for span in spans) != len(buckets) or len(buckets) > _BUCKETS_MAX:
            raise SeriesRefusal("E0607", f"a histogram has {len(buckets)} buckets, which do not match its spans")
        if any(span.offset < 0 for span in spans[1:]):
            raise SeriesRefusal("E0607", "spans of a histogram overlap")
        if any(not bucket >= 0 for bucket in buckets) and bits_of(found.sum) != STALE_BITS:
            raise SeriesRefusal("E0607", "a histogram has a bucket below zero")
    if custom and (negative or found.zero_count or not _ascend(found.bounds) or len(positive) > len(found.bounds) + 1):
        raise SeriesRefusal("E0607", "a histogram with custom bounds has fields that only exponential ones have")
    if not custom and found.bounds:
        raise SeriesRefusal("E0607", "an exponential histogram has custom bounds")
    return NativeHistogram(
        found.count,
        found.sum,
        found.schema,
        found.zero_threshold,
        found.zero_count,
        tuple(found.spans[1]),
        positive,
        tuple(found.spans[0]),
        negative,
        tuple(found.bounds),
        ResetHint(found.hint) if 0 <= found.hint <= 3 else ResetHint.UNKNOWN,
        found.is_integer,
    )


def _ascend(bounds: Sequence[float]) -> bool:
    finite = all(math.isfinite(bound) for bound in bounds)
    return finite and all(before < after for before, after in pairwise(bounds))


def _label(message: bytes) -> tuple[str, str]:
    name = value = ""
    for number, content in fields(message):
        if number == 1:
            name = text(content)
        elif number == 2:
            value = text(content)
    return name, value


def _referenced(references: Sequence[int], symbols: Symbols) -> list[tuple[str, str]]:
    if len(references) % 2 or any(number >= len(symbols) for number in references):
        raise malformed("an exemplar refers to missing strings")
    strings = [text(symbols[number]) for number in references]
    return list(zip(strings[::2], strings[1::2], strict=True))
