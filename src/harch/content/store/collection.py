"""What may go? Chunks that no tree needs and nobody has seen lately; then packs that hold little else.

A chunk leaves the index first, in small transactions that look again whether it is still not needed; what a `put`
relies on in that moment stays. Packs that are mostly garbage, or small, are copied together into a new one, which is on
disk before the index says so; only then the old ones are deleted, and only then forgotten. So a kill leaves at most a
pack that the index does not know, found at the next start, or one that it knows and needs no more.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Sequence
from functools import partial

from harch.base.clock import Clock
from harch.content.frames import decompressor
from harch.content.store.chunks import Chunks, Pins, open_record, write_pack
from harch.content.store.index import CHUNK_COLUMNS, HOLDERS_LOST, ChunkRow, Index, chunk_rows, note
from harch.content.store.records import HEAD_BYTES, PACK_ID_BYTES, DamagedRecord, PackDraft, read_head
from harch.content.store.rows import delete_chunks, move_chunks
from harch.content.store.settings import COLLECT_PACKS_MAX, MERGED_PACKS_MIN, SEEN_SHARE, StoreSettings
from harch.content.store.storage import PackGone, PackStorage
from harch.content.store.tenants import Tenant, Tenants
from harch.content.store.trees import Trees
from harch.wire.content import Collected

_ROWS_PER_CHANGE = 1000
_NAMES_PER_CHANGE = 500
_SMALL_SHARE = 4  # a pack of less than a quarter of a full one is small

_log = logging.getLogger("harch.content")


class Collector:
    """One collection at a time; reads and writes go on beside it."""

    def __init__(
        self,
        index: Index,
        storage: PackStorage,
        tenants: Tenants,
        chunks: Chunks,
        trees: Trees,
        pins: Pins,
        settings: StoreSettings,
        clock: Clock,
    ) -> None:
        self._index, self._storage, self._tenants, self._chunks = index, storage, tenants, chunks
        self._trees, self._pins, self._settings, self._clock = trees, pins, settings, clock
        self._collecting = threading.Lock()

    def collect(self, grace_s: float | None, stop: threading.Event) -> Collected:
        """`stop` ends it early; what it has removed until then stays removed."""
        with self._collecting:
            self._trees.release_expired()
            count = size = 0
            if self.is_paused():
                _log.error("content that nobody holds is kept: the index was lost, and with it who holds what")
            else:
                usual = self._settings.grace_s * (1 + 1 / SEEN_SHARE)
                grace = usual if grace_s is None else max(grace_s, 0.0)
                now_ms = int(1000 * self._clock.now().timestamp())
                self._forgive_clock(now_ms)
                count, size = self._remove("seen_ms <= ?", (now_ms - int(1000 * grace),))
            for tenant in self._tenants.forgotten():
                if stop.is_set():
                    break
                more, more_bytes = self._remove_tenant(tenant)
                count, size = count + more, size + more_bytes
            self._delete_empty_packs()
            self._rewrite_packs(stop)
            return Collected(chunks=count, bytes=size)

    def is_paused(self) -> bool:
        with self._index.reading() as connection:
            return bool(note(connection, HOLDERS_LOST))

    def make_room(self, tenant: int) -> None:
        """What a tenant has given up goes without grace when its quota is used up."""
        if not self.is_paused():
            self._remove("is_released = 1 AND tenant = ?", (tenant,))

    def scrub(self, owner: Tenant, names: Sequence[bytes], stop: threading.Event) -> Collected:
        """Those of these chunks that no tree needs go without grace, whoever has asked for them lately; and every pack
        that has any of them is written anew. What a `put` is storing in this moment stays: somebody brings it again."""
        with self._collecting:
            count = size = 0
            packs: dict[int, str] = {}
            if self.is_paused():
                return Collected(chunks=0, bytes=0)
            for start in range(0, len(names), _NAMES_PER_CHANGE):
                some = names[start : start + _NAMES_PER_CHANGE]
                condition = f"tenant = ? AND id IN ({', '.join('?' * len(some))})"
                found = self._index.query(
                    "SELECT packs.key, packs.name FROM unreferenced JOIN chunks ON chunk = chunks.key"  # noqa: S608
                    f" JOIN packs ON pack = packs.key WHERE chunks.{condition}",
                    (owner.row, *some),
                )
                packs |= dict(found)
                more, more_bytes = self._remove(condition, (owner.row, *some))
                count, size = count + more, size + more_bytes
            self._delete_empty_packs()
            left = {key for (key,) in self._index.query("SELECT key FROM packs")}
            self._rewrite(owner, [(key, name) for key, name in packs.items() if key in left], stop)
            self._delete_empty_packs()
            return Collected(chunks=count, bytes=size)

    def _forgive_clock(self, now_ms: int) -> None:
        """A clock that was ahead must not keep chunks until it is that late again."""
        if self._index.query("SELECT 1 FROM unreferenced WHERE seen_ms > ? LIMIT 1", (now_ms,)):
            self._index.write(
                lambda connection: connection.execute(
                    "UPDATE unreferenced SET seen_ms = ? WHERE seen_ms > ?", (now_ms, now_ms)
                )
            )

    # Chunks

    def _remove(self, condition: str, parameters: tuple[int | bytes, ...]) -> tuple[int, int]:
        """Unreferenced chunks for which it is true. How many, and their bytes."""
        count = size = last = 0
        while True:
            found = self._index.query(
                "SELECT chunks.key, tenant, id FROM unreferenced JOIN chunks ON chunk = chunks.key"  # noqa: S608
                f" WHERE chunk > ? AND {condition} ORDER BY chunk LIMIT {_ROWS_PER_CHANGE}",
                (last, *parameters),
            )
            if not found:
                return count, size
            last = found[-1][0]
            names = self._pins.condemn((tenant, name) for _, tenant, name in found)
            try:
                keys = [key for key, tenant, name in found if (tenant, name) in names]
                change = partial(self._remove_some, keys=keys, condition=condition, parameters=parameters)
                removed = self._index.write(change)
            finally:
                self._pins.acquit(names)
            if removed:
                self._trees.forget_cached()
            count, size = count + len(removed), size + sum(row.bytes for row in removed)

    def _remove_some(
        self,
        connection: sqlite3.Connection,
        *,
        keys: Sequence[int],
        condition: str,
        parameters: tuple[int | bytes, ...],
    ) -> list[ChunkRow]:
        by_tenant: dict[int, list[ChunkRow]] = {}
        for key in keys:
            found = connection.execute(
                f"SELECT {CHUNK_COLUMNS}, tenant FROM unreferenced JOIN chunks ON chunk = chunks.key"  # noqa: S608
                f" WHERE chunk = ? AND {condition}",
                (key, *parameters),
            ).fetchone()
            if found is not None:
                by_tenant.setdefault(found[-1], []).append(ChunkRow(*found[:-1]))
        removed = []
        for tenant, rows in by_tenant.items():
            pinned = self._pins.pinned((tenant, row.id) for row in rows)
            free = [row for row in rows if (tenant, row.id) not in pinned]
            delete_chunks(connection, tenant, free)
            removed += free
        return removed

    def _remove_tenant(self, tenant: int) -> tuple[int, int]:
        """Of a forgotten one everything goes; nobody could read it any more."""
        count = size = 0
        while rows := self._rows(f"tenant = ? LIMIT {_ROWS_PER_CHANGE}", (tenant,)):
            self._index.write(partial(delete_chunks, tenant=tenant, rows=rows))
            self._trees.forget_cached()
            count, size = count + len(rows), size + sum(row.bytes for row in rows)
        self._delete_empty_packs()
        self._tenants.drop(tenant)
        return count, size

    # Packs

    def _delete_empty_packs(self) -> None:
        while packs := self._index.query(
            "SELECT key, name FROM packs WHERE chunks_live = 0 LIMIT ?", (_ROWS_PER_CHANGE,)
        ):
            self._storage.delete(name for _, name in packs)
            self._index.write(partial(_forget_packs, packs=[(key,) for key, _ in packs]))

    def _rewrite_packs(self, stop: threading.Event) -> None:
        by_tenant: dict[int, list[tuple[int, str]]] = {}
        for tenant, pack, name in self._packs_to_rewrite():
            by_tenant.setdefault(tenant, []).append((pack, name))
        for row, packs in by_tenant.items():
            owner = self._tenants.by_row(row)
            if owner is not None:
                self._rewrite(owner, packs, stop)
        self._delete_empty_packs()

    def _packs_to_rewrite(self) -> list[tuple[int, int, str]]:
        """Those with damaged chunks stay as they are until somebody has sent these again."""
        small = self._settings.pack_bytes // _SMALL_SHARE
        return self._index.query(
            "WITH sound AS (SELECT * FROM packs WHERE chunks_live > 0"
            " AND key NOT IN (SELECT pack FROM chunks WHERE chunks.is_damaged = 1))"
            " SELECT tenant, key, name FROM sound WHERE 2 * bytes_live < bytes OR is_damaged = 1"
            " OR bytes_live < ? AND tenant IN"
            " (SELECT tenant FROM sound WHERE bytes_live < ? GROUP BY tenant HAVING COUNT(*) >= ?)"
            " ORDER BY tenant, key LIMIT ?",
            (small, small, MERGED_PACKS_MIN, COLLECT_PACKS_MAX),
        )

    def _rewrite(self, owner: Tenant, packs: Sequence[tuple[int, str]], stop: threading.Event) -> None:
        draft, moving = self._new_draft(owner), list[ChunkRow]()
        for pack, name in packs:
            if stop.is_set():
                return
            for row, record in self._sound_records(owner, pack, name):
                draft.add(read_head(record), record[:HEAD_BYTES], record[HEAD_BYTES:])
                moving.append(row)
                if draft.bytes >= self._settings.pack_bytes:
                    self._move(owner, draft, moving)
                    draft, moving = self._new_draft(owner), []
        if moving:
            self._move(owner, draft, moving)

    def _new_draft(self, owner: Tenant) -> PackDraft:
        return PackDraft(os.urandom(PACK_ID_BYTES), owner.key.id)

    def _sound_records(self, owner: Tenant, pack: int, name: str) -> list[tuple[ChunkRow, bytes]]:
        """All that is needed of a pack, or nothing if some of that is damaged."""
        rows = self._rows("pack = ? AND is_damaged = 0 ORDER BY at", (pack,))
        try:
            records = self._storage.read(name, [(row.at, row.at + row.bytes) for row in rows])
        except PackGone:
            records = [b""] * len(rows)
        damaged, unpacker = list[ChunkRow](), decompressor()
        for row, record in zip(rows, records, strict=True):
            try:
                open_record(owner, record, row, by=unpacker)
            except DamagedRecord:
                damaged.append(row)
        if damaged:
            self._chunks.mark_damaged(damaged)
            return []
        return list(zip(rows, records, strict=True))

    def _move(self, owner: Tenant, draft: PackDraft, rows: Sequence[ChunkRow]) -> None:
        written = write_pack(self._storage, draft)
        try:
            self._storage.sync()
            self._index.write(lambda connection: move_chunks(connection, owner.row, written, rows))
        except BaseException:
            self._storage.delete([written.name])
            raise

    def _rows(self, condition: str, parameters: tuple[int | bytes, ...]) -> list[ChunkRow]:
        with self._index.reading() as connection:
            return chunk_rows(
                connection.execute(f"SELECT {CHUNK_COLUMNS} FROM chunks WHERE {condition}", parameters)  # noqa: S608
            )


def _forget_packs(connection: sqlite3.Connection, *, packs: Sequence[tuple[int]]) -> None:
    connection.executemany("DELETE FROM packs WHERE key = ? AND chunks_live = 0", packs)
