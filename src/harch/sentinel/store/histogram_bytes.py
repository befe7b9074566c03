"""How is a native histogram kept and compared? As bytes: small in memory, and equal only if bit by bit the same."""

from __future__ import annotations

import struct

import msgspec

from harch.sentinel.model.histograms import Histogram, ResetHint, Span

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


def encode_histogram(histogram: Histogram) -> bytes:
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


def decode_histogram(data: bytes) -> Histogram:
    kept = _decoder.decode(data)
    count, total, zero_threshold, zero_count = _NUMBERS.unpack(kept.numbers)
    return Histogram(
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


def _spans(numbers: tuple[int, ...]) -> tuple[Span, ...]:
    return tuple(Span(numbers[place], numbers[place + 1]) for place in range(0, len(numbers), 2))
