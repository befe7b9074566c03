"""How do samples travel to a server? As a remote-write 2.0 request: symbols, series, samples, start times."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from harch.sentinel.model.histograms import Histogram, Span
from harch.sentinel.model.labels import Labels
from harch.sentinel.promql.histograms.layout import compacted

CONTENT_TYPE = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
VERSION = "2.0.0"
_VARINT, _FIXED64, _BYTES = 0, 1, 2

TimedSample = tuple[int, float | Histogram, int]  # time, value, start time or 0


def encode(series: Iterable[tuple[Labels, list[TimedSample]]]) -> bytes:
    """The protobuf body, not yet compressed."""
    symbols: dict[str, int] = {"": 0}
    encoded: list[bytes] = []
    for labels, samples in series:
        refs = b"".join(
            _varint(symbols.setdefault(text, len(symbols))) for name, value in labels for text in (name, value)
        )
        body = _field(1, refs)
        for time_ms, value, start_ms in samples:
            if isinstance(value, Histogram):
                body += _field(3, _histogram(value, time_ms, start_ms))
            else:
                body += _field(2, _double(1, value) + _integer(2, time_ms) + _integer(3, start_ms))
        encoded.append(_field(5, body))
    table = b"".join(_field(4, text.encode("utf-8", "surrogateescape")) for text in symbols)
    return table + b"".join(encoded)


def _histogram(histogram: Histogram, time_ms: int, start_ms: int) -> bytes:
    whole = compacted(histogram)
    return b"".join(
        (
            _double(2, whole.count),
            _double(3, whole.sum),
            _tag(4, _VARINT) + _varint(_zigzag(whole.schema)),
            _double(5, whole.zero_threshold),
            _double(7, whole.zero_count),
            *(_field(8, _span(span)) for span in whole.negative_spans),
            _doubles(10, whole.negative_counts),
            *(_field(11, _span(span)) for span in whole.positive_spans),
            _doubles(13, whole.positive_counts),
            _integer(14, int(whole.reset_hint)),
            _integer(15, time_ms),
            _doubles(16, whole.custom_bounds),
            _integer(17, start_ms),
        )
    )


def _span(span: Span) -> bytes:
    return _tag(1, _VARINT) + _varint(_zigzag(span.offset)) + _integer(2, span.length)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content


def _integer(number: int, value: int) -> bytes:
    return b"" if value == 0 else _tag(number, _VARINT) + _varint(value & (1 << 64) - 1)


def _double(number: int, value: float) -> bytes:
    return _tag(number, _FIXED64) + struct.pack("<d", value)


def _doubles(number: int, values: tuple[float, ...]) -> bytes:
    return _field(number, struct.pack(f"<{len(values)}d", *values)) if values else b""


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
