"""Who is calling? API keys: shown once, stored as digests, each with a tenant and a role."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.hub.store import rows
from harch.hub.store.rows import Statement
from harch.hub.views import KeyInfo, Principal, Role

KEY_PREFIX = "hsk_"
KEYS_MAX = 100_000


def new_token() -> str:
    """192 random bits: no dictionary reaches them, so a plain SHA-256 digest is safe to store."""
    return KEY_PREFIX + secrets.token_urlsafe(24)


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


class KeyRing:
    """All keys in memory, by digest: a look-up by digest leaks nothing about the token through its timing."""

    def __init__(self, stored: Iterable[tuple[KeyInfo, str]]) -> None:
        self._infos: dict[str, KeyInfo] = {}
        self._digests: dict[str, str] = {}
        self._principals: dict[str, Principal] = {}
        for info, key_digest in stored:
            self.remember(info, key_digest)

    def authenticate(self, token: str) -> Principal | None:
        return self._principals.get(digest(token))

    def remember(self, info: KeyInfo, key_digest: str) -> None:
        self._infos[info.id] = info
        self._digests[info.id] = key_digest
        if info.revoked:
            self._principals.pop(key_digest, None)
        else:
            self._principals[key_digest] = Principal(key_id=info.id, name=info.name, tenant=info.tenant, role=info.role)

    def issue(self, *, name: str, tenant: str, role: Role, now: datetime, token: str = "") -> tuple[KeyInfo, str]:
        """A new key that is not yet remembered: first to disk, then into the ring."""
        if len(self._infos) >= KEYS_MAX:
            raise HarchError("E0401", f"the hub holds {KEYS_MAX} keys", hint="revoke some first")
        token = token or new_token()
        info = KeyInfo(id=new_id("key", now=now), name=name, tenant=tenant, role=role, prefix=token[:8], created_at=now)
        return info, token

    def has(self, token: str) -> bool:
        return digest(token) in self._principals

    def forget(self, revoked: KeyInfo) -> None:
        self.remember(revoked, self._digests[revoked.id])

    @property
    def revoked_count(self) -> int:
        """Grows with every revocation: who remembers keys asks anew when it has."""
        return len(self._infos) - len(self._principals)

    def find(self, key_id: str, *, tenant: str | None) -> KeyInfo:
        info = self._infos.get(key_id)
        if info is None or (tenant is not None and info.tenant != tenant):
            raise HarchError("E0308", f"no API key has the id `{key_id}`", hint="`GET /v1/auth/keys` lists them")
        return info

    def is_valid(self, key_id: str) -> bool:
        return key_id in self._infos and not self._infos[key_id].revoked

    def all(self, tenant: str | None) -> list[KeyInfo]:
        return [info for info in self._infos.values() if tenant is None or info.tenant == tenant]

    def statement(self, info: KeyInfo, token: str = "") -> Statement:
        return rows.save_api_key(info, digest(token) if token else self._digests[info.id])


def ensure_key_file(path: Path) -> str:
    """The token in a file that only its owner reads; written at the first start, read at every other.

    Several hubs of one machine may start together: the file appears whole or not at all, and one of them wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(new_token() + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    token = path.read_bytes().decode(errors="replace").strip()
    if not token.startswith(KEY_PREFIX) or len(token) < 20:
        raise HarchError("E1005", f"{path} holds no API key", hint="remove the file; the next start writes a new one")
    return token
