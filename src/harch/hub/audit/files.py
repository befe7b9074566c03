"""How would a hub notice that its database lost its end? The head of its chain stands in a small file beside it, too.

The file is written after each commit, so it may lag behind the database and never leads it: a database that is behind
its file has lost something. Two slots are written in turns and each has a checksum, so half a write leaves the other.
A write is some 10 µs in the thread that commits; the disk is waited for at most once a second and when the hub stops.
After a power failure the file may therefore be a moment older than the database, which is harmless.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from harch.base.errors import HarchError
from harch.sovereignty.audit.chain import ChainHead
from harch.sovereignty.audit.checkpoints import public_hex

HEAD_FILE_NAME = "audit.head"
SLOT_BYTES = 512  # a sector: disks write it whole or not at all
SLOTS = 2
SYNC_EVERY_S = 1.0

_log = logging.getLogger("harch.hub")


class HeadRecord(Struct, frozen=True, kw_only=True):
    """`count` grows with every write: the newer slot counts. `events` is the number of the last event."""

    count: int
    hub: str
    seq: int
    hash: str
    events: int
    source: str = HEAD_FILE_NAME  # who knew of this end; a peer's name if it is not the hub's own

    @property
    def head(self) -> ChainHead:
        return ChainHead(self.seq, self.hash)


class HeadFile:
    """`found` is what the file said when it was opened; None if there was none, `damaged` if it could not be read."""

    def __init__(self, path: Path, hub_id: str, monotonic_s: Callable[[], float]) -> None:
        self._hub_id, self._monotonic_s, self._path = hub_id, monotonic_s, path
        try:
            self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            text = os.pread(self._descriptor, SLOTS * SLOT_BYTES, 0)
            os.posix_fallocate(self._descriptor, 0, SLOTS * SLOT_BYTES)  # so that a full disk cannot stop it
        except OSError as error:
            raise HarchError("E1005", f"cannot use {path}: {error.strerror}", hint="check the disk") from error
        slots = [_read(text[start : start + SLOT_BYTES]) for start in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES)]
        own = [record for record in slots if record is not None and record.hub == hub_id]
        self.found = max(own, key=lambda record: record.count, default=None)
        self.damaged = self.found is None and bool(text.strip(b"\0"))
        self._count = self.found.count if self.found is not None else 0
        self._written: tuple[ChainHead, int] | None = None
        self._synced_s, self._failing = monotonic_s(), False
        self._lock, self._is_expecting = threading.Lock(), False

    def note(self, head: ChainHead, events: int) -> None:
        """This is on disk. Called from the thread that commits; never raises, because what is on disk stays there."""
        with self._lock:
            if self._is_expecting or (head, events) == self._written:
                return
            self._write(head, events, HEAD_FILE_NAME)
            now_s = self._monotonic_s()
            if now_s - self._synced_s >= SYNC_EVERY_S:
                self._synced_s = now_s
                self._sync()

    def expect(self, head: ChainHead, events: int, source: str) -> None:
        """Somebody else knows that the chain had this end: a restart must not forget it, nor a commit write over it."""
        self._write_all(head, events, source, is_expecting=True)

    def reset(self, head: ChainHead, events: int) -> None:
        """The loss was accepted: from now on this end counts."""
        self._write_all(head, events, HEAD_FILE_NAME, is_expecting=False)

    def close(self) -> None:
        self._sync()
        os.close(self._descriptor)

    def _write_all(self, head: ChainHead, events: int, source: str, *, is_expecting: bool) -> None:
        with self._lock:
            self._is_expecting = is_expecting
            for _ in range(SLOTS):
                self._write(head, events, source)
            self._sync()

    def _write(self, head: ChainHead, events: int, source: str) -> None:
        self._count += 1
        record = HeadRecord(
            count=self._count, hub=self._hub_id, seq=head.seq, hash=head.hash, events=events, source=source
        )
        try:
            os.pwrite(self._descriptor, _slot(record), self._count % SLOTS * SLOT_BYTES)
            self._written, self._failing = (head, events), False
        except OSError as error:
            self._complain(error)

    def _sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._failing:
            _log.error("%s cannot be written: %s; a lost tail would not be noticed", self._path, error.strerror)
        self._failing = True


def _slot(record: HeadRecord) -> bytes:
    body = msgspec.json.encode(record)
    return (hashlib.sha256(body).hexdigest().encode() + b" " + body + b"\n").ljust(SLOT_BYTES)


def _read(slot: bytes) -> HeadRecord | None:
    checksum, _, rest = slot.partition(b" ")
    body = rest.rstrip()
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        return None
    try:
        return msgspec.json.decode(body, type=HeadRecord)
    except msgspec.DecodeError:
        return None


# Where is the key that signs a hub's checkpoints? In a file that only its owner reads, made at the first start.


class KeyFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = path.with_name(f"{path.name}.new")

    def open(self, in_force: str) -> Ed25519PrivateKey:
        """The key; `in_force` is the public key that the chain names, empty for a new chain."""
        if self._next.exists():
            with contextlib.suppress(HarchError):  # half a file: the chain cannot have named it
                if public_hex(_read_keys(self._next)) == in_force:
                    self.put_in_force()
            self._next.unlink(missing_ok=True)
        if not self._path.exists():
            _write(self._path, Ed25519PrivateKey.generate())
        return _read_keys(self._path)

    def peek(self) -> Ed25519PrivateKey:
        """The key as it lies there, without touching anything; a passing one if there is none."""
        return _read_keys(self._path) if self._path.exists() else Ed25519PrivateKey.generate()

    def prepare(self) -> Ed25519PrivateKey:
        """A new key, on disk, not yet in force."""
        key = Ed25519PrivateKey.generate()
        self._next.unlink(missing_ok=True)
        _write(self._next, key)
        return key

    def put_in_force(self) -> None:
        self._next.replace(self._path)
        _sync_folder(self._path.parent)


def _read_keys(path: Path) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))
    except (OSError, ValueError) as error:
        raise HarchError(
            "E1005",
            f"{path} holds no signing key",
            hint="restore the file; without it the hub makes a new key, and `harch audit verify` will report it",
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
