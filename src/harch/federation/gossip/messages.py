"""What do hubs send each other when they gossip, and who said it?

Four messages in msgpack with a limit on everything in them, and signatures: relays can withhold, they cannot forge.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta, Struct

# What do hubs send each other when they gossip? Four messages, in msgpack, with a limit on everything in them.
#
# SYN(what I know) -> SYNACK(what you lack, what I know) -> ACK(what you lack)
# PUSH(what I have just changed)


HUBS_MAX = 256
HUB_NAME_MAX = 64
KEY_MAX = 128
VALUE_BYTES_MAX = 64 * 1024
ENTRIES_PER_HUB_MAX = 4096
FINGERPRINT_BYTES = 16
SIGNATURE_BYTES = 64
MESSAGE_BYTES_MAX = 1024 * 1024
ENTRY_OVERHEAD_BYTES = 100  # signature, version and framing: an estimate from above

HubName = Annotated[str, Meta(min_length=1, max_length=HUB_NAME_MAX)]
Key = Annotated[str, Meta(min_length=1, max_length=KEY_MAX)]
Value = Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Fingerprint = Annotated[bytes, Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]
Signature = Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class GossipHeartbeat(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A sign of life, signed by the hub itself: what its state was when its heart beat for the `beat`th time."""

    generation: Number  # grows with every start of the hub
    beat: Number
    version: Number
    collected: Number  # tombstones up to this version are gone
    fingerprint: Fingerprint  # of all values at `version`: shows whether a relay has left some out
    signature: Signature


class GossipEntry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One key at one version, signed by the hub itself. No value: deleted."""

    key: Key
    version: Number
    value: Value | None
    signature: Signature

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value or b"") + ENTRY_OVERHEAD_BYTES


class HubDelta(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one hub's state has above version `since`, in ascending versions; the end may be cut off."""

    hub: HubName
    heartbeat: GossipHeartbeat
    since: Number
    collected: Number  # of the sender's copy; not above the heartbeat's
    entries: Annotated[tuple[GossipEntry, ...], Meta(max_length=ENTRIES_PER_HUB_MAX)]


class KnownVersions(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """How far somebody's knowledge of one hub goes."""

    generation: Number = 0
    beat: Number = 0
    version: Number = 0
    collected: Number = 0


Delta = Annotated[tuple[HubDelta, ...], Meta(max_length=HUBS_MAX)]
Digest = Annotated[dict[HubName, KnownVersions], Meta(max_length=HUBS_MAX)]


class Syn(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    number: Number  # comes back in the answer, which gives the round trip time
    digest: Digest


class SynAck(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    number: Number
    delta: Delta
    digest: Digest


class GossipAck(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    delta: Delta


class Push(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """One change of the sender's own state. Its `since` is the version it builds on."""

    delta: HubDelta


Message = Syn | SynAck | GossipAck | Push


class Outgoing(Struct, frozen=True):
    """To be sent, if there is a link; a message that gets lost is made up for by later ones.

    A push to several hubs is one and the same `message` object, so that it need be encoded only once.
    """

    to: str
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Raises `msgspec.DecodeError` for anything that is not one of the messages within its limits."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise msgspec.DecodeError(f"a gossip message of {len(data)} bytes; at most {MESSAGE_BYTES_MAX} are read")
    return _decoder.decode(data)


# Who said it? What a hub signs of its state, and the keys that prove it. Relays can withhold; they cannot forge.
#
# Signatures are Ed25519 over bytes that name the kind of statement first, so that none can be passed off as another.


_ENTRY, _HEARTBEAT = "harch-gossip-entry-1", "harch-gossip-heartbeat-1"
_encode = msgspec.msgpack.Encoder().encode


class Signer(Protocol):
    """Holds the key of this hub."""

    def sign(self, statement: bytes) -> bytes: ...


class Verifier(Protocol):
    """Knows the public keys of the members. False for an unknown hub, as for a wrong signature."""

    def verify(self, hub: str, statement: bytes, signature: bytes) -> bool: ...


class Ed25519Signer:
    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    def sign(self, statement: bytes) -> bytes:
        return self._key.sign(statement)


class Ed25519Verifier:
    """Raw public keys by hub. A hub may have several while it changes its key."""

    def __init__(self, keys: Mapping[str, Iterable[bytes]]) -> None:
        self._keys = {hub: tuple(map(Ed25519PublicKey.from_public_bytes, raw)) for hub, raw in keys.items()}

    def verify(self, hub: str, statement: bytes, signature: bytes) -> bool:
        return any(_is_valid(key, statement, signature) for key in self._keys.get(hub, ()))


def entry_statement(hub: str, generation: int, key: str, version: int, value: bytes | None) -> bytes:
    """What is signed of an entry. The value goes in as its hash; a deleted key has none."""
    value_hash = None if value is None else sha256(value).digest()
    return _encode((_ENTRY, hub, generation, version, key, value_hash))


def heartbeat_statement(
    hub: str, generation: int, beat: int, version: int, collected: int, fingerprint: bytes
) -> bytes:
    return _encode((_HEARTBEAT, hub, generation, beat, version, collected, fingerprint))


def entry_is_genuine(hub: str, generation: int, entry: GossipEntry, verifier: Verifier) -> bool:
    statement = entry_statement(hub, generation, entry.key, entry.version, entry.value)
    return verifier.verify(hub, statement, entry.signature)


def heartbeat_is_genuine(hub: str, heartbeat: GossipHeartbeat, verifier: Verifier) -> bool:
    statement = heartbeat_statement(
        hub, heartbeat.generation, heartbeat.beat, heartbeat.version, heartbeat.collected, heartbeat.fingerprint
    )
    return verifier.verify(hub, statement, heartbeat.signature)


def _is_valid(key: Ed25519PublicKey, statement: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, statement)
    except InvalidSignature:
        return False
    return True
