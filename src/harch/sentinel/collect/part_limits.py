"""How many parts does a message have? Counted before it is read: two bytes are enough for a part that takes a hundred.

An empty span is two bytes in a request and 170 in memory, so a small body could become gigabytes without being packed.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence

from harch.base.errors import HarchError

_BYTES_FEW = 8  # a part that takes more is no trick; smaller messages cannot take much memory, whatever they hold


def check_parts(message: bytes, path: Sequence[int], parts_max: int, what: str) -> None:
    """Raises E0606 if the field at the end of `path` (numbers of fields, from the outside) comes too often in a large
    message. Who reads it counts again; what is no message is left to them, too."""
    if len(message) > parts_max * _BYTES_FEW and counted(message, tuple(path), parts_max) > parts_max:
        hint = "send several smaller requests"
        raise HarchError("E0606", f"the request has more than {parts_max} {what}", hint=hint)


def check_count(count: int, count_max: int, what: str) -> None:
    """Raises E0606."""
    if count > count_max:
        raise HarchError("E0606", f"{count} {what}; {count_max} are allowed")


def check_objects(text: bytes, objects_max: int) -> None:
    """The same for JSON, by its opening braces, also those inside texts. Raises E0606."""
    check_count(text.count(b"{"), objects_max, "objects in one request")


def counted(message: bytes, path: tuple[int, ...], parts_max: int) -> int:
    """How many there are, as far as the limit and one beyond it."""
    count = 0
    ranges = [(0, len(message), 0)]
    while ranges:
        at, end, depth = ranges.pop()
        is_last = depth == len(path) - 1
        while at < end:
            tag, at = _varint(message, at, end)
            wire = tag & 7
            if wire == 2:
                size, at = _varint(message, at, end)
                if tag >> 3 == path[depth]:
                    if is_last:
                        count += 1
                        if count > parts_max:
                            return count
                    else:
                        ranges.append((at, min(end, at + size), depth + 1))
                at += size
            elif wire == 0:
                _, at = _varint(message, at, end)
            elif wire in (1, 5):
                at += 8 if wire == 1 else 4
            else:
                break  # groups, which nobody sends, or rubbish
    return count


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    """The number and where it ends; at the end of the message where it does not end."""
    value = shift = 0
    while at < end and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, end
