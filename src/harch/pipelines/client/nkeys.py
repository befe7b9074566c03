"""Who are we, without a password that could leak? NKeys: Ed25519 keys in the text form that NATS uses.

The engine's configuration holds public keys only, so reading it gives nobody access. A seed is the private half: it is
kept in files of mode 0600 and signs the engine's nonce at connect.
"""

from __future__ import annotations

import base64
import binascii
import secrets

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from harch.pipelines.client.errors import NatsError

_SEED, _USER = 18 << 3, 20 << 3


def new_user_seed(entropy: bytes | None = None) -> str:
    """A fresh user seed (`SU…`) from the kernel's randomness; tests pass 32 bytes of their own."""
    raw = secrets.token_bytes(32) if entropy is None else entropy
    return _encode(bytes((_SEED | _USER >> 5, (_USER & 31) << 3)) + raw)


def public_key(seed: str) -> str:
    """The `U…` that the engine knows the user by."""
    key = _private(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return _encode(bytes((_USER,)) + key)


def sign(seed: str, nonce: str) -> str:
    """The nonce's signature, as CONNECT wants it."""
    return base64.urlsafe_b64encode(_private(seed).sign(nonce.encode())).rstrip(b"=").decode()


def _private(seed: str) -> Ed25519PrivateKey:
    try:
        padded = seed.strip().encode() + b"=" * (-len(seed.strip()) % 8)
        raw = base64.b32decode(padded)
    except (binascii.Error, ValueError) as error:
        raise NatsError("the seed is not in the form of an NKey") from error
    body, checksum = raw[:-2], raw[-2:]
    if len(body) != 34 or binascii.crc_hqx(body, 0).to_bytes(2, "little") != checksum or body[0] & 0xF8 != _SEED:
        raise NatsError("the seed is not a valid NKey")
    if ((body[0] & 7) << 5 | body[1] >> 3) != _USER:
        raise NatsError("the seed is not that of a user")
    return Ed25519PrivateKey.from_private_bytes(body[2:])


def _encode(body: bytes) -> str:
    checksum = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + checksum).rstrip(b"=").decode()
