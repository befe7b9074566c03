"""Which series does `limit_ratio` take? Those whose labels hash below the ratio: xxHash64 of their encoded form."""

from __future__ import annotations

from harch.sentinel.model.labels import Labels

_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def sampling_offset(labels: Labels) -> float:
    """A number from 0 to 1 that is the same for the same labels, always and everywhere."""
    return float(xxhash64(b"".join(_sized(text) for pair in labels for text in pair))) / float(_MASK)


def _sized(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    size = len(data)
    return (bytes([size]) if size < 255 else b"\xff" + size.to_bytes(3, "little")) + data


def xxhash64(data: bytes) -> int:
    """The 64-bit xxHash with seed 0."""
    length, place = len(data), 0
    if length >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while place + 32 <= length:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], int.from_bytes(data[place : place + 8], "little"))
                place += 8
        digest = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane_value in lanes:
            digest = ((digest ^ _round(0, lane_value)) * _P1 + _P4) & _MASK
    else:
        digest = _P5
    digest = (digest + length) & _MASK
    while place + 8 <= length:
        digest ^= _round(0, int.from_bytes(data[place : place + 8], "little"))
        digest = (_rotated(digest, 27) * _P1 + _P4) & _MASK
        place += 8
    if place + 4 <= length:
        digest ^= (int.from_bytes(data[place : place + 4], "little") * _P1) & _MASK
        digest = (_rotated(digest, 23) * _P2 + _P3) & _MASK
        place += 4
    for byte in data[place:]:
        digest ^= (byte * _P5) & _MASK
        digest = (_rotated(digest, 11) * _P1) & _MASK
    digest = ((digest ^ (digest >> 33)) * _P2) & _MASK
    digest = ((digest ^ (digest >> 29)) * _P3) & _MASK
    return digest ^ (digest >> 32)


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(accumulator: int, word: int) -> int:
    return (_rotated((accumulator + word * _P2) & _MASK, 31) * _P1) & _MASK
