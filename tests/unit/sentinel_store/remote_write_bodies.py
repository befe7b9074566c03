"""Remote-write messages, written by hand: what a sender may put on the wire, also what it should not."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import cramjam

Pairs = Sequence[tuple[str, str]]
Sample = tuple[float, int]


def packed(message: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(message))


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> int:
    return (number << 1) ^ (number >> 63)


def part(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def bits(value: int) -> float:
    """The number of these bits, for NaNs that carry a meaning."""
    return struct.unpack("<d", struct.pack("<Q", value))[0]


def label(name: str | bytes, value: str | bytes) -> bytes:
    raw = [text.encode() if isinstance(text, str) else text for text in (name, value)]
    return part(1, part(1, raw[0]) + part(2, raw[1]))


def sample(value: float, timestamp: int, start: int = 0) -> bytes:
    return part(2, double(1, value) + number(2, timestamp) + (number(3, start) if start else b""))


def series_v1(labels: Pairs, samples: Iterable[Sample], extra: bytes = b"") -> bytes:
    written = b"".join(label(name, value) for name, value in labels)
    return part(1, written + b"".join(sample(*one) for one in samples) + extra)


def histogram(timestamp: int, *, float_counts: bool = False, start: int = 0, schema: int = 1) -> bytes:
    """One with two positive buckets (3 and 5), one negative (2), one at zero."""
    spans = part(8, number(1, zigzag(0)) + number(2, 1)) + part(11, number(1, zigzag(1)) + number(2, 2))
    if float_counts:
        counts = (
            double(2, 11.5) + double(7, 1.5) + part(10, struct.pack("<d", 2.0)) + part(13, struct.pack("<2d", 3, 5))
        )
    else:
        deltas = part(9, varint(zigzag(2))) + part(12, varint(zigzag(3)) + varint(zigzag(2)))
        counts = number(1, 11) + number(6, 1) + deltas
    written = counts + double(3, 18.25) + number(4, zigzag(schema)) + double(5, 0.001) + spans
    return written + number(14, 2) + number(15, timestamp) + (number(17, start) if start else b"")


class V2:
    """A remote-write 2 request with its table of texts."""

    def __init__(self) -> None:
        self.symbols: list[str] = [""]
        self._series = b""

    def symbol(self, text: str) -> int:
        if text not in self.symbols:
            self.symbols.append(text)
        return self.symbols.index(text)

    def references(self, labels: Pairs) -> bytes:
        return b"".join(varint(self.symbol(text)) for pair in labels for text in pair)

    def add(self, labels: Pairs, samples: bytes = b"", *, metadata: tuple[int, str, str] | None = None) -> V2:
        described = b""
        if metadata is not None:
            kind, about, unit = metadata
            described = part(5, number(1, kind) + number(3, self.symbol(about)) + number(4, self.symbol(unit)))
        self._series += part(5, part(1, self.references(labels)) + samples + described)
        return self

    def message(self) -> bytes:
        return b"".join(part(4, text.encode()) for text in self.symbols) + self._series

    def body(self) -> bytes:
        return packed(self.message())
