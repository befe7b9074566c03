"""Who said it? What a hub signs of its state, and the keys that prove it. Relays can withhold; they cannot forge.

Signatures are Ed25519 over bytes that name the kind of statement first, so that none can be passed off as another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from harch.federation.gossip.messages import Entry, Heartbeat

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


def entry_is_genuine(hub: str, generation: int, entry: Entry, verifier: Verifier) -> bool:
    statement = entry_statement(hub, generation, entry.key, entry.version, entry.value)
    return verifier.verify(hub, statement, entry.signature)


def heartbeat_is_genuine(hub: str, heartbeat: Heartbeat, verifier: Verifier) -> bool:
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
