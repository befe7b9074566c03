"""How are labels and native histograms written as bytes?

Labels as remote-write v1 has them, sorted; histograms small in memory, and equal only if bit by bit the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import BucketSpan, NativeHistogram, ResetHint
from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.store.limits import TenantLimits

_LABEL, _NAME, _VALUE = 0x0A, 0x0A, 0x12


class SeriesRefusal(HarchError):
    """Why one series cannot be taken, while others of the same request can."""


def encode_labels(labels: Iterable[tuple[str, str]]) -> bytes:
    """The bytes of labels that are sorted and valid already."""
    out = bytearray()
    for name, value in labels:
        put_label(out, name.encode(), value.encode())
    return bytes(out)


def put_label(out: bytearray, name: bytes, value: bytes) -> None:
    name_head, value_head = _head(_NAME, len(name)), _head(_VALUE, len(value))
    out += _head(_LABEL, len(name_head) + len(name) + len(value_head) + len(value))
    out += name_head
    out += name
    out += value_head
    out += value


def decode_labels(data: bytes) -> Labels:
    """Labels of bytes that `encode_labels` wrote."""
    return tuple((name.decode(), value.decode()) for name, value in _pairs(data))


def read_labels(data: bytes, limits: TenantLimits) -> Labels:
    """Labels as a stranger wrote them: any order, any legal protobuf. Raises a Refusal with the reason."""
    found: dict[str, str] = {}
    for raw_name, raw_value in _pairs(data):
        if len(raw_name) > limits.label_name_bytes_max or len(raw_value) > limits.label_value_bytes_max:
            raise SeriesRefusal(
                "E0607", f"label `{_printable(raw_name)}`: name {len(raw_name)}, value {len(raw_value)} bytes"
            )
        try:
            name, value = raw_name.decode(), raw_value.decode()
        except UnicodeDecodeError as broken:
            raise SeriesRefusal("E0607", f"label `{_printable(raw_name)}` is not UTF-8") from broken
        if name in found:
            raise SeriesRefusal("E0607", f"label `{name}` occurs twice")
        if not name:
            raise SeriesRefusal("E0607", "a label has no name")
        found[name] = value
    return check_labels(found.items(), limits)


def check_labels(pairs: Iterable[tuple[str, str]], limits: TenantLimits) -> Labels:
    """Sorted, without empty values; refused where there are too many, or no metric name."""
    kept = tuple(sorted((name, value) for name, value in pairs if value))
    if len(kept) > limits.labels_per_series_max:
        raise SeriesRefusal("E0607", f"{len(kept)} labels; {limits.labels_per_series_max} are allowed")
    if not any(name == METRIC_NAME for name, _ in kept):
        raise SeriesRefusal("E0607", "a series has no metric name")
    return kept


def check_given(labels: Labels, limits: TenantLimits) -> bytes:
    """The bytes of labels that come as text, from scrapes and rules. Raises a Refusal with the reason."""
    if len({name for name, _ in labels}) != len(labels):
        raise SeriesRefusal("E0607", "a label occurs twice")
    kept = check_labels(labels, limits)
    out = bytearray()
    for name, value in kept:
        try:
            raw_name, raw_value = name.encode(), value.encode()
        except UnicodeEncodeError as broken:
            raise SeriesRefusal("E0607", "a label is not UTF-8") from broken
        if not name or len(raw_name) > limits.label_name_bytes_max or len(raw_value) > limits.label_value_bytes_max:
            raise SeriesRefusal(
                "E0607", f"label `{_printable(raw_name)}`: name {len(raw_name)}, value {len(raw_value)} bytes"
            )
        put_label(out, raw_name, raw_value)
    return bytes(out)


def _pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    pairs = []
    offset, size = 0, len(data)
    while offset < size:
        if data[offset] != _LABEL:
            raise SeriesRefusal("E0605", "labels of a series are out of place")
        offset, end = _span(data, offset + 1, size)
        name = value = b""
        while offset < end:
            tag = data[offset]
            if tag in (_NAME, _VALUE):
                start, offset = _span(data, offset + 1, end)
                if tag == _NAME:
                    name = data[start:offset]
                else:
                    value = data[start:offset]
            else:
                offset = _skipped(data, offset, end)
        pairs.append((name, value))
    return pairs


def _span(data: bytes, offset: int, end: int) -> tuple[int, int]:
    length, start = _varint(data, offset, end)
    if length > end - start:
        raise SeriesRefusal("E0605", "a label extends beyond its series")
    return start, start + length


def _varint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    value = 0
    for step in range(10):
        if offset + step >= end:
            break
        byte = data[offset + step]
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value, offset + step + 1
    raise SeriesRefusal("E0605", "a number in a label is truncated")


def _skipped(data: bytes, offset: int, end: int) -> int:
    tag, offset = _varint(data, offset, end)
    match tag & 7:
        case 0:
            return _varint(data, offset, end)[1]
        case 1 if end - offset >= 8:
            return offset + 8
        case 2:
            return _span(data, offset, end)[1]
        case 5 if end - offset >= 4:
            return offset + 4
    raise SeriesRefusal("E0605", "a label has an unknown field")


def _head(tag: int, length: int) -> bytes:
    if length < 0x80:
        return bytes((tag, length))
    out = [tag]
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def _printable(name: bytes) -> str:
    return name[:64].decode(errors="replace")


# How is a native histogram kept and compared? As bytes: small in memory, and equal only if bit by bit the same.


_DOUBLE = struct.Struct("<d")
_NUMBERS = struct.Struct("<dddd")


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    numbers: bytes  # count, sum, zero threshold, zero count: as bits, since NaNs carry meanings
    schema: int
    hint: int
    is_integer: bool
    positive_spans: tuple[int, ...]
    negative_spans: tuple[int, ...]
    positive_counts: tuple[float, ...]
    negative_counts: tuple[float, ...]
    custom_bounds: tuple[float, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Kept)


def encode_histogram(histogram: NativeHistogram) -> bytes:
    return _encoder.encode(
        _Kept(
            _NUMBERS.pack(histogram.count, histogram.sum, histogram.zero_threshold, histogram.zero_count),
            histogram.schema,
            int(histogram.reset_hint),
            histogram.is_integer,
            tuple(number for span in histogram.positive_spans for number in (span.offset, span.length)),
            tuple(number for span in histogram.negative_spans for number in (span.offset, span.length)),
            tuple(map(float, histogram.positive_counts)),
            tuple(map(float, histogram.negative_counts)),
            tuple(map(float, histogram.custom_bounds)),
        )
    )


def decode_histogram(data: bytes) -> NativeHistogram:
    kept = _decoder.decode(data)
    count, total, zero_threshold, zero_count = _NUMBERS.unpack(kept.numbers)
    return NativeHistogram(
        count,
        total,
        kept.schema,
        zero_threshold,
        zero_count,
        _spans(kept.positive_spans),
        kept.positive_counts,
        _spans(kept.negative_spans),
        kept.negative_counts,
        kept.custom_bounds,
        ResetHint(kept.hint),
        kept.is_integer,
    )


def bits_of(number: float) -> int:
    """The bits of a number, which tell NaNs apart and zeros by their signs."""
    return int.from_bytes(_DOUBLE.pack(number), "little")


def number_of(bits: int) -> float:
    number: float = _DOUBLE.unpack(bits.to_bytes(8, "little"))[0]
    return number


def _spans(numbers: tuple[int, ...]) -> tuple[BucketSpan, ...]:
    return tuple(BucketSpan(numbers[place], numbers[place + 1]) for place in range(0, len(numbers), 2))
