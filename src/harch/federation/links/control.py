"""What do two hubs say about their link itself, and when does one refuse the other?

The hub that dialled sends on that connection; the other only answers there. Both open with `Hello`, or `Refused`.
`Ping` and `Pong` measure the round trip. Before a connection is replaced by one with a newer certificate, the dialler
says `Bye` and the other `Parted` once it has handled everything before: so nothing is lost and nothing overtakes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from harch.federation.identity.names import HubName

PROTOCOL_VERSION = 1

_ARRAY_OF_TWO = b"\x92"  # how pings and pongs start in msgpack: they are frequent, so they have no field names


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """First frame in each direction. `introduction` is the hub's signed member record; the links do not read it.

    A later version may add fields, never change the meaning of these: an older hub has to understand whom it refuses.
    """

    protocol_version: int
    hub_id: str
    trust_domain: str
    features: tuple[str, ...] = ()
    introduction: bytes = b""


class Refused(Struct, frozen=True, tag="refused"):
    """Instead of a Hello, or at any time later: the reason, then the connection is closed."""

    rule: str
    reason: str


class Ping(Struct, frozen=True, tag="ping", array_like=True, gc=False):
    number: int


class Pong(Struct, frozen=True, tag="pong", array_like=True, gc=False):
    number: int


class Bye(Struct, frozen=True, tag="bye"):
    """Nothing more follows from the dialler on this connection."""


class Parted(Struct, frozen=True, tag="parted"):
    """Everything before `Bye` has been handled."""


Control = Hello | Refused | Bye | Parted | Ping | Pong

_encode = msgspec.msgpack.Encoder().encode
_maps: msgspec.msgpack.Decoder[Hello | Refused | Bye | Parted] = msgspec.msgpack.Decoder(Hello | Refused | Bye | Parted)
_arrays: msgspec.msgpack.Decoder[Ping | Pong] = msgspec.msgpack.Decoder(Ping | Pong)


def encode_control(message: Control) -> bytes:
    return _encode(message)


def decode_control(body: bytes) -> Control:
    """Raises `msgspec.DecodeError` for anything else."""
    return _arrays.decode(body) if body[:1] == _ARRAY_OF_TWO else _maps.decode(body)


def refusal(hello: Hello, *, own: HubName, certified: HubName | None, expected: str | None) -> Refused | None:
    """Why this link cannot be; None if it can. `certified` is whom the certificate names, `expected` who was dialled.

    Whether that hub is a member, or was retired, is the identity's question.
    """
    return next(iter(_refusals(hello, own, certified, expected)), None)


def _refusals(hello: Hello, own: HubName, certified: HubName | None, expected: str | None) -> Iterable[Refused]:
    if hello.protocol_version != PROTOCOL_VERSION:
        said = f"protocol version {hello.protocol_version}"
        yield Refused("version", f"{hello.hub_id} speaks {said}; {own.hub_id} speaks version {PROTOCOL_VERSION} only")
    if hello.trust_domain != own.trust_domain:
        yield Refused(
            "trust_domain", f"{hello.hub_id} is of `{hello.trust_domain}`, {own.hub_id} of `{own.trust_domain}`"
        )
    if certified is None:
        yield Refused("certificate", "the certificate names no hub")
    elif certified != (hello.trust_domain, hello.hub_id):
        yield Refused("certificate", f"the certificate names {certified.uri}, the greeting {hello.hub_id}")
    if expected is not None and hello.hub_id != expected:
        yield Refused("certificate", f"{expected} was dialled, {hello.hub_id} answered")
    if hello.hub_id == own.hub_id:
        yield Refused("itself", f"{own.hub_id} has dialled itself")
