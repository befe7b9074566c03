"""Who are we, without a password that could leak? NKeys: Ed25519 keys in the text form that NATS uses.

The engine's configuration holds public keys only, so reading it gives nobody access. A seed is the private half: it is
kept in files of mode 0600 and signs the engine's nonce at connect.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from enum import IntEnum

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from harch.pipelines.client.errors import NatsError

_SEED = 18 << 3


class Role(IntEnum):
    """Whose key it is; the first letter of its public half says it: U, A or O."""

    USER = 20 << 3
    ACCOUNT = 0
    OPERATOR = 14 << 3


def new_seed(role: Role, entropy: bytes | None = None) -> str:
    """A fresh seed (`SU…`, `SA…`, `SO…`) from the kernel's randomness; tests pass 32 bytes of their own."""
    raw = secrets.token_bytes(32) if entropy is None else entropy
    return _encode(bytes((_SEED | role >> 5, (role & 31) << 3)) + raw)


def new_user_seed(entropy: bytes | None = None) -> str:
    return new_seed(Role.USER, entropy)


def public_key(seed: str, role: Role = Role.USER) -> str:
    """The `U…`, `A…` or `O…` that others know it by."""
    key = _private(seed, role).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return _encode(bytes((role,)) + key)


def sign(seed: str, nonce: str, role: Role = Role.USER) -> str:
    """The nonce's signature, as CONNECT wants it; also that of a token."""
    return base64.urlsafe_b64encode(_private(seed, role).sign(nonce.encode())).rstrip(b"=").decode()


def is_public_key(text: str, role: Role) -> bool:
    """In form and checksum the public key of this role."""
    try:
        raw = base64.b32decode(text.encode() + b"=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        return False
    return len(raw) == 35 and raw[0] == role and binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") == raw[-2:]


def _private(seed: str, role: Role) -> Ed25519PrivateKey:
    try:
        padded = seed.strip().encode() + b"=" * (-len(seed.strip()) % 8)
        raw = base64.b32decode(padded)
    except (binascii.Error, ValueError) as error:
        raise NatsError("the seed is not in the form of an NKey") from error
    body, checksum = raw[:-2], raw[-2:]
    if len(body) != 34 or binascii.crc_hqx(body, 0).to_bytes(2, "little") != checksum or body[0] & 0xF8 != _SEED:
        raise NatsError("the seed is not a valid NKey")
    if ((body[0] & 7) << 5 | body[1] >> 3) != role:
        raise NatsError(f"the seed is not that of a {role.name.lower()}")
    return Ed25519PrivateKey.from_private_bytes(body[2:])


def _encode(body: bytes) -> str:
    checksum = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + checksum).rstrip(b"=").decode()
