"""How is a stream of bytes cut into messages, what do two hubs say about their link itself, and what waits to be
sent? A length, a kind, a body; nothing above a limit is ever buffered.
"""

# harch: pure

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from enum import IntEnum

import msgspec
from msgspec import Struct

from harch.federation.identity.members import HubName

BODY_BYTES_MAX = 1024 * 1024
FIRST_BODY_BYTES_MAX = 64 * 1024  # until the peer is known: a Hello, or the request of a hub that wants to join

_HEAD = struct.Struct("!IB")
HEAD_BYTES = _HEAD.size


class FrameKind(IntEnum):
    """Who reads the body: the hub (its own messages), the link itself, or the desk where new hubs join."""

    MESSAGE = 0
    CONTROL = 1
    UNCERTIFIED = 2


class FrameTooLarge(ValueError):
    """A body above the limit. To send one is a fault of the caller."""


def frame(kind: FrameKind, body: bytes) -> bytes:
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


# What do two hubs say about their link itself, and when does one refuse the other?
#
# The hub that dialled sends on that connection; the other only answers there. Both open with `Hello`, or `Refused`.
# `Ping` and `Pong` measure the round trip. Before a connection is replaced by one with a newer certificate, the dialler
# says `Bye` and the other `Parted` once it has handled everything before: so nothing is lost and nothing overtakes.


PROTOCOL_VERSION = 1

_ARRAY_OF_TWO = b"\x92"  # how pings and pongs start in msgpack: they are frequent, so they have no field names


class LinkHello(Struct, frozen=True, kw_only=True, tag="hello"):
    """First frame in each direction. `introduction` is the hub's signed member record; the links do not read it.

    A later version may add fields, never change the meaning of these: an older hub has to understand whom it refuses.
    """

    protocol_version: int
    hub_id: str
    trust_domain: str
    features: tuple[str, ...] = ()
    introduction: bytes = b""


class LinkRefused(Struct, frozen=True, tag="refused"):
    """Instead of a Hello, or at any time later: the reason, then the connection is closed."""

    rule: str
    reason: str


class LinkPing(Struct, frozen=True, tag="ping", array_like=True, gc=False):
    number: int


class LinkPong(Struct, frozen=True, tag="pong", array_like=True, gc=False):
    number: int


class Bye(Struct, frozen=True, tag="bye"):
    """Nothing more follows from the dialler on this connection."""


class Parted(Struct, frozen=True, tag="parted"):
    """Everything before `Bye` has been handled."""


Control = LinkHello | LinkRefused | Bye | Parted | LinkPing | LinkPong

_encode = msgspec.msgpack.Encoder().encode
_maps: msgspec.msgpack.Decoder[LinkHello | LinkRefused | Bye | Parted] = msgspec.msgpack.Decoder(
    LinkHello | LinkRefused | Bye | Parted
)
_arrays: msgspec.msgpack.Decoder[LinkPing | LinkPong] = msgspec.msgpack.Decoder(LinkPing | LinkPong)


def encode_control(message: Control) -> bytes:
    return _encode(message)


def decode_control(body: bytes) -> Control:
    """Raises `msgspec.DecodeError` for anything else."""
    return _arrays.decode(body) if body[:1] == _ARRAY_OF_TWO else _maps.decode(body)


def refusal(hello: LinkHello, *, own: HubName, certified: HubName | None, expected: str | None) -> LinkRefused | None:
    """Why this link cannot be; None if it can. `certified` is whom the certificate names, `expected` who was dialled.

    Whether that hub is a member, or was retired, is the identity's question.
    """
    return next(iter(_refusals(hello, own, certified, expected)), None)


def _refusals(hello: LinkHello, own: HubName, certified: HubName | None, expected: str | None) -> Iterable[LinkRefused]:
    if hello.protocol_version != PROTOCOL_VERSION:
        version = f"protocol version {hello.protocol_version}"
        yield LinkRefused(
            "version", f"{hello.hub_id} speaks {version}; {own.hub_id} speaks version {PROTOCOL_VERSION} only"
        )
    if hello.trust_domain != own.trust_domain:
        yield LinkRefused(
            "trust_domain", f"{hello.hub_id} is of `{hello.trust_domain}`, {own.hub_id} of `{own.trust_domain}`"
        )
    if certified is None:
        yield LinkRefused("certificate", "the certificate names no hub")
    elif certified != (hello.trust_domain, hello.hub_id):
        yield LinkRefused("certificate", f"the certificate names {certified.uri}, the greeting {hello.hub_id}")
    if expected is not None and hello.hub_id != expected:
        yield LinkRefused("certificate", f"{expected} was dialled, {hello.hub_id} answered")
    if hello.hub_id == own.hub_id:
        yield LinkRefused("itself", f"{own.hub_id} has dialled itself")


# What waits to be sent to one peer? A limited number of messages and bytes; gossip never takes all the room.


MESSAGES_MAX = 50_000
BYTES_MAX = 16 * 1024 * 1024
DROPPABLE_SHARE = 4  # messages that will be repeated anyway may fill a quarter of it


class Outbox:
    """Frames in the order in which they were accepted."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._frames: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: bytes, *, droppable: bool) -> bool:
        """False if there is no room for it; then nothing has changed."""
        share = DROPPABLE_SHARE if droppable else 1
        if len(self._frames) >= self._messages_max // share or self._bytes + len(frame) > self._bytes_max // share:
            return False
        self._frames.append(frame)
        self._bytes += len(frame)
        return True

    def take(self, bytes_max: int) -> bytes:
        """Frames from the front, together, up to about `bytes_max`: one write for many messages."""
        taken, size = [], 0
        while self._frames and size < bytes_max:
            frame = self._frames.popleft()
            size += len(frame)
            taken.append(frame)
        self._bytes -= size
        return b"".join(taken)

    def clear(self) -> None:
        self._frames.clear()
        self._bytes = 0
