"""Where are secrets kept? Encrypted in the store; their key is a file beside it, so a copied database tells nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.sealed import read_sealed, rewrite

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
        _log.error("E1030: %s is not the key that stored secrets were sealed with: set them anew, or restore it", path)
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
