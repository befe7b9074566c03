"""Where do the keys of the engine's users live, and how does a user prove what it may do?

One file of mode 0600 per user, or a token that the account has signed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.pipelines.client.errors import NatsError
from harch.pipelines.client.options import NkeyRole, new_user_seed, public_key, sign
from harch.pipelines.engine.layout import EngineUser, permission

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,95}\Z")
_SEED_CHARS_MAX = 200


class KeyFolder:
    """Seeds by user name. A file that others may read is refused, because it may have been read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def seed(self, name: str) -> str:
        """The seed of this user, made if there is none."""
        path = self._path(name)
        try:
            text = read_secret(path)
        except FileNotFoundError:
            text = new_user_seed()
            write_secret(path, text + "\n")
        try:
            public_key(text)
        except NatsError as error:
            raise HarchError(
                "E0704", f"{path} holds no key: {error}", hint="remove it; a new one is generated"
            ) from error
        return text.strip()

    def public_key(self, name: str) -> str:
        return public_key(self.seed(name))

    def word(self, name: str) -> str:
        """A long random word, for what knows no keys (the links inside a cluster)."""
        path = self._path(name)
        try:
            return read_secret(path)
        except FileNotFoundError:
            word = secrets.token_urlsafe(32)
            write_secret(path, word + "\n")
            return word

    def forget(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.match(name):
            raise HarchError("E0704", f"`{name[:64]}` is not a user name", hint="use a-z, 0-9 and -")
        return self._folder / f"{name}.key"


def read_secret(path: Path) -> str:
    """The text of a secret file, or E0704 if others may read it."""
    with path.open(encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise HarchError("E0704", f"{path} may be read by others", hint=f"remove it, or chmod 600 {path}")
        return file.read(_SEED_CHARS_MAX).strip()


def write_state(path: Path, content: bytes) -> None:
    """The same for what HarchOS writes for itself, under a seal: `harch.base.state_files.read_sealed` reads it."""
    write_secret(path, LINE.seal(content).decode())


def write_secret(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


# How does a user prove what it may do, where accounts sign that instead of listing it? A token, signed by the account.
#
# An engine that others run knows the account, and no users: HarchOS makes one per stage, with the same lists of what is
# allowed that its own configuration has. The form is that of NATS (JWT with Ed25519 NKeys).


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
        "iss": public_key(key.seed, NkeyRole.ACCOUNT),
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
    return signed(claims, key.seed, NkeyRole.ACCOUNT)


def signed(claims: Mapping[str, Any], seed: str, role: NkeyRole) -> str:
    """The token of these claims."""
    named = {
        **claims,
        "jti": base64.b32encode(hashlib.sha256(msgspec.json.encode(claims)).digest()).decode().strip("="),
    }
    text = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(named)}"
    return f"{text}.{sign(seed, text, role)}"


def _part(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()
