"""How do packs and chunks come into the index, move, and leave it? With every count that depends on them.

These are parts of a change: each is called with the connection that writes.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harch.content.store.index import ChunkRow, find_chunks, places, slices
from harch.content.store.records import PlacedRecord


class WrittenPack(NamedTuple):
    """On disk, and not yet in the index."""

    name: str
    records: list[PlacedRecord]

    @property
    def bytes(self) -> int:
        """Of its records: of what can become garbage."""
        return sum(record.head.record_bytes for record in self.records)


class Stored(NamedTuple):
    """What is new: `bytes` counts whole records, less those that they replace."""

    chunks: int
    bytes: int


def insert_pack(connection: sqlite3.Connection, tenant: int, pack: WrittenPack, now_ms: int) -> Stored:
    """New chunks, which nobody references yet, and others in the place of damaged ones. The rest of it is garbage."""
    key = connection.execute(
        "INSERT INTO packs (name, tenant, bytes, chunks_live, bytes_live) VALUES (?, ?, ?, 0, 0)",
        (pack.name, tenant, pack.bytes),
    ).lastrowid
    records = {record.head.chunk: record for record in reversed(pack.records)}
    existing = find_chunks(connection, tenant, list(records))
    (last,) = connection.execute("SELECT COALESCE(MAX(key), 0) FROM chunks").fetchone()
    new = [record for name, record in records.items() if name not in existing]
    connection.executemany(
        "INSERT INTO chunks (tenant, id, size, pack, at, bytes) VALUES (?, ?, ?, ?, ?, ?)",
        [(tenant, head.chunk, head.size, key, at, head.record_bytes) for at, head in reversed(new)],
    )
    connection.execute("INSERT INTO unreferenced SELECT key, ?, 0 FROM chunks WHERE key > ?", (now_ms, last))
    # Those of another call that was faster are kept for this one, too.
    connection.executemany(
        "UPDATE unreferenced SET seen_ms = ?, is_released = 0 WHERE chunk = ?",
        [(now_ms, row.key) for row in existing.values()],
    )
    damaged = [row for row in existing.values() if row.is_damaged]
    _take_from_packs(connection, damaged)
    connection.executemany(
        "UPDATE chunks SET pack = ?, at = ?, bytes = ?, is_damaged = 0 WHERE key = ?",
        [(key, records[row.id].at, records[row.id].head.record_bytes, row.key) for row in damaged],
    )
    connection.execute(
        "UPDATE packs SET (chunks_live, bytes_live) ="
        " (SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM chunks WHERE pack = ?) WHERE key = ?",
        (key, key),
    )
    more = sum(record.head.record_bytes for record in new)
    more += sum(records[row.id].head.record_bytes - row.bytes for row in damaged)
    count_usage(connection, tenant, len(new), sum(record.head.size for record in new), more)
    return Stored(len(new), more)


def delete_chunks(connection: sqlite3.Connection, tenant: int, rows: Sequence[ChunkRow]) -> None:
    """Whoever calls has made sure that nobody references them."""
    for some in slices([row.key for row in rows]):
        connection.execute(f"DELETE FROM unreferenced WHERE chunk IN ({places(some)})", some)  # noqa: S608
        connection.execute(f"DELETE FROM chunks WHERE key IN ({places(some)})", some)  # noqa: S608
    _take_from_packs(connection, rows)
    count_usage(connection, tenant, -len(rows), -sum(row.size for row in rows), -sum(row.bytes for row in rows))


def move_chunks(connection: sqlite3.Connection, tenant: int, pack: WrittenPack, rows: Sequence[ChunkRow]) -> int:
    """Records that were copied into a new pack, in the order of `rows`. What was removed, replaced or found damaged
    meanwhile is not moved. Returns the row of the new pack."""
    key = connection.execute(
        "INSERT INTO packs (name, tenant, bytes, chunks_live, bytes_live) VALUES (?, ?, ?, 0, 0)",
        (pack.name, tenant, pack.bytes),
    ).lastrowid
    moved = [
        row
        for record, row in zip(pack.records, rows, strict=True)
        if connection.execute(
            "UPDATE chunks SET pack = ?, at = ? WHERE key = ? AND pack = ? AND at = ? AND is_damaged = 0",
            (key, record.at, row.key, row.pack, row.at),
        ).rowcount
    ]
    _take_from_packs(connection, moved)
    connection.execute(
        "UPDATE packs SET chunks_live = ?, bytes_live = ? WHERE key = ?",
        (len(moved), sum(row.bytes for row in moved), key),
    )
    return int(key or 0)


def count_usage(connection: sqlite3.Connection, tenant: int, chunks: int, bytes_raw: int, bytes_stored: int) -> None:
    connection.execute(
        "UPDATE tenants SET chunks = chunks + ?, bytes_raw = bytes_raw + ?, bytes_stored = bytes_stored + ?"
        " WHERE key = ?",
        (chunks, bytes_raw, bytes_stored, tenant),
    )


def by_pack(rows: Iterable[ChunkRow]) -> dict[int, list[ChunkRow]]:
    """In the order of their places, so that each pack is read once, forwards."""
    found: defaultdict[int, list[ChunkRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.pack, row.at)):
        found[row.pack].append(row)
    return found


def _take_from_packs(connection: sqlite3.Connection, rows: Sequence[ChunkRow]) -> None:
    connection.executemany(
        "UPDATE packs SET chunks_live = chunks_live - ?, bytes_live = bytes_live - ? WHERE key = ?",
        [(len(some), sum(row.bytes for row in some), pack) for pack, some in by_pack(rows).items()],
    )
