"""Where are secrets kept? Encrypted in the store; their key is a file beside it, so a copied database tells nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.fernet import Fernet

from harch.base.errors import HarchError

SECRET_BYTES_MAX = 64 * 1024
SECRETS_MAX = 10_000


class SecretBox:
    """Sealed values by tenant and name. Values leave it only towards the agent that runs a task naming them."""

    def __init__(self, key_file: Path, stored: Iterable[tuple[str, str, bytes]]) -> None:
        self._fernet = Fernet(_key(key_file))
        self._sealed = {(tenant, name): sealed for tenant, name, sealed in stored}

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
        """Missing ones are left out: the task finds no file, and says so itself."""
        sealed = {name: self._sealed.get((tenant, name)) for name in names}
        return {name: self._fernet.decrypt(value).decode() for name, value in sealed.items() if value is not None}


def _key(path: Path) -> bytes:
    if not path.exists():
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(Fernet.generate_key())
            file.flush()
            os.fsync(file.fileno())
    return path.read_bytes()
