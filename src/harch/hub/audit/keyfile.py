"""Where is the key that signs a hub's checkpoints? In a file that only its owner reads, made at the first start.

A new key is written beside the old one before the chain names it, and takes its place afterwards. A crash in between
leaves both: the chain on disk tells which of them is in force.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.errors import HarchError
from harch.sovereignty.audit.keys import public_hex


class KeyFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = path.with_name(f"{path.name}.new")

    def open(self, in_force: str) -> Ed25519PrivateKey:
        """The key; `in_force` is the public key that the chain names, empty for a new chain."""
        if self._next.exists():
            with contextlib.suppress(HarchError):  # half a file: the chain cannot have named it
                if public_hex(_read(self._next)) == in_force:
                    self.put_in_force()
            self._next.unlink(missing_ok=True)
        if not self._path.exists():
            _write(self._path, Ed25519PrivateKey.generate())
        return _read(self._path)

    def peek(self) -> Ed25519PrivateKey:
        """The key as it lies there, without touching anything; a passing one if there is none."""
        return _read(self._path) if self._path.exists() else Ed25519PrivateKey.generate()

    def prepare(self) -> Ed25519PrivateKey:
        """A new key, on disk, not yet in force."""
        key = Ed25519PrivateKey.generate()
        self._next.unlink(missing_ok=True)
        _write(self._next, key)
        return key

    def put_in_force(self) -> None:
        self._next.replace(self._path)
        _sync_folder(self._path.parent)


def _read(path: Path) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))
    except (OSError, ValueError) as error:
        raise HarchError(
            "E1005",
            f"{path} holds no signing key",
            hint="restore the file; without it the hub makes a new key, and `harch audit verify` will say so",
        ) from error


def _write(path: Path, key: Ed25519PrivateKey) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key.private_bytes_raw().hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
