"""Where does a hub keep the bytes of its tenants? In one store: chunks, trees made of them, and who needs these.

Calls block; a server makes them in threads, from as many as it likes. One process has the store open.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.content.frames import ChunkFrame
from harch.content.store.checking import Checker
from harch.content.store.chunks import Chunks, Pins
from harch.content.store.collection import Collector
from harch.content.store.encryption import check_master_key
from harch.content.store.index import HOLDERS_LOST, Index, drop_note
from harch.content.store.recovery import Recovery, open_index
from harch.content.store.settings import StoreSettings
from harch.content.store.storage import FolderStorage, PackStorage, Reserve, storage_error
from harch.content.store.tenants import Tenants
from harch.content.store.trees import Hold, StoredTree, Trees
from harch.wire.content import ChunksStored, Collected, ContentCheck, TenantUsage

LOCK = "lock"

Result = TypeVar("Result")


class StoreTotals(NamedTuple):
    """Of all tenants. Garbage is what a collection may remove now or later."""

    bytes_stored: int
    bytes_garbage: int


def open_store(folder: Path, *, master_key: bytes, settings: StoreSettings, clock: Clock) -> ContentStore:
    """Raises E1110 if another process has it open, for another master key, and if the place cannot be used."""
    check_master_key(master_key)
    lock = _lock(folder)
    try:
        storage = _storage(folder, settings)
        index = open_index(folder)
        try:
            tenants = Tenants(index, storage, master_key, settings.quota_bytes)
            Recovery(folder, index, storage, tenants, master_key, clock).run()
        except BaseException:
            index.close()
            raise
    except BaseException:
        os.close(lock)
        raise
    return ContentStore(index, storage, tenants, settings, clock, Reserve(folder), lock)


class ContentStore:
    """Thread-safe. Any call raises E1110 if the place cannot be used or the store is closed, E1002 on a full disk."""

    def __init__(
        self,
        index: Index,
        storage: PackStorage,
        tenants: Tenants,
        settings: StoreSettings,
        clock: Clock,
        reserve: Reserve,
        lock: int,
    ) -> None:
        self.location = storage.location
        self._index, self._storage, self._tenants, self._lock = index, storage, tenants, lock
        pins = Pins()
        self._chunks = Chunks(index, storage, tenants, pins, settings, clock)
        self._trees = Trees(index, self._chunks, tenants, clock)
        self._collector = Collector(index, storage, tenants, self._chunks, self._trees, pins, settings, clock)
        self._checker = Checker(index, storage, tenants, self._chunks, self._trees, clock)
        self._reserve = reserve
        self._reserve.fill()
        self._closing = threading.Event()
        self._calls = 0
        self._calls_ended = threading.Condition()

    def close(self) -> None:
        """Waits for calls that run; collections and checks end early."""
        with self._calls_ended:
            if self._closing.is_set():
                return
            self._closing.set()
            self._calls_ended.wait_for(lambda: self._calls == 0)
        self._index.close()
        os.close(self._lock)

    # Chunks

    def missing(self, tenant: str, ids: Sequence[bytes]) -> list[bytes]:
        """What has to be sent: not here, or damaged. All else stays for the grace period from now on."""
        with self._call():
            return self._chunks.missing(tenant, ids)

    def put(self, tenant: str, frames: Iterable[ChunkFrame]) -> ChunksStored:
        """Durable on return, all or nothing. Raises E1101 for a chunk that is not what its name says, E1103."""
        with self._call():
            return self._chunks.put(tenant, frames, self._collector.make_room)

    def read(self, tenant: str, ids: Sequence[bytes]) -> list[ChunkFrame]:
        """In order, verified, still compressed. Raises E1102, E1101, and E0204 for too many at a time."""
        with self._call():
            return self._chunks.read(tenant, ids)

    # Trees

    def tree(self, tenant: str, digest: str) -> StoredTree:
        """Raises E1102 if its root or manifest is not here, E1105 if it is no tree, E1101 if it is damaged."""
        with self._call():
            return self._trees.tree(tenant, digest)

    def ids_of(self, tenant: str, digest: str) -> frozenset[bytes]:
        """Every chunk of the tree. Raises as `tree` does."""
        with self._call():
            return self._trees.ids_of(tenant, digest)

    def outside(self, tenant: str, digest: str, ids: Sequence[bytes]) -> set[bytes]:
        """Which of these chunks are no part of the tree. Raises as `tree` does, unless somebody holds it."""
        with self._call():
            return self._trees.outside(tenant, digest, ids)

    def hold(self, tenant: str, digest: str, holder: str, *, until: datetime | None = None) -> StoredTree:
        """The tree stays until the holder releases it, holds another one, or `until`.

        Raises E1104 with `missing` in its meta, names of chunks that are not here or damaged, and E1105.
        """
        with self._call():
            return self._trees.hold(tenant, digest, holder, until)

    def release(self, tenant: str, holder: str) -> None:
        """A holder that holds nothing is no error."""
        with self._call():
            self._on_full_disk(partial(self._trees.release, tenant, holder))

    def held(self, tenant: str, holder: str) -> str | None:
        """The digest of the tree that it holds."""
        with self._call():
            return self._trees.held(tenant, holder)

    def holders(self) -> list[Hold]:
        with self._call():
            return self._trees.holders()

    @property
    def has_lost_holders(self) -> bool:
        """Whether the index was lost. Nothing is collected until `confirm_holders`."""
        with self._call():
            return self._collector.is_paused()

    def confirm_holders(self) -> None:
        """Whoever needs a tree holds it again: collections may go on."""
        with self._call():
            self._index.write(partial(drop_note, name=HOLDERS_LOST))

    # Tenants

    def usage(self) -> list[TenantUsage]:
        with self._call():
            return self._tenants.usage()

    def set_quota(self, tenant: str, bytes_max: int | None) -> None:
        """Of what is stored, compressed. None: no limit, whatever the settings say."""
        with self._call():
            self._tenants.set_quota(tenant, bytes_max)

    def forget_tenant(self, tenant: str) -> None:
        """Nobody can read its chunks from now on; the next collection removes them."""
        with self._call():
            self._tenants.forget(tenant)
            self._trees.forget_cached()

    # Care

    def collect(self, *, grace_s: float | None = None) -> Collected:
        """Ends holds whose time is up, removes chunks that nobody holds or has seen lately, and rewrites packs."""
        with self._call():
            return self._on_full_disk(partial(self._collector.collect, grace_s, self._closing))

    def scrub(self, tenant: str, names: Iterable[bytes]) -> Collected:
        """Takes those of these chunks off the disk, now, that no tree of the tenant needs."""
        with self._call():
            owner = self._tenants.find(tenant)
            if owner is None:
                return Collected(chunks=0, bytes=0)
            return self._on_full_disk(partial(self._collector.scrub, owner, list(names), self._closing))

    def check(self, *, stop: threading.Event | None = None) -> ContentCheck:
        """Reads and verifies everything, and counts references anew. `stop` ends it early."""
        with self._call():
            return self._checker.check(lambda: self._closing.is_set() or (stop is not None and stop.is_set()))

    def totals(self) -> StoreTotals:
        with self._call():
            ((stored, live),) = self._index.query(
                "SELECT COALESCE(SUM(bytes), 0), COALESCE(SUM(bytes_live), 0) FROM packs"
            )
            ((unreferenced,),) = self._index.query(
                "SELECT COALESCE(SUM(bytes), 0) FROM unreferenced JOIN chunks ON chunk = chunks.key"
            )
            return StoreTotals(stored, stored - live + unreferenced)

    def bytes_free(self) -> int | None:
        """None: not known."""
        with self._call():
            return self._storage.bytes_free()

    def _on_full_disk(self, call: Callable[[], Result]) -> Result:
        """For what makes room, but has to write down first what may go."""
        try:
            return call()
        except HarchError as error:
            if error.code != "E1002":
                raise
            self._reserve.give_up()
            return call()
        finally:
            self._reserve.fill()

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._calls_ended:
            if self._closing.is_set():
                raise HarchError("E1110", "the content store is closed", retry_after_s=5)
            self._calls += 1
        try:
            yield
        finally:
            with self._calls_ended:
                self._calls -= 1
                self._calls_ended.notify_all()


def _storage(folder: Path, settings: StoreSettings) -> PackStorage:
    if not settings.location:
        return FolderStorage(folder)
    from harch.content.store.bucket import BucketStorage

    return BucketStorage(settings)


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise storage_error(error, str(folder)) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise HarchError("E1110", f"another process has the content store in {folder} open") from error
    return file
