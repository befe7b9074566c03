"""How do readings become a remote-write request? Labels are encoded once; then only values and times change."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from harch.sentinel.model.labels import Labels
from harch.sentinel.node.readings import Reading

_VALUE = struct.Struct("<d")
_TIME_BYTES = 6  # a varint of 6 bytes holds milliseconds from 1971 to 2109
_TIME_RANGE = (1 << 35, 1 << 42)
_SAMPLE_BYTES = 1 + 8 + 1 + _TIME_BYTES


class Frame:
    """One request that is sent again and again with new figures."""

    def __init__(self, common: Sequence[tuple[str, str]]) -> None:
        self._common = tuple(common)  # what every series of the node carries; a reading's own labels win
        self._series: tuple[Labels, ...] = ()
        self._body = bytearray()
        self._values: list[int] = []  # where the values stand; the time follows one byte after the value's end

    def filled(self, readings: Sequence[Reading], at_ms: int) -> bytearray:
        """The request's bytes, not yet compressed. They change with the next call."""
        if not _TIME_RANGE[0] <= at_ms < _TIME_RANGE[1]:
            raise ValueError(f"the clock says {at_ms} ms since 1970, which is before 1971 or after 2109")
        told = tuple(reading.labels for reading in readings)
        if told != self._series:
            self._lay_out(told)
        time = _varint(at_ms)
        body = self._body
        for place, reading in zip(self._values, readings, strict=True):
            _VALUE.pack_into(body, place, reading.value)
            body[place + 9 : place + 9 + _TIME_BYTES] = time
        return body

    def _lay_out(self, told: tuple[Labels, ...]) -> None:
        self._series = told
        self._body = bytearray()
        self._values = []
        for labels in told:
            own = dict(self._common)
            own.update(labels)
            encoded = b"".join(_label(name, value) for name, value in sorted(own.items()))
            self._body += b"\x0a" + _varint(len(encoded) + 2 + _SAMPLE_BYTES) + encoded
            self._body += bytes((0x12, _SAMPLE_BYTES, 0x09))
            self._values.append(len(self._body))
            self._body += bytes(8) + b"\x10" + bytes(_TIME_BYTES)


def _label(name: str, value: str) -> bytes:
    pair = _text(0x0A, name) + _text(0x12, value)
    return b"\x0a" + _varint(len(pair)) + pair


def _text(tag: int, text: str) -> bytes:
    encoded = text.encode()
    return bytes((tag,)) + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
