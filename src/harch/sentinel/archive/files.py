"""How do files come and go?

Written under new names, named by one list that is replaced as a whole, removed when no reader pins them, set aside
when damaged.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic

import msgspec
import numpy as np

from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent
from harch.base.state_files import put_right
from harch.sentinel.archive.planning import HOUR_NS, ArchiveManifest, Erasure, FileEntry
from harch.sentinel.archive.row_storage import R, RowStorage
from harch.sentinel.store.disk import FileSystem, write_file

MANIFEST = "files.json"
_NEW = "files.new"


def read_manifest(folder: Path, disk: FileSystem) -> ArchiveManifest:
    """Raises E0613 for a list that was changed: it also says what must not be answered."""
    if (folder / _NEW).exists():
        disk.remove_file(folder / _NEW)
    path = folder / MANIFEST
    if not path.exists():
        return ArchiveManifest()
    raw = path.read_bytes()
    try:
        line, is_mended = LINE.open(raw)
    except DamagedContent as damage:
        raise HarchError("E0613", f"{MANIFEST} is damaged: {damage}", hint=f"see {path}") from damage
    if is_mended:
        put_right(path, raw, line)
    try:
        found = msgspec.json.decode(line, type=ArchiveManifest)
    except msgspec.MsgspecError as broken:
        raise HarchError("E0613", f"{MANIFEST} is malformed", hint=f"see {path}") from broken
    if found.version != 1:
        raise HarchError("E0614", f"{MANIFEST} is of version {found.version}", hint=f"see {path}")
    return found


def write_manifest(folder: Path, manifest: ArchiveManifest, disk: FileSystem) -> None:
    """Durable on return: the old list or the new one is there, never a part."""
    if (folder / _NEW).exists():
        disk.remove_file(folder / _NEW)
    write_file(disk, folder / _NEW, LINE.seal(msgspec.json.encode(manifest)))
    disk.rename(folder / _NEW, folder / MANIFEST)
    disk.sync_folder(folder)


# When may a file be removed? When nobody reads it any more: readers pin what they have in hand.


_WAIT_S = 30.0


class Pins:
    def __init__(self, remove: Callable[[str], None]) -> None:
        self._remove = remove
        self._readers: Counter[str] = Counter()
        self._doomed: set[str] = set()
        self._changed = threading.Condition()

    def pin(self, names: Iterable[str]) -> None:
        with self._changed:
            self._readers.update(names)

    def unpin(self, names: Iterable[str]) -> None:
        with self._changed:
            self._readers.subtract(names)
            self._readers += Counter()  # drops what nobody reads
            free = {name for name in self._doomed if not self._readers[name]}
            self._doomed -= free
            self._changed.notify_all()
        for name in free:
            self._remove(name)

    def doom(self, names: Iterable[str]) -> None:
        """Files that are in no list any more: removed now, or by their last reader."""
        with self._changed:
            free = [name for name in names if not self._readers[name]]
            self._doomed.update(name for name in names if self._readers[name])
        for name in free:
            self._remove(name)

    def wait(self) -> bool:
        """Waits until all doomed files are gone; False where readers take too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._doomed, _WAIT_S)


# What if bytes on disk are not those that were written? The file is set aside, and all others go on.


QUARANTINE = "quarantine"


class DamagedFile(HarchError):
    """A file that cannot be trusted. Who meets it fails; who asks after that is answered without it."""

    def __init__(self, stem: Path, reason: str) -> None:
        hint = f"it was moved to `{QUARANTINE}`; other files are unaffected; check the disk under {stem.parent}"
        super().__init__("E0613", f"file {stem.name}: {reason}", hint=hint)
        self.name = stem.name


