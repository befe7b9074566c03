"""Who is calling? API keys: shown once, stored as digests, each with a tenant and a role."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from harch.base.errors import HarchError
from harch.base.ids import new_id
from harch.base.seal import LINE
from harch.base.state_files import read_sealed, rewrite
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


# Where are secrets kept? Encrypted in the store; their key is a file beside it, so a copied database tells nothing.


SECRET_BYTES_MAX = 64 * 1024
SECRETS_MAX = 10_000

_log = logging.getLogger("harch.damage")


class SecretBox:
    """Sealed values by tenant and name. Values leave it only towards the agent that runs a task naming them."""

    def __init__(self, key_file: Path, stored: Iterable[tuple[str, str, bytes]]) -> None:
        self._sealed = {(tenant, name): sealed for tenant, name, sealed in stored}
        self._fernet = Fernet(_key(key_file, list(self._sealed.values())))

    def seal(self, value: str) -> bytes:
        if len(value.encode()) > SECRET_BYTES_MAX:
            raise HarchError(
                "E0201", f"a secret holds at most {SECRET_BYTES_MAX} bytes", hint="store a file path instead"
            )
        if len(self._sealed) >= SECRETS_MAX:
            raise HarchError("E0401", f"the hub holds {SECRETS_MAX} secrets", hint="remove some first")
        return self._fernet.encrypt(value.encode())

    def put(self, tenant: str, name: str, sealed: bytes) -> None:
        self._sealed[tenant, name] = sealed

    def drop(self, tenant: str, name: str) -> None:
        self._sealed.pop((tenant, name), None)

    def names(self, tenant: str) -> list[str]:
        return sorted(name for owner, name in self._sealed if owner == tenant)

    def require(self, tenant: str, names: Iterable[str]) -> None:
        for name in names:
            if (tenant, name) not in self._sealed:
                raise HarchError(
                    "E0306",
                    f"secret `{name}` is not stored for tenant `{tenant}`",
                    hint=f"`harch secret set {name}` stores it",
                    field="secrets",
                )

    def open(self, tenant: str, names: Iterable[str]) -> dict[str, str]:
        """Missing ones are left out, and those that the key does not open: the task finds no file, and says so."""
        found = {}
        for name in names:
            if (sealed := self._sealed.get((tenant, name))) is not None:
                try:
                    found[name] = self._fernet.decrypt(sealed).decode()
                except (InvalidToken, UnicodeDecodeError):
                    _log.error("E1030: secret `%s` of tenant `%s` was sealed with another key", name, tenant)
        return found


def _key(path: Path, sealed: list[bytes]) -> bytes:
    """The key of the file, made at the first start. The file has a seal: half of a Fernet key only decrypts, and a
    wrong one opens one secret of 256 all the same, as rubbish."""
    if not path.exists():
        rewrite(path, LINE.seal(Fernet.generate_key()))
    key = read_sealed(path)
    if not _opens(key, []):
        hint = "restore it from a copy: secrets cannot be opened without it"
        raise HarchError("E1030", f"{path} holds no key", hint=hint)
    if not _opens(key, sealed):
        _log.error("E1030: %s is not the key that stored secrets were sealed with: set them again, or restore it", path)
    elif path.read_bytes() == key:  # of an older release
        rewrite(path, LINE.seal(key))
    return key


def _opens(key: bytes, sealed: list[bytes]) -> bool:
    """Whether it is a key at all, and opens these."""
    try:
        fernet = Fernet(key)
        for one in sealed:
            fernet.decrypt(one).decode()
    except (ValueError, InvalidToken):
        return False
    return True
