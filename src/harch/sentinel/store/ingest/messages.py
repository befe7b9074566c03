"""What does a protobuf message hold? Its fields one by one, for the rare parts of a request that kernels leave."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from harch.base.errors import HarchError

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
            raise malformed("a field reaches beyond its message")
        yield number, message[at : at + size]
        at += size


def varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for step in range(min(10, len(message) - at)):
        byte = message[at + step]
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value & _U64, at + step + 1
    raise malformed("a number does not end")


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
        raise malformed("a floating-point number has not 8 bytes")
    return [number for (number,) in _DOUBLE.iter_unpack(value)]


def double(value: int | bytes) -> float:
    found = doubles(value)
    if len(found) != 1:
        raise malformed("a floating-point number has not 8 bytes")
    return found[0]


def integer(value: int | bytes) -> int:
    """A number of 64 bits with a sign."""
    if not isinstance(value, int):
        raise malformed("a number is not one")
    return value - (1 << 64) if value >> 63 else value


def signed(value: int) -> int:
    """A number in zigzag form."""
    return (value >> 1) ^ -(value & 1)


def text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise malformed("a text is not one")
    try:
        return value.decode()
    except UnicodeDecodeError as broken:
        raise malformed("a text is not UTF-8") from broken


def part(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise malformed("a part is not one")
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
