"""What do few series have? Native histograms, exemplars and descriptions, read one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from harch.sentinel.model.histograms import (
    CUSTOM_BUCKETS_SCHEMA,
    EXPONENTIAL_SCHEMA_RANGE,
    STALE_BITS,
    Histogram,
    ResetHint,
    Span,
)
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.metadata import Metadata, MetricType
from harch.sentinel.model.selection import Exemplar
from harch.sentinel.store.histogram_bytes import bits_of
from harch.sentinel.store.ingest import messages
from harch.sentinel.store.label_bytes import Refusal

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


def read_metadata(message: bytes) -> tuple[str, Metadata]:
    """What a remote-write 1 request says about one metric."""
    name, kind, unit, about = "", MetricType.UNKNOWN, "", ""
    for number, value in messages.fields(message):
        match number:
            case 1:
                kind = metric_type(messages.integer(value))
            case 2:
                name = messages.text(value)
            case 4:
                about = messages.text(value)
            case 5:
                unit = messages.text(value)
    return name, Metadata(kind, unit, about)


def read_exemplar(message: bytes, symbols: Symbols | None) -> Exemplar:
    """An exemplar; with symbols, of remote-write 2. Raises a Refusal where its labels are too long."""
    pairs: list[tuple[str, str]] = []
    references: list[int] = []
    value, timestamp = 0.0, 0
    for number, content in messages.fields(message):
        match number:
            case 1 if symbols is None:
                pairs.append(_label(messages.part(content)))
            case 1:
                references += messages.varints(content)
            case 2:
                value = messages.double(content)
            case 3:
                timestamp = messages.integer(content)
    if symbols is not None:
        pairs = _referenced(references, symbols)
    kept: Labels = tuple(sorted((name, held) for name, held in pairs if held))
    if len({name for name, _ in kept}) != len(kept) or any(not name for name, _ in kept):
        raise Refusal("E0607", "an exemplar has a label twice, or one without a name")
    if sum(len(name) + len(held) for name, held in kept) > _EXEMPLAR_LABELS_MAX:
        raise Refusal("E0607", f"an exemplar's labels have more than {_EXEMPLAR_LABELS_MAX} characters")
    return Exemplar(kept, value, timestamp)


def read_histogram(message: bytes) -> tuple[int, int, Histogram]:
    """Time, start and the histogram itself. Raises a Refusal where its parts do not fit each other."""
    found = _HistogramFields()
    for number, value in messages.fields(message):
        reader = _READERS.get(number)
        if reader is not None:
            reader(found, value)
    return found.timestamp, found.start, _checked(found)


class _HistogramFields:
    def __init__(self) -> None:
        self.timestamp = self.start = self.schema = self.hint = 0
        self.count = self.sum = self.zero_threshold = self.zero_count = 0.0
        self.is_integer = False
        self.spans: tuple[list[Span], list[Span]] = ([], [])  # negative, positive
        self.deltas: tuple[list[int], list[int]] = ([], [])
        self.counts: tuple[list[float], list[float]] = ([], [])
        self.bounds: list[float] = []

    def set_count(self, value: int | bytes) -> None:
        self.is_integer = isinstance(value, int)
        self.count = float(value) if isinstance(value, int) else messages.double(value)

    def set_zero_count(self, value: int | bytes) -> None:
        self.zero_count = float(value) if isinstance(value, int) else messages.double(value)

    def add_span(self, side: int, value: int | bytes) -> None:
        offset = length = 0
        for number, content in messages.fields(messages.part(value)):
            if number == 1:
                offset = messages.signed(messages.varints(content)[0])
            elif number == 2:
                length = messages.integer(content)
        if not (0 <= length <= _BUCKETS_MAX and -(1 << 31) <= offset < 1 << 31):
            raise Refusal("E0607", "a span of a histogram is out of bounds")
        self.spans[side].append(Span(offset, length))

    def buckets(self, side: int) -> tuple[float, ...]:
        if self.is_integer:
            return tuple(map(float, accumulate(self.deltas[side])))
        return tuple(self.counts[side])


_READERS: dict[int, Callable[[_HistogramFields, int | bytes], None]] = {
    1: _HistogramFields.set_count,
    2: _HistogramFields.set_count,
    3: lambda found, value: setattr(found, "sum", messages.double(value)),
    4: lambda found, value: setattr(found, "schema", messages.signed(messages.varints(value)[0])),
    5: lambda found, value: setattr(found, "zero_threshold", messages.double(value)),
    6: _HistogramFields.set_zero_count,
    7: _HistogramFields.set_zero_count,
    8: lambda found, value: found.add_span(0, value),
    9: lambda found, value: found.deltas[0].extend(map(messages.signed, messages.varints(value))),
    10: lambda found, value: found.counts[0].extend(messages.doubles(value)),
    11: lambda found, value: found.add_span(1, value),
    12: lambda found, value: found.deltas[1].extend(map(messages.signed, messages.varints(value))),
    13: lambda found, value: found.counts[1].extend(messages.doubles(value)),
    14: lambda found, value: setattr(found, "hint", messages.integer(value)),
    15: lambda found, value: setattr(found, "timestamp", messages.integer(value)),
    16: lambda found, value: found.bounds.extend(messages.doubles(value)),
    17: lambda found, value: setattr(found, "start", messages.integer(value)),
}


def _checked(found: _HistogramFields) -> Histogram:
    custom = found.schema == CUSTOM_BUCKETS_SCHEMA
    low, high = EXPONENTIAL_SCHEMA_RANGE
    if not custom and not low <= found.schema <= high:
        raise Refusal("E0607", f"histograms of schema {found.schema} are not known")
    negative, positive = found.buckets(0), found.buckets(1)
    for spans, buckets in zip(found.spans, (negative, positive), strict=True):
        if sum(span.length for span in spans) != len(buckets) or len(buckets) > _BUCKETS_MAX:
            raise Refusal("E0607", f"a histogram has {len(buckets)} buckets, its spans others")
        if any(span.offset < 0 for span in spans[1:]):
            raise Refusal("E0607", "spans of a histogram overlap")
        if any(not bucket >= 0 for bucket in buckets) and bits_of(found.sum) != STALE_BITS:
            raise Refusal("E0607", "a histogram has a bucket below zero")
    if custom and (negative or found.zero_count or not _ascend(found.bounds) or len(positive) > len(found.bounds) + 1):
        raise Refusal("E0607", "a histogram with bounds of its own has parts that such ones do not have")
    if not custom and found.bounds:
        raise Refusal("E0607", "an exponential histogram has bounds of its own")
    return Histogram(
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
    for number, content in messages.fields(message):
        if number == 1:
            name = messages.text(content)
        elif number == 2:
            value = messages.text(content)
    return name, value


def _referenced(references: Sequence[int], symbols: Symbols) -> list[tuple[str, str]]:
    if len(references) % 2 or any(number >= len(symbols) for number in references):
        raise messages.malformed("an exemplar names texts that are not there")
    texts = [messages.text(symbols[number]) for number in references]
    return list(zip(texts[::2], texts[1::2], strict=True))
