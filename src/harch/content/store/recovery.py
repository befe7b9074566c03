"""What is found at the start? An index that matches the packs, a few packs that it does not know, or no index at all.

- A temporary file is what a kill left of a pack: removed.
- A pack that the index does not know was not acknowledged, or the index is older than it: its chunks are taken in, and
  go with a later collection if nobody needs them. One that nobody has the key of is set aside.
- A pack that is gone takes its chunks with it: they are marked as damaged, so that `missing` asks for them.
- An index that is gone or damaged is set aside and made anew from the packs and the notes of keys. Who held what is
  lost then, so nothing is collected until the owner of the store has said it again (`confirm_holders`).

All of this is logged as an error, but the first.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent
from harch.base.sqlite_pages import beside
from harch.base.state_files import rewrite, set_aside
from harch.content.store.encryption import unwrap_key, wrap_key
from harch.content.store.index import HOLDERS_LOST, INDEX, Index, UnknownIndex, note, set_note
from harch.content.store.records import (
    FOOTER_BYTES,
    HEADER_BYTES,
    DamagedRecord,
    PackContent,
    footer_bytes,
    read_by_footer,
    read_by_records,
)
from harch.content.store.rows import WrittenPack, insert_pack
from harch.content.store.storage import PackGone, PackStorage, storage_error
from harch.content.store.tenants import Tenant, Tenants

REBUILD = "index.rebuild"  # a file: the index that is there does not count
MARKER = "store"  # a note: whose packs these are
_STORE_ID = "store_id"
_MARKER_VERSION = 1
_INDEX_SUFFIXES = ("", "-wal", "-shm", "-sums")
_PACKS_PER_CHANGE = 64
_END_BYTES = 64 * 1024  # of a pack, read at first: the heads of 900 chunks

_log = logging.getLogger("harch.damage")


class StoreMarker(Struct, frozen=True):
    """Says to which index these packs belong. `check` can be unwrapped with the right master key only."""

    version: int
    id: str
    check: str


def open_index(folder: Path) -> Index:
    """Sets a damaged one aside and begins another. Raises E1110 for one of another version, or of another process."""
    if (folder / REBUILD).exists():
        set_index_aside(folder, "it has to be made anew")
    try:
        return Index(folder)
    except UnknownIndex as error:
        raise HarchError(
            "E1110", f"the index of the content store has version {error}", hint="use the release that wrote it"
        ) from error
    except sqlite3.OperationalError as error:
        raise storage_error(error, str(folder / INDEX)) from error
    except sqlite3.DatabaseError as error:
        set_index_aside(folder, str(error))
    except HarchError as error:
        if error.code != "E1030":
            raise
        set_index_aside(folder, error.message)
    return Index(folder)


def set_index_aside(folder: Path, why: str) -> None:
    """The next index is made anew from the packs. What says so stays until there is one: a kill changes nothing."""
    rewrite(folder / REBUILD, b"")
    for suffix in _INDEX_SUFFIXES:
        path = beside(folder / INDEX, suffix)
        if path.exists():
            set_aside(path, why, code="E1030")


class Recovery:
    """Runs once, before anybody uses the store."""

    def __init__(
        self, folder: Path, index: Index, storage: PackStorage, tenants: Tenants, master_key: bytes, clock: Clock
    ) -> None:
        self._folder, self._index, self._storage, self._tenants = folder, index, storage, tenants
        self._master_key, self._clock = master_key, clock

    def run(self) -> None:
        """Raises E1110 for packs of another store, or another master key."""
        packs = self._storage.packs()
        is_new_index = self._match_marker(bool(packs))
        (self._folder / REBUILD).unlink(missing_ok=True)
        restored = self._tenants.restore_from_notes()
        known = {name: key for key, name in self._index.query("SELECT key, name FROM packs")}
        if self._index.has_lost_commits:
            _log.error("E1030: the index of the content store lacks its last commits; looking into the packs")
        if is_new_index and packs:
            _log.error("E1030: the content store has no index; making it from %d packs, %d keys", len(packs), restored)
        self._lose({name: key for name, key in known.items() if name not in packs})
        taken = self._take_in({name: size for name, size in packs.items() if name not in known})
        if is_new_index and packs:
            _log.error("E1030: the index of the content store is made anew: %d chunks; who holds them is lost", taken)

    def _match_marker(self, has_packs: bool) -> bool:
        """Whether the index knows nothing yet of packs that may be there."""
        with self._index.reading() as connection:
            store_id = note(connection, _STORE_ID)
        raw = self._storage.read_note(MARKER)
        if raw is None:
            if store_id:
                raise HarchError(
                    "E1110",
                    f"the packs of the content store are not in {self._storage.location}",
                    hint="put back where they were, or move the index away to begin a new store",
                )
            store_id = os.urandom(16).hex()
            self._storage.write_note(MARKER, LINE.seal(msgspec.json.encode(self._new_marker(store_id))))
            self._index.write(partial(set_note, name=_STORE_ID, value=store_id))
            return False
        marker = self._read_marker(raw)
        unwrap_key(bytes.fromhex(marker.check), master_key=self._master_key, context=marker.id.encode())
        if not store_id:
            self._index.write(partial(_begin_anew, store_id=marker.id, has_packs=has_packs))
            return True
        if store_id != marker.id:
            raise HarchError(
                "E1110",
                f"{self._storage.location} belongs to another content store",
                hint="give each hub a bucket, or a prefix, of its own",
            )
        return False

    def _new_marker(self, store_id: str) -> StoreMarker:
        check = wrap_key(bytes(32), master_key=self._master_key, context=store_id.encode(), nonce=os.urandom(12))
        return StoreMarker(version=_MARKER_VERSION, id=store_id, check=check.hex())

    def _read_marker(self, raw: bytes) -> StoreMarker:
        try:
            content, is_repaired = LINE.open(raw)
            marker = msgspec.json.decode(content, type=StoreMarker)
        except (DamagedContent, msgspec.DecodeError) as error:
            raise HarchError(
                "E1110",
                f"the note `{MARKER}` in {self._storage.location} is damaged: {error}",
                hint="put it back from a backup",
            ) from error
        if marker.version != _MARKER_VERSION:
            raise HarchError(
                "E1110", f"the content store has version {marker.version}", hint="use the release that wrote it"
            )
        if is_repaired:
            self._storage.write_note(MARKER, LINE.seal(content))
        return marker

    def _lose(self, packs: dict[str, int]) -> None:
        """Packs that are gone. Those that held nothing any more were being deleted."""
        for name, key in packs.items():
            lost = self._index.write(partial(_lose_pack, pack=key))
            if lost:
                _log.error("E1101: pack %s of the content store is gone, with %d chunks", name, lost)

    def _take_in(self, packs: dict[str, int]) -> int:
        """Returns how many chunks were not known."""
        taken = 0
        names = sorted(packs)
        for first in range(0, len(names), _PACKS_PER_CHANGE):
            found = [
                (tenant.row, WrittenPack(name, content.records), content.is_whole)
                for name in names[first : first + _PACKS_PER_CHANGE]
                if (judged := self._judge(name, packs[name])) is not None
                for tenant, content in (judged,)
            ]
            now_ms = int(1000 * self._clock.now().timestamp())
            taken += self._index.write(partial(_insert_packs, packs=found, now_ms=now_ms))
        return taken

    def _judge(self, name: str, size: int) -> tuple[Tenant, PackContent] | None:
        """What is in a pack, and whose it is; None if it was of no use and is not there any more."""
        try:
            content = self._content(name, size)
        except PackGone:
            return None
        except DamagedRecord as damage:
            _log.error("E1101: pack %s of the content store cannot be read: %s", name, damage)
            self._set_aside(name)
            return None
        tenant = self._tenants.by_key_id(content.key_id)
        if tenant is not None:
            return tenant, content
        if self._tenants.is_forgotten(content.key_id):
            self._storage.delete([name])
        else:
            _log.error("E1101: nobody has the key of pack %s of the content store", name)
            self._set_aside(name)
        return None

    def _content(self, name: str, size: int) -> PackContent:
        """Raises DamagedRecord if not even its tenant can be told."""
        try:
            end_bytes = min(size, _END_BYTES)
            begin, end = self._storage.read(name, [(0, HEADER_BYTES), (size - end_bytes, size)])
            needed = footer_bytes(end)
            if needed > len(end):
                (end,) = self._storage.read(name, [(max(0, size - needed), size)])
            return read_by_footer(begin, end, size)
        except DamagedRecord:
            data = self._storage.read_whole(name)
            try:
                return read_by_records(data)
            except DamagedRecord:
                return self._content_by_trial(data)

    def _content_by_trial(self, data: bytes) -> PackContent:
        """Where the header is damaged, the key that opens a record tells whose pack it is."""
        if len(data) < HEADER_BYTES + FOOTER_BYTES:
            raise DamagedRecord("it is too short")
        content = read_by_records(data, b"")
        for at, head in content.records:
            for tenant in self._tenants.all():
                try:
                    tenant.key.open(memoryview(data)[at : at + head.record_bytes], head.chunk)
                except DamagedRecord:
                    continue
                return content._replace(key_id=tenant.key.id)
        raise DamagedRecord("no key opens any of it")

    def _set_aside(self, name: str) -> None:
        _log.error("E1101: it is kept as %s", self._storage.set_aside(name))


def _begin_anew(connection: sqlite3.Connection, *, store_id: str, has_packs: bool) -> None:
    """In one commit: a kill right after must not make an index look complete that knows no holders."""
    set_note(connection, name=_STORE_ID, value=store_id)
    if has_packs:
        set_note(connection, name=HOLDERS_LOST, value="1")


def _insert_packs(
    connection: sqlite3.Connection, *, packs: Iterable[tuple[int, WrittenPack, bool]], now_ms: int
) -> int:
    taken = 0
    for tenant, pack, is_whole in packs:
        taken += insert_pack(connection, tenant, pack, now_ms).chunks
        if not is_whole:
            connection.execute("UPDATE packs SET is_damaged = 1 WHERE name = ?", (pack.name,))
    return taken


def _lose_pack(connection: sqlite3.Connection, *, pack: int) -> int:
    """How many chunks are lost with it."""
    lost = connection.execute("UPDATE chunks SET is_damaged = 1 WHERE pack = ? AND is_damaged = 0", (pack,)).rowcount
    connection.execute("DELETE FROM packs WHERE key = ? AND chunks_live = 0", (pack,))
    return int(lost)
