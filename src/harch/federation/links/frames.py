"""How is a stream of bytes cut into messages? A length, a kind, a body; nothing above a limit is ever buffered."""

from __future__ import annotations

import struct
from enum import IntEnum

BODY_BYTES_MAX = 1024 * 1024
FIRST_BODY_BYTES_MAX = 64 * 1024  # until the peer is known: a Hello, or the request of a hub that wants to join

_HEAD = struct.Struct("!IB")
HEAD_BYTES = _HEAD.size


class Kind(IntEnum):
    """Who reads the body: the hub (its own messages), the link itself, or the desk where new hubs join."""

    MESSAGE = 0
    CONTROL = 1
    STRANGER = 2


class FrameTooLarge(ValueError):
    """A body above the limit. To send one is a fault of the caller."""


def frame(kind: Kind, body: bytes) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        raise FrameTooLarge(f"a message of {len(body)} bytes; at most {BODY_BYTES_MAX} fit into a frame")
    return _HEAD.pack(len(body), kind) + body


class FrameReader:
    """Bytes in, whole frames out. Holds at most one unfinished frame; after a `fault` nothing more is to be fed."""

    def __init__(self) -> None:
        self.body_bytes_max = FIRST_BODY_BYTES_MAX
        self.fault = ""
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are complete now. One that is announced above the limit is a fault, before it is read."""
        if self._rest:
            data = self._rest + data
        frames, at, end = [], 0, len(data)
        unpack = _HEAD.unpack_from
        while at + HEAD_BYTES <= end:
            size, kind = unpack(data, at)
            if size > self.body_bytes_max:
                self.fault = f"a frame of {size} bytes; the limit is {self.body_bytes_max}"
                break
            stop = at + HEAD_BYTES + size
            if stop > end:
                break
            frames.append((kind, data[at + HEAD_BYTES : stop]))
            at = stop
        self._rest = data[at:]
        return frames
