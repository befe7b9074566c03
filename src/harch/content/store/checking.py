"""Is everything there that should be? Every record is read and opened, every count compared with what it counts.

Chunks that are damaged are marked, so that `missing` asks for them; counts that are wrong are put right. Both are
logged.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from functools import partial

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.content.frames import decompressor
from harch.content.store.chunks import Chunks, open_record
from harch.content.store.index import CHUNK_COLUMNS, ChunkRow, Index, chunk_rows, find_chunks
from harch.content.store.records import DamagedRecord, read_by_footer
from harch.content.store.storage import PackGone, PackStorage
from harch.content.store.tenants import Tenants
from harch.content.store.trees import Trees
from harch.wire.content import ContentCheck

LISTED_MAX = 10_000  # names in an answer

_log = logging.getLogger("harch.damage")

_WRONG_PACKS = (
    "SELECT packs.key FROM packs"
    " LEFT JOIN (SELECT pack, COUNT(*) AS many, SUM(bytes) AS size FROM chunks GROUP BY pack) ON pack = packs.key"
    " WHERE chunks_live <> COALESCE(many, 0) OR bytes_live <> COALESCE(size, 0)"
)
_WRONG_TENANTS = (
    "SELECT tenants.key FROM tenants LEFT JOIN (SELECT tenant, COUNT(*) AS many, SUM(size) AS raw, SUM(bytes) AS stored"
    " FROM chunks GROUP BY tenant) ON tenant = tenants.key WHERE chunks <> COALESCE(many, 0)"
    " OR bytes_raw <> COALESCE(raw, 0) OR bytes_stored <> COALESCE(stored, 0)"
)
_NEITHER = (  # neither needed nor unreferenced: nobody would ever remove it
    "SELECT key FROM chunks WHERE NOT EXISTS (SELECT 1 FROM tree_chunks WHERE chunk = key)"
    " AND NOT EXISTS (SELECT 1 FROM unreferenced WHERE chunk = key)"
)
_BOTH = "SELECT chunk FROM unreferenced AS one WHERE EXISTS (SELECT 1 FROM tree_chunks WHERE chunk = one.chunk)"
_GONE = "SELECT chunk FROM unreferenced WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE key = chunk)"


class Checker:
    """Reads the whole store; reads and writes go on beside it."""

    def __init__(
        self, index: Index, storage: PackStorage, tenants: Tenants, chunks: Chunks, trees: Trees, clock: Clock
    ) -> None:
        self._index, self._storage, self._tenants, self._chunks = index, storage, tenants, chunks
        self._trees, self._clock = trees, clock

    def check(self, is_stopped: Callable[[], bool]) -> ContentCheck:
        """It ends early when that becomes true, with what was found until then."""
        count = size = 0
        last = 0
        while packs := self._index.query(
            "SELECT key, tenant, name FROM packs WHERE key > ? ORDER BY key LIMIT 100", (last,)
        ):
            for pack, tenant, name in packs:
                if is_stopped():
                    return self._found(count, size, set())
                more, more_bytes = self._check_pack(pack, tenant, name)
                count, size, last = count + more, size + more_bytes, pack
        missing = self._check_trees(is_stopped)
        self._check_counts()
        return self._found(count, size, missing)

    def _found(self, count: int, size: int, missing: set[bytes]) -> ContentCheck:
        rows = self._index.query("SELECT id FROM chunks WHERE is_damaged = 1 LIMIT ?", (LISTED_MAX,))
        return ContentCheck(
            chunks=count,
            bytes=size,
            damaged=sorted({name.hex() for (name,) in rows}),
            missing=sorted(name.hex() for name in missing)[:LISTED_MAX],
        )

    # Packs

    def _check_pack(self, pack: int, tenant: int, name: str) -> tuple[int, int]:
        owner = self._tenants.by_row(tenant)
        if owner is None:
            return 0, 0
        rows = self._rows(pack)
        try:
            data = self._storage.read_whole(name)
        except PackGone:
            self._chunks.mark_damaged(rows)  # unless a collection has moved them
            return len(rows), 0
        damaged, size, unpacker = list[ChunkRow](), 0, decompressor()
        for row in rows:
            try:
                size += len(open_record(owner, memoryview(data)[row.at : row.at + row.bytes], row, by=unpacker)[1])
            except DamagedRecord:
                damaged.append(row)
        if damaged:
            self._chunks.mark_damaged([row for row in damaged if not row.is_damaged])
        else:
            self._check_frame(pack, name, data)
        return len(rows), size

    def _check_frame(self, pack: int, name: str, data: bytes) -> None:
        """What an index would be rebuilt from. A pack without it is written anew by the next collection."""
        try:
            read_by_footer(data, data, len(data))
        except DamagedRecord as damage:
            _log.error("E1101: pack %s of the content store is damaged, its chunks are not: %s", name, damage)
            self._index.write(
                lambda connection: connection.execute("UPDATE packs SET is_damaged = 1 WHERE key = ?", (pack,))
            )

    def _rows(self, pack: int) -> list[ChunkRow]:
        with self._index.reading() as connection:
            return chunk_rows(
                connection.execute(f"SELECT {CHUNK_COLUMNS} FROM chunks WHERE pack = ? ORDER BY at", (pack,))  # noqa: S608
            )

    # References

    def _check_trees(self, is_stopped: Callable[[], bool]) -> set[bytes]:
        """Chunks that trees name and nobody has. What a tree needs according to its manifest is counted again."""
        missing: set[bytes] = set()
        for tree, tenant, digest in self._index.query("SELECT key, tenant, digest FROM trees ORDER BY key"):
            owner = self._tenants.by_row(tenant)
            if owner is None or is_stopped():
                continue
            try:
                names = list(self._trees.ids_of(owner.name, digest))
            except HarchError as error:
                _log.error("%s: the tree %s of tenant %s cannot be read: %s", error.code, digest, owner.name, error)
                absent = error.meta.get("missing")
                if isinstance(absent, list):
                    missing.update(bytes.fromhex(name) for name in absent)
                continue
            with self._index.reading() as connection:
                found = find_chunks(connection, tenant, names)
            if not self._index.query("SELECT 1 FROM trees WHERE key = ?", (tree,)):
                continue  # released meanwhile, so that its chunks may be gone
            missing.update(name for name in names if name not in found)
            needed = {row.key for row in found.values()}
            counted = {key for (key,) in self._index.query("SELECT chunk FROM tree_chunks WHERE tree = ?", (tree,))}
            if needed != counted:
                wrong = self._index.write(partial(_recount_tree, tree=tree, needed=needed))
                if wrong:
                    _log.error("E1101: the chunks of tree %s were counted wrong; %d are put right", digest, wrong)
        return missing

    def _check_counts(self) -> None:
        for what, sql, change in (
            ("packs", _WRONG_PACKS, _recount_packs),
            ("tenants", _WRONG_TENANTS, _recount_tenants),
        ):
            if self._index.query(f"{sql} LIMIT 1") and (wrong := self._index.write(change)):
                _log.error("E1101: counts of %d %s of the content store were wrong; they are put right", wrong, what)
        if any(self._index.query(f"{sql} LIMIT 1") for sql in (_NEITHER, _BOTH, _GONE)):
            now_ms = int(1000 * self._clock.now().timestamp())
            if wrong := self._index.write(partial(_recount_unreferenced, now_ms=now_ms)):
                _log.error("E1101: %d chunks of the content store were counted wrong; they are put right", wrong)


def _recount_tree(connection: sqlite3.Connection, *, tree: int, needed: set[int]) -> int:
    if connection.execute("SELECT 1 FROM trees WHERE key = ?", (tree,)).fetchone() is None:
        return 0  # released meanwhile
    counted = {key for (key,) in connection.execute("SELECT chunk FROM tree_chunks WHERE tree = ?", (tree,))}
    connection.executemany("DELETE FROM tree_chunks WHERE tree = ? AND chunk = ?", _pairs(tree, counted - needed))
    connection.executemany("INSERT INTO tree_chunks VALUES (?, ?)", _pairs(tree, needed - counted))
    return len(counted ^ needed)


def _pairs(tree: int, keys: set[int]) -> list[tuple[int, int]]:
    return [(tree, key) for key in sorted(keys)]


def _recount_packs(connection: sqlite3.Connection) -> int:
    wrong = connection.execute(_WRONG_PACKS).fetchall()
    connection.executemany(
        "UPDATE packs SET (chunks_live, bytes_live) ="
        " (SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM chunks WHERE pack = packs.key) WHERE key = ?",
        wrong,
    )
    return len(wrong)


def _recount_tenants(connection: sqlite3.Connection) -> int:
    wrong = connection.execute(_WRONG_TENANTS).fetchall()
    connection.executemany(
        "UPDATE tenants SET (chunks, bytes_raw, bytes_stored) = (SELECT COUNT(*), COALESCE(SUM(size), 0),"
        " COALESCE(SUM(bytes), 0) FROM chunks WHERE tenant = tenants.key) WHERE key = ?",
        wrong,
    )
    return len(wrong)


def _recount_unreferenced(connection: sqlite3.Connection, *, now_ms: int) -> int:
    gone = connection.execute(f"DELETE FROM unreferenced WHERE chunk IN ({_GONE})").rowcount  # noqa: S608
    both = connection.execute(f"DELETE FROM unreferenced WHERE chunk IN ({_BOTH})").rowcount  # noqa: S608
    neither = connection.execute(f"INSERT INTO unreferenced SELECT key, {now_ms}, 0 FROM ({_NEITHER})").rowcount  # noqa: S608
    return gone + both + neither
