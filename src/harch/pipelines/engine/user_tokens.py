"""How does a user prove what it may do, where accounts sign that instead of listing it? A token, signed by the account.

An engine that others run knows the account, and no users: HarchOS makes one per stage, with the same lists of what is
allowed that its own configuration has. The form is that of NATS (JWT with Ed25519 NKeys).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from harch.pipelines.client.nkeys import Role, public_key, sign
from harch.pipelines.engine.users import EngineUser, permission

LIFE = timedelta(days=7)
_UNLIMITED = -1


class AccountKey(Struct, frozen=True):
    """The seed that signs users of one account: the account's own, or a signing key of it. Never shown."""

    seed: str
    account: str  # the public key of the account, `A…`

    def __repr__(self) -> str:
        return f"AccountKey({self.account})"


def user_token(key: AccountKey, user: EngineUser, *, now: datetime, life: timedelta | None = LIFE) -> str:
    """What this user shows. Without `life` it holds for good: only for one that never leaves the memory."""
    claims: dict[str, Any] = {
        "sub": user.public_key,
        "name": user.name,
        "iss": public_key(key.seed, Role.ACCOUNT),
        "iat": int(now.timestamp()),
        "nats": {
            "type": "user",
            "version": 2,
            "pub": permission(user.publish),
            "sub": permission(user.subscribe),
            "subs": _UNLIMITED,
            "data": _UNLIMITED,
            "payload": _UNLIMITED,
            "allowed_connection_types": list(user.connection_types),
        },
    }
    if claims["iss"] != key.account:
        claims["nats"]["issuer_account"] = key.account
    if life is not None:
        claims["exp"] = int((now + life).timestamp())
    return signed(claims, key.seed, Role.ACCOUNT)


def signed(claims: Mapping[str, Any], seed: str, role: Role) -> str:
    """The token of these claims."""
    named = {
        **claims,
        "jti": base64.b32encode(hashlib.sha256(msgspec.json.encode(claims)).digest()).decode().strip("="),
    }
    text = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(named)}"
    return f"{text}.{sign(seed, text, role)}"


def _part(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()