def mapped(path: Path) -> mmap.mmap:
    """The bytes of a file. Raises DamagedFile where it is missing or empty."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as problem:
        raise DamagedFile(path.with_suffix(""), f"{path.name}: {problem}") from problem


# How do files come and go? Written under new names, named by one list that is replaced as a whole, then removed.


_WINDOWS_MAX = 64  # of one flush: rows spread wider than that share files

_log = logging.getLogger(__name__)


def windows_of(kind: RowStorage[R], rows: R) -> list[R]:
    """The rows of each hour, in their order."""
    hours = kind.times(rows) // HOUR_NS
    known = np.unique(hours)
    if len(known) == 1:
        return [rows]
    groups = np.array_split(known, min(len(known), _WINDOWS_MAX))
    return [kind.taken(rows, np.flatnonzero((hours >= group[0]) & (hours <= group[-1]))) for group in groups]


class Files(Generic[R]):
    """The files of one table. All methods that change something are called by one thread at a time."""

    def __init__(self, folder: Path, kind: RowStorage[R], disk: FileSystem) -> None:
        self._table_folder, self._kind, self._disk = folder, kind, disk
        self.folder = folder / "files"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.manifest: ArchiveManifest = read_manifest(folder, disk)
        self.pins = Pins(self._remove)
        self._remove_strays()

    def written(self, parts: Sequence[R], *, now_ns: int) -> list[FileEntry]:
        """Synced files, one a part, of rows that came by `now_ns`; they count only once the list names them."""
        first = self.manifest.next_file
        return [self._written(first + place, rows, now_ns) for place, rows in enumerate(parts)]

    def replace(
        self,
        old: Sequence[FileEntry],
        new: Sequence[FileEntry],
        lock: threading.Lock,
        *,
        segment: int | None = None,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """The point at which a change holds. New files are synced before the list is; old ones go after it."""
        if new:
            self._disk.sync_folder(self.folder)
        gone = {one.name for one in old}
        kept = [one for one in self.manifest.files if one.name not in gone]
        changed = msgspec.structs.replace(
            self.manifest,
            files=tuple(sorted([*kept, *new], key=lambda one: one.first)),
            next_file=max([self.manifest.next_file, *(int(one.name) + 1 for one in new)]),
            segment=self.manifest.segment if segment is None else segment,
        )
        write_manifest(self._table_folder, changed, self._disk)
        with lock:
            self.manifest = changed
            also()
        self.pins.doom([one.name for one in old])

    def rewrite(self, group: Sequence[FileEntry], lock: threading.Lock) -> None:
        """One file in place of these, without what was erased."""
        parts = [rows for rows in map(self._clean_rows, group) if rows.count]
        fresh: list[FileEntry] = []
        if parts:
            came_ns = max(one.came_ns for one in group)
            written = self._written(self.manifest.next_file, self._kind.joined(parts), came_ns)
            fresh = [msgspec.structs.replace(written, first=min(one.first for one in group))]
        self.replace(group, fresh, lock)

    def remember(self, erasure: Erasure) -> None:
        known = self.manifest.erasures
        if all(one.number != erasure.number for one in known):
            following = max(self.manifest.next_erasure, erasure.number + 1)
            self.manifest = msgspec.structs.replace(self.manifest, erasures=(*known, erasure), next_erasure=following)

    def carry_out(self, lock: threading.Lock) -> None:
        """Rewrites every file that has rows to be erased, and forgets the erasures."""
        erasures = self.manifest.erasures
        if not erasures:
            return
        for entry in self.manifest.files:
            stem = self.folder / entry.name
            if any(one.number > entry.clean_to and self._kind.holds(stem, one.content) for one in erasures):
                self.rewrite([entry], lock)
        done = msgspec.structs.replace(self.manifest, erasures=())
        write_manifest(self._table_folder, done, self._disk)
        with lock:
            self.manifest = done

    def set_aside(self, name: str, lock: threading.Lock) -> None:
        """Takes a damaged file out of the list and keeps it beside the others, for whoever looks at the disk."""
        entry = next((one for one in self.manifest.files if one.name == name), None)
        if entry is None:
            return
        changed = msgspec.structs.replace(
            self.manifest, files=tuple(one for one in self.manifest.files if one.name != name)
        )
        write_manifest(self._table_folder, changed, self._disk)
        with lock:
            self.manifest = changed
        self._kind.forget(name)
        kept = self.quarantine
        if not kept.exists():
            self._disk.make_folder(kept)
        for suffix in self._kind.suffixes:
            if (path := self.folder / f"{name}{suffix}").exists():
                self._disk.rename(path, kept / path.name)
        _log.error("E0613: file %s is damaged, moved to %s", name, kept)

    @property
    def quarantine(self) -> Path:
        return self._table_folder / QUARANTINE

    def have_room_for(self, group: Sequence[FileEntry], free_bytes_min: int) -> bool:
        needed = 2 * sum(one.disk_bytes for one in group) + free_bytes_min
        return self._disk.free_bytes(self.folder) > needed

    def _clean_rows(self, entry: FileEntry) -> R:
        rows = self._kind.read(self.folder / entry.name)
        for erasure in self.manifest.erasures:
            if erasure.number > entry.clean_to:
                rows = self._kind.without(rows, erasure.content)
        return rows

    def _written(self, number: int, rows: R, came_ns: int) -> FileEntry:
        name = f"{number:08d}"
        for suffix in self._kind.suffixes:  # what an attempt that failed has left
            if (path := self.folder / f"{name}{suffix}").exists():
                self._disk.remove_file(path)
        times = self._kind.times(rows)
        disk_bytes = self._kind.write(self.folder / name, rows, self._disk)
        return FileEntry(
            name=name,
            first=number,
            start_ns=int(times.min()),
            end_ns=int(times.max()),
            rows=rows.count,
            raw_bytes=rows.raw_bytes,
            disk_bytes=disk_bytes,
            clean_to=self.manifest.next_erasure - 1,
            came_ns=came_ns,
        )

    def _remove_strays(self) -> None:
        """Files that the list does not name: a crash came before or after it was replaced."""
        known = {one.name for one in self.manifest.files}
        for path in sorted(self.folder.iterdir()):
            if path.name.partition(".")[0] not in known:
                self._disk.remove_file(path)

    def _remove(self, name: str) -> None:
        self._kind.forget(name)
        for suffix in self._kind.suffixes:
            try:
                self._disk.remove_file(self.folder / f"{name}{suffix}")
            except OSError as problem:
                _log.error("cannot remove %s%s: %s", name, suffix, problem)
