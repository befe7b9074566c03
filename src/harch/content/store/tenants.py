"""Whose chunks are these, and which key opens them? Tenants by name, each with a key, a quota and a count.

A key is written twice, wrapped: into the index, and into a sealed note beside the packs, so that the index can be
rebuilt. Without both nobody reads the tenant's chunks any more, whatever else is left on the disk.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent
from harch.content.store.encryption import TENANT_KEY_BYTES, TenantKey, unwrap_key, wrap_key
from harch.content.store.index import Index
from harch.content.store.records import KEY_ID_BYTES
from harch.content.store.settings import TENANTS_MAX
from harch.content.store.storage import KEYS, PackStorage
from harch.wire.content import TenantUsage

_NONCE_BYTES = 12
_UNLIMITED = -1


class Tenant(NamedTuple):
    """Of whom the store has, or will have, chunks. `row` is its key in the index."""

    row: int
    name: str
    key: TenantKey


class KeyNote(Struct, frozen=True):
    """What stands in the note of a key."""

    tenant: str
    key_id: str
    wrapped: str


class Tenants:
    """Thread-safe."""

    def __init__(self, index: Index, storage: PackStorage, master_key: bytes, quota_bytes: int | None) -> None:
        self._index, self._storage, self._master_key = index, storage, master_key
        self._quota_bytes = quota_bytes
        self._known: dict[str, Tenant] = {}
        self._changing = threading.RLock()

    def find(self, name: str) -> Tenant | None:
        """Nobody who never stored anything. Raises E1110 if the master key is another one."""
        return self._known.get(name) or self._look_up(name)

    def _look_up(self, name: str) -> Tenant | None:
        with self._changing:
            rows = self._index.query("SELECT key, key_id, wrapped FROM tenants WHERE name = ?", (name,))
            if not rows:
                return None
            row, key_id, wrapped = rows[0]
            tenant = self._known[name] = Tenant(row, name, TenantKey(key_id, self._unwrap(name, key_id, wrapped)))
            return tenant

    def find_or_make(self, name: str) -> Tenant:
        known = self._known.get(name)
        if known is not None:
            return known
        with self._changing:
            return self._look_up(name) or self._make(name)

    def _make(self, name: str) -> Tenant:
        if self._index.query("SELECT COUNT(*) FROM tenants")[0][0] >= TENANTS_MAX:
            raise HarchError("E1103", f"the content store has {TENANTS_MAX} tenants, which is the most it may have")
        key_id, key = os.urandom(KEY_ID_BYTES), os.urandom(TENANT_KEY_BYTES)
        wrapped = wrap_key(
            key, master_key=self._master_key, context=_context(name, key_id), nonce=os.urandom(_NONCE_BYTES)
        )
        # The note first: a key that only the index has would be lost with it.
        note = KeyNote(tenant=name, key_id=key_id.hex(), wrapped=wrapped.hex())
        self._storage.write_note(_note_name(key_id), LINE.seal(msgspec.json.encode(note)))
        self._index.write(partial(insert_tenant, name=name, key_id=key_id, wrapped=wrapped))
        found = self._look_up(name)
        if found is None:
            raise HarchError("E1110", f"the key of tenant `{name}` could not be stored")
        return found

    def by_key_id(self, key_id: bytes) -> Tenant | None:
        rows = self._index.query("SELECT name FROM tenants WHERE key_id = ? AND name IS NOT NULL", (key_id,))
        return self.find(str(rows[0][0])) if rows else None

    def by_row(self, row: int) -> Tenant | None:
        rows = self._index.query("SELECT name FROM tenants WHERE key = ? AND name IS NOT NULL", (row,))
        return self.find(str(rows[0][0])) if rows else None

    def all(self) -> list[Tenant]:
        names = self._index.query("SELECT name FROM tenants WHERE name IS NOT NULL ORDER BY key")
        return [found for (name,) in names if (found := self.find(str(name))) is not None]

    def is_forgotten(self, key_id: bytes) -> bool:
        return bool(self._index.query("SELECT 1 FROM tenants WHERE key_id = ? AND name IS NULL", (key_id,)))

    def forgotten(self) -> list[int]:
        """Rows of tenants whose chunks still have to go."""
        return [row for (row,) in self._index.query("SELECT key FROM tenants WHERE name IS NULL")]

    def drop(self, row: int) -> None:
        """A forgotten tenant of whom nothing is left; its key goes once more, if that failed at first."""
        ((key_id,),) = self._index.query("SELECT key_id FROM tenants WHERE key = ?", (row,))
        self._storage.delete_note(_note_name(key_id))
        self._index.write(lambda connection: connection.execute("DELETE FROM tenants WHERE key = ?", (row,)))

    # Quota and usage

    def set_quota(self, name: str, bytes_max: int | None) -> None:
        row = self.find_or_make(name).row
        value = _UNLIMITED if bytes_max is None else bytes_max
        self._index.write(
            lambda connection: connection.execute("UPDATE tenants SET bytes_max = ? WHERE key = ?", (value, row))
        )

    def has_room(self, tenant: int, more_bytes: int) -> bool:
        bytes_max, bytes_stored = self._index.query(
            "SELECT bytes_max, bytes_stored FROM tenants WHERE key = ?", (tenant,)
        )[0]
        limit = self._limit(bytes_max)
        return limit is None or more_bytes <= 0 or bytes_stored + more_bytes <= limit

    def check_quota(
        self, connection: sqlite3.Connection, tenant: int, more_bytes: int, *, is_counted: bool = False
    ) -> None:
        """Raises E1103 if the tenant may not store so much more, which may be counted already."""
        found = connection.execute(
            "SELECT name, bytes_max, bytes_stored FROM tenants WHERE key = ? AND name IS NOT NULL", (tenant,)
        ).fetchone()
        if found is None:
            raise HarchError("E1110", "this tenant was removed from the content store just now")
        name, bytes_max, bytes_stored = found
        limit = self._limit(bytes_max)
        before = bytes_stored - more_bytes if is_counted else bytes_stored
        if limit is not None and more_bytes > 0 and before + more_bytes > limit:
            raise HarchError(
                "E1103",
                f"tenant `{name}` keeps {before} of {limit} bytes here, and {more_bytes} more do not fit",
                hint="remove data or artifacts, or ask the operator for a larger quota",
                meta={"bytes_stored": before, "bytes_max": limit, "bytes_needed": more_bytes},
            )

    def usage(self) -> list[TenantUsage]:
        rows = self._index.query(
            "SELECT name, (SELECT COUNT(*) FROM trees WHERE trees.tenant = tenants.key), chunks, bytes_raw,"
            " bytes_stored, bytes_max FROM tenants WHERE name IS NOT NULL ORDER BY name"
        )
        return [
            TenantUsage(
                tenant=name,
                trees=trees,
                chunks=chunks,
                bytes_raw=bytes_raw,
                bytes_stored=bytes_stored,
                bytes_max=self._limit(bytes_max),
            )
            for name, trees, chunks, bytes_raw, bytes_stored, bytes_max in rows
        ]

    def _limit(self, bytes_max: int | None) -> int | None:
        if bytes_max is None:
            return self._quota_bytes
        return None if bytes_max == _UNLIMITED else bytes_max

    # Keys

    def forget(self, name: str) -> None:
        """Takes the name and the key away; the chunks are garbage from then on."""
        with self._changing:
            tenant = self.find(name)
            if tenant is None:
                return
            self._index.write(partial(_forget, tenant=tenant.row))
            self._known.pop(name, None)
            self._storage.delete_note(_note_name(tenant.key.id))

    def restore_from_notes(self) -> int:
        """Tenants that only the notes know: the index was lost, or is older. Notes of forgotten keys go."""
        known = dict(self._index.query("SELECT key_id, name FROM tenants"))
        names = {name for name in known.values() if name is not None}
        restored = 0
        for place in self._storage.notes(KEYS):
            note = self._read_note(place)
            key_id, wrapped = bytes.fromhex(note.key_id), bytes.fromhex(note.wrapped)
            if key_id in known:
                if known[key_id] is None:
                    self._storage.delete_note(place)
                continue
            self._unwrap(note.tenant, key_id, wrapped)
            if note.tenant in names:
                raise HarchError(
                    "E1110",
                    f"the content store has two keys of tenant `{note.tenant}`",
                    hint=f"`{place}` or the index comes from another time; put back both from the same backup",
                )
            names.add(note.tenant)
            self._index.write(partial(insert_tenant, name=note.tenant, key_id=key_id, wrapped=wrapped))
            restored += 1
        return restored

    def _read_note(self, place: str) -> KeyNote:
        raw = self._storage.read_note(place) or b""
        try:
            content, is_repaired = LINE.open(raw)
            note = msgspec.json.decode(content, type=KeyNote)
        except (DamagedContent, msgspec.DecodeError) as error:
            raise HarchError(
                "E1110",
                f"the key in `{place}` of the content store is damaged: {error}",
                hint="put it back from a backup; without it the chunks of its tenant cannot be read",
            ) from error
        if is_repaired:
            self._storage.write_note(place, LINE.seal(content))
        return note

    def _unwrap(self, name: str, key_id: bytes, wrapped: bytes) -> bytes:
        return unwrap_key(wrapped, master_key=self._master_key, context=_context(name, key_id))


def insert_tenant(connection: sqlite3.Connection, name: str, key_id: bytes, wrapped: bytes) -> None:
    connection.execute("INSERT INTO tenants (name, key_id, wrapped) VALUES (?, ?, ?)", (name, key_id, wrapped))


def _forget(connection: sqlite3.Connection, tenant: int) -> None:
    """Everything that names its chunks; these themselves, and their packs, go with the next collection."""
    connection.execute("UPDATE tenants SET name = NULL, wrapped = NULL WHERE key = ?", (tenant,))
    connection.execute("DELETE FROM holds WHERE tenant = ?", (tenant,))
    connection.execute(
        "INSERT OR IGNORE INTO unreferenced SELECT chunk, 0, 1 FROM tree_chunks"
        " WHERE tree IN (SELECT key FROM trees WHERE tenant = ?)",
        (tenant,),
    )
    connection.execute("DELETE FROM tree_chunks WHERE tree IN (SELECT key FROM trees WHERE tenant = ?)", (tenant,))
    connection.execute("DELETE FROM trees WHERE tenant = ?", (tenant,))


def _context(name: str, key_id: bytes) -> bytes:
    return key_id + name.encode()


def _note_name(key_id: bytes) -> str:
    return f"{KEYS}/{key_id.hex()}"
