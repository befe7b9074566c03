"""Which chunks are missing, how are new ones stored, and how are they read? Each call is a few queries and one pack.

A call of `put` verifies its chunks, seals those that are new into packs, and then commits where they are; it returns
when all of that is on disk. What it found stored already must not be collected before that commit, so `put` pins the
names first: a collection leaves pinned chunks alone, and a chunk that it is removing in this moment counts as missing.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from zstandard import ZstdDecompressor

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.content.frames import BATCH_CHUNKS_MAX, ChunkFrame, decompressor, unpack_chunk
from harch.content.model import CHUNK_BYTES_MAX, DIGEST_BYTES
from harch.content.store.index import ChunkRow, Index, find_chunks, places, slices
from harch.content.store.records import (
    OVERHEAD_BYTES,
    PACK_ID_BYTES,
    SALT_BYTES,
    DamagedRecord,
    PackDraft,
)
from harch.content.store.rows import Stored, WrittenPack, by_pack, insert_pack
from harch.content.store.settings import IDS_MAX, MISSING_LISTED_MAX, READ_BYTES_MAX, SEEN_SHARE, StoreSettings
from harch.content.store.storage import PackGone, PackStorage
from harch.content.store.tenants import Tenant, Tenants
from harch.wire.content import ChunksStored

READ_ATTEMPTS_MAX = 4  # of a record that a collection moves meanwhile

_log = logging.getLogger("harch.damage")


class Pins:
    """Names that a `put` relies on, and names that a collection is removing. A name is never both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pinned: Counter[tuple[int, bytes]] = Counter()
        self._condemned: set[tuple[int, bytes]] = set()

    @contextmanager
    def pin(self, tenant: int, ids: Sequence[bytes]) -> Iterator[set[bytes]]:
        """Which of these are being removed now: nobody may rely on them."""
        names = [(tenant, chunk) for chunk in ids]
        with self._lock:
            self._pinned.update(names)
            condemned = {chunk for _, chunk in self._condemned.intersection(names)} if self._condemned else set()
        try:
            yield condemned
        finally:
            with self._lock:
                self._pinned.subtract(names)
                for name in names:
                    if not self._pinned[name]:
                        del self._pinned[name]

    def condemn(self, names: Iterable[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        """Those that nobody has pinned; from now on nobody relies on them, until `acquit`."""
        with self._lock:
            free = {name for name in names if name not in self._pinned}
            self._condemned |= free
            return free

    def pinned(self, names: Iterable[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        with self._lock:
            return {name for name in names if name in self._pinned}

    def acquit(self, names: set[tuple[int, bytes]]) -> None:
        with self._lock:
            self._condemned -= names


class Chunks:
    """Thread-safe."""

    def __init__(
        self, index: Index, storage: PackStorage, tenants: Tenants, pins: Pins, settings: StoreSettings, clock: Clock
    ) -> None:
        self._index, self._storage, self._tenants, self._pins = index, storage, tenants, pins
        self._settings, self._clock = settings, clock

    # What is missing?

    def missing(self, tenant: str, ids: Sequence[bytes]) -> list[bytes]:
        """In the order of the question, each once. The others stay for the grace period, whoever holds them or not."""
        names = _checked_ids(ids, IDS_MAX)
        known = self._tenants.find(tenant)
        if known is None:
            return names
        with self._index.reading() as connection:
            found = find_chunks(connection, known.row, names)
        # Whoever asks relies on the answer. What a collection is removing in this moment, the write finds gone.
        if stale := self._stale([row.key for row in found.values() if not row.is_damaged]):
            gone = self._index.write(lambda connection: self._note_seen(connection, stale))
            found = {name: row for name, row in found.items() if row.key not in gone}
        return [name for name in names if name not in found or found[name].is_damaged]

    def _stale(self, keys: Sequence[int]) -> list[int]:
        """Those that nobody holds, and that were not seen lately."""
        fresh: set[int] = set()
        with self._index.reading() as connection:
            for some in slices(keys):
                rows = connection.execute(
                    "SELECT key FROM chunks LEFT JOIN unreferenced ON chunk = key"  # noqa: S608
                    f" WHERE key IN ({places(some)})"
                    " AND (seen_ms IS NULL OR (seen_ms >= ? AND is_released = 0))",
                    (*some, self._fresh_ms()),
                )
                fresh.update(key for (key,) in rows)
        return [key for key in keys if key not in fresh]

    def _note_seen(self, connection: sqlite3.Connection, keys: Sequence[int]) -> set[int]:
        """Returns those that are gone."""
        there: set[int] = set()
        for some in slices(keys):
            connection.execute(
                f"UPDATE unreferenced SET seen_ms = ?, is_released = 0 WHERE chunk IN ({places(some)})"  # noqa: S608
                " AND (seen_ms < ? OR is_released = 1)",
                (self._now_ms(), *some, self._fresh_ms()),
            )
            rows = connection.execute(f"SELECT key FROM chunks WHERE key IN ({places(some)})", some)  # noqa: S608
            there.update(key for (key,) in rows)
        return set(keys) - there

    # Storing

    def put(self, tenant: str, frames: Iterable[ChunkFrame], make_room: Callable[[int], None]) -> ChunksStored:
        """All of them, or none: E1101 for a chunk that is not what its name says, E1103 beyond the quota.

        `make_room`: is called once with the row of a tenant whose quota is used up.
        """
        owner = self._tenants.find_or_make(tenant)
        packs: list[WrittenPack] = []
        names: set[bytes] = set()
        known: set[bytes] = set()
        try:
            with ExitStack() as pins:
                for batch in _batches(frames, self._settings.pack_bytes):
                    check_frames(batch)
                    unique = list({frame.id: frame for frame in batch if frame.id not in names}.values())
                    names.update(frame.id for frame in unique)
                    if len(names) > IDS_MAX:
                        raise too_many(f"more than {IDS_MAX} chunks")
                    condemned = pins.enter_context(self._pins.pin(owner.row, [frame.id for frame in unique]))
                    with self._index.reading() as connection:
                        found = find_chunks(connection, owner.row, [frame.id for frame in unique])
                    there = {name for name, row in found.items() if not row.is_damaged} - condemned
                    known |= there
                    if absent := [frame for frame in unique if frame.id not in there]:
                        new = [frame for frame in absent if frame.id not in found]
                        self._require_room(owner, new, packs, make_room)
                        packs.append(self._write_pack(owner, absent))
                if packs:
                    self._storage.sync()
                stored = self._index.write(lambda connection: self._insert(connection, owner.row, packs, known))
        except BaseException:
            self._storage.delete(pack.name for pack in packs)
            raise
        return ChunksStored(stored=stored.chunks, known=len(names) - stored.chunks, bytes=stored.bytes)

    def _require_room(
        self, owner: Tenant, frames: list[ChunkFrame], packs: list[WrittenPack], make_room: Callable[[int], None]
    ) -> None:
        """Before anything is written; the commit looks again."""
        more = sum(len(frame.payload) + OVERHEAD_BYTES for frame in frames)
        more += sum(pack.bytes for pack in packs)
        if self._tenants.has_room(owner.row, more):
            return
        make_room(owner.row)
        with self._index.reading() as connection:
            self._tenants.check_quota(connection, owner.row, more)

    def _write_pack(self, owner: Tenant, frames: list[ChunkFrame]) -> WrittenPack:
        salt = os.urandom(SALT_BYTES)
        draft = PackDraft(os.urandom(PACK_ID_BYTES), owner.key.id)
        for number, frame in enumerate(frames):
            draft.add(*owner.key.seal(frame, salt, number))
        return write_pack(self._storage, draft)

    def _insert(
        self, connection: sqlite3.Connection, tenant: int, packs: list[WrittenPack], known: set[bytes]
    ) -> Stored:
        stored = [insert_pack(connection, tenant, pack, self._now_ms()) for pack in packs]
        total = Stored(sum(one.chunks for one in stored), sum(one.bytes for one in stored))
        self._tenants.check_quota(connection, tenant, total.bytes, is_counted=True)
        rows = [row for row in find_chunks(connection, tenant, list(known)).values() if not row.is_damaged]
        self._note_seen(connection, [row.key for row in rows])
        if len(rows) < len(known):
            raise HarchError("E1110", "chunks were found damaged while they were sent", hint="send them again")
        return total

    # Reading

    def read(self, tenant: str, ids: Sequence[bytes]) -> list[ChunkFrame]:
        """In order, each verified. Raises E1102 for what is not there, E1101 for what is damaged."""
        return [frame for frame, _ in self.read_raw(tenant, ids)]

    def read_raw(self, tenant: str, ids: Sequence[bytes]) -> list[tuple[ChunkFrame, bytes]]:
        """With the raw bytes of each."""
        names = _checked_ids(ids, BATCH_CHUNKS_MAX)
        owner = self._tenants.find(tenant)
        if owner is None:
            raise absent_chunks(names)
        done: dict[bytes, tuple[ChunkFrame, bytes]] = {}
        damaged: list[ChunkRow] = []
        left, unpacker = names, decompressor()
        for attempt in range(READ_ATTEMPTS_MAX):
            with self._index.reading() as connection:
                found = find_chunks(connection, owner.row, left)
            if gone := [name for name in left if name not in found]:
                raise absent_chunks(gone)
            if attempt == 0 and sum(row.bytes for row in found.values()) > READ_BYTES_MAX:
                raise too_many(f"more than {READ_BYTES_MAX} bytes")
            left = []
            for pack, rows in by_pack(found.values()).items():
                try:
                    records = self._read_records(pack, rows)
                except PackGone:
                    left += [row.id for row in rows]  # moved, or lost: the index says which
                    continue
                for row, record in zip(rows, records, strict=True):
                    try:
                        done[row.id] = open_record(owner, record, row, by=unpacker)
                    except DamagedRecord:
                        damaged.append(row)
            if not left:
                break
        damaged += [row for row in found.values() if row.id in left]
        if damaged:
            self.mark_damaged(damaged)
            raise damaged_chunks(damaged)
        return [done[name] for name in ids]

    def _read_records(self, pack: int, rows: Sequence[ChunkRow]) -> list[bytes]:
        """Raises PackGone."""
        place = self._index.query("SELECT name FROM packs WHERE key = ?", (pack,))
        if not place:
            raise PackGone(str(pack))
        return self._storage.read(str(place[0][0]), [(row.at, row.at + row.bytes) for row in rows])

    def mark_damaged(self, rows: Sequence[ChunkRow]) -> None:
        """`missing` asks for them again, and a `put` replaces them. Whatever was moved or replaced is left alone."""

        def change(connection: sqlite3.Connection) -> list[ChunkRow]:
            sql = "UPDATE chunks SET is_damaged = 1 WHERE key = ? AND pack = ? AND at = ? AND is_damaged = 0"
            return [row for row in rows if connection.execute(sql, (row.key, row.pack, row.at)).rowcount]

        for row in self._index.write(change):
            _log.error("E1101: chunk %s is damaged in the content store", row.id.hex())

    def _now_ms(self) -> int:
        return int(1000 * self._clock.now().timestamp())

    def _fresh_ms(self) -> int:
        """What was seen since then need not be noted again."""
        return self._now_ms() - int(1000 * self._settings.grace_s / SEEN_SHARE)


def write_pack(storage: PackStorage, draft: PackDraft) -> WrittenPack:
    """Durable once the storage is synced."""
    draft.finish()
    name = os.urandom(PACK_ID_BYTES).hex()
    storage.write(name, draft.pieces)
    return WrittenPack(name, draft.records)


def open_record(
    owner: Tenant, record: bytes | memoryview, row: ChunkRow, *, by: ZstdDecompressor | None = None
) -> tuple[ChunkFrame, bytes]:
    """The chunk, compressed and raw. Raises DamagedRecord."""
    frame = owner.key.open(memoryview(record), row.id)
    try:
        raw = unpack_chunk(frame, by=by)
    except HarchError as error:
        raise DamagedRecord(error.message) from error
    if frame.size != row.size:
        raise DamagedRecord("the index knows another size")
    return frame, raw


def _batches(frames: Iterable[ChunkFrame], bytes_max: int) -> Iterator[list[ChunkFrame]]:
    """What goes into one pack each."""
    batch: list[ChunkFrame] = []
    size = 0
    for frame in frames:
        if batch and (size + len(frame.payload) > bytes_max or len(batch) >= BATCH_CHUNKS_MAX):
            yield batch
            batch, size = [], 0
        batch.append(frame)
        size += len(frame.payload)
    if batch:
        yield batch


def check_frames(frames: Iterable[ChunkFrame]) -> None:
    """Raises E1101 for the first that is not what its name says."""
    unpacker = decompressor()
    for frame in frames:
        if not 0 < frame.size <= CHUNK_BYTES_MAX or not 0 < len(frame.payload) <= CHUNK_BYTES_MAX:
            raise HarchError("E1101", "a chunk is empty, or larger than chunks may be", hint="send it again")
        unpack_chunk(frame, by=unpacker)


def _checked_ids(ids: Sequence[bytes], most: int) -> list[bytes]:
    """Each once, in order."""
    if len(ids) > most:
        raise too_many(f"more than {most} chunks")
    if any(len(name) != DIGEST_BYTES for name in ids):
        raise HarchError("E1101", f"names of chunks have {DIGEST_BYTES} bytes each", hint="send names of chunks")
    return list(dict.fromkeys(ids))


def too_many(what: str) -> HarchError:
    return HarchError("E0204", f"one request is about {what}", hint="ask for fewer at a time")


def absent_chunks(names: Sequence[bytes]) -> HarchError:
    return HarchError(
        "E1102",
        f"{len(names)} chunks are not at this hub, the first is {names[0].hex()[:16]}",
        meta={"missing": [name.hex() for name in names[:MISSING_LISTED_MAX]]},
    )


def damaged_chunks(rows: Sequence[ChunkRow]) -> HarchError:
    return HarchError(
        "E1101",
        f"{len(rows)} chunks are damaged in the content store, the first is {rows[0].id.hex()[:16]}",
        hint="whoever sends them again heals them; `harch content check` lists all",
        meta={"damaged": [row.id.hex() for row in rows[:MISSING_LISTED_MAX]]},
    )
