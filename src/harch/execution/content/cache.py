"""What that tasks need is on this node already? Trees, images, environments, shared by tasks, least recent out.

ROOT/trees/DIGEST                        files, read-only, as their digest says
ROOT/images/NAME                         unpacked
ROOT/environments/TENANT/ready/KEY       built once
ROOT/environments/TENANT/packages        what the builds of one tenant have fetched and compiled
ROOT/records/KIND.NAME.json              which of these are whole; its time says when it was last used

A thing is whole when its record is there, which is written last. What is in use is never removed. What nobody uses goes
when room is needed, longest unused first. What was not flushed to disk before a power cut counts as absent.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import msgspec
from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.base.seal import FIELD, DamagedContent
from harch.execution import kernel
from harch.execution.content.cancellation import Cancellation
from harch.execution.taskdir import write_atomically
from harch.execution.trash import Trash

GB = 10**9
ENTRIES_MAX = 2_000  # which one look at start finds
DISK_SHARE_MAX = 0.5  # of the whole disk, whatever else is set
BUILDING = "building"
BLOCK_BYTES = 512  # the unit of `st_blocks`, whatever the disk has
_log = logging.getLogger(__name__)


class CacheKind(StrEnum):
    TREE = "trees"
    IMAGE = "images"
    ENVIRONMENT = "environments"
    PACKAGES = "packages"


class CacheUse(Struct, frozen=True):
    """One thing that a task uses, for the records of the task. Of an environment, `name` is TENANT/KEY."""

    kind: CacheKind
    name: str


class _Record(Struct, frozen=True, kw_only=True):
    use: CacheUse
    bytes: int = 0
    fingerprint: str = ""  # of files that nobody may change
    boot_id: str = ""
    is_durable: bool = False  # it would survive a power cut


@dataclass(slots=True)
class _Entry:
    record: _Record
    path: Path
    is_whole: bool = False  # else a part, which whoever wants it completes
    users: int = 0
    making: Future[None] | None = None
    is_doomed: bool = False  # removed as soon as nobody uses it

    @property
    def is_idle(self) -> bool:
        return not self.users and self.making is None


Reserve = Callable[[int], None]  # says how large it will be; raises E1113 if there is no room for that
Make = Callable[[Path, Reserve], None]  # puts the thing at the path; of a tree, a part may be there


class NodeCache:
    """From any thread. Every `borrow` and `reclaim` is paired with a `give_back`."""

    def __init__(
        self,
        root: Path,
        trash: Trash,
        now: Callable[[], datetime],
        *,
        boot_id: str,
        bytes_max: int,
        disk_bytes: Callable[[Path], tuple[int, int]] | None = None,
    ) -> None:
        """`disk_bytes`: size of the disk that holds a folder, and how much of it is free."""
        self._root, self._trash, self._now = root, trash, now
        self._boot_id, self._bytes_max, self._disk_bytes = boot_id, bytes_max, disk_bytes or _disk_bytes
        self._entries: dict[CacheUse, _Entry] = {}  # least recently used first
        self._lock = threading.RLock()

    def open(self) -> None:
        """Finds what earlier agents have left. Parts of trees stay until room is needed, all other parts go."""
        for kind in (CacheKind.TREE, CacheKind.IMAGE, CacheKind.ENVIRONMENT):
            (self._root / kind).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        for record in self._read_records():
            path = self._path(record.use)
            if path.is_dir() and (record.is_durable or record.boot_id == self._boot_id):
                self._entries[record.use] = _Entry(record, path, is_whole=True)
            else:
                self._record_path(record.use).unlink(missing_ok=True)
        whole = {entry.path for entry in self._entries.values()}
        for folder in [one for one in self._folders() if one not in whole]:
            if folder.parent == self._root / CacheKind.TREE:
                use = CacheUse(CacheKind.TREE, folder.name)
                part = _Entry(_Record(use=use, bytes=folder_bytes(folder)), folder)
                self._entries = {use: part, **self._entries}
            else:
                self._trash.throw_away(folder)

    def tidy(self) -> None:
        """Once all that is in use was reclaimed: what is too much goes."""
        with self._lock:
            self._make_room(0)

    def borrow(self, use: CacheUse, make: Make, cancellation: Cancellation) -> Path:
        """Where the thing is, made by whoever comes first. Raises what `make` raises, also to those who waited."""
        while True:
            cancellation.check()
            with self._lock:
                entry = self._entries.get(use)
                making = entry.making if entry is not None else None
                is_mine = making is None and (entry is None or not entry.is_whole)
                if entry is None:
                    entry = self._entries[use] = _Entry(_Record(use=use), self._path(use))
                if is_mine:
                    entry.making = Future()
                elif making is None:
                    self._use(entry)
            if is_mine:
                return self._make(entry, make, cancellation)
            if making is not None:
                cancellation.wait_for(making)
            elif self._is_unchanged(entry, cancellation):
                return entry.path

    def reclaim(self, use: CacheUse) -> bool:
        """For a task that an earlier agent has started. False: it is not there any more."""
        with self._lock:
            entry = self._entries.get(use)
            if entry is None or not entry.is_whole:
                return False
            self._use(entry)
            return True

    def give_back(self, use: CacheUse) -> None:
        with self._lock:
            entry = self._entries.get(use)
            if entry is None or not entry.users:
                return
            entry.users -= 1
            if entry.is_whole:
                self._touch(entry)
            self._make_room(0)

    def expel(self, use: CacheUse) -> None:
        """It may not rest here any more: removed now, or when the last task that uses it has ended."""
        with self._lock:
            if entry := self._entries.get(use):
                entry.is_doomed = True
                self._make_room(0)

    def measure(self, use: CacheUse) -> None:
        """It has grown while it was used."""
        size = folder_bytes(self._path(use))
        with self._lock:
            if entry := self._entries.get(use):
                entry.record = replace(entry.record, bytes=size)
                self._write(entry)
                self._make_room(0)

    @property
    def bytes_used(self) -> int:
        with self._lock:
            return sum(entry.record.bytes for entry in self._entries.values())

    def _make(self, entry: _Entry, make: Make, cancellation: Cancellation) -> Path:
        """Completes an entry and tells those who wait. A failure is theirs, too, unless it was only called off."""
        is_tree = entry.record.use.kind is CacheKind.TREE
        error: HarchError | None = None
        try:
            entry.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            make(entry.path, lambda size: self._reserve(entry, size))
            mark = fingerprint(entry.path, cancellation) if is_tree else ""
            size = folder_bytes(entry.path)
            with self._lock:
                entry.record = replace(entry.record, bytes=size, fingerprint=mark, boot_id=self._boot_id)
                self._write(entry)
                entry.is_whole, entry.users = True, entry.users + 1
        except HarchError as failure:
            error = failure
            raise
        finally:
            if not entry.is_whole:
                self._keep_part(entry)
            with self._lock:
                making, entry.making = entry.making, None
                self._make_room(0)
            if making is not None and error is None:
                making.set_result(None)
            elif making is not None and error is not None:
                making.set_exception(HarchError(error.code, error.message, hint=error.hint))
        threading.Thread(target=self._flush, args=(entry,), daemon=True, name="harch-flush").start()
        return entry.path

    def _flush(self, entry: _Entry) -> None:
        """Its maker does not wait for the disk, which may have much else to write."""
        kernel.flush_disk(str(entry.path))
        with self._lock:
            if self._entries.get(entry.record.use) is entry and entry.is_whole:
                entry.record = replace(entry.record, is_durable=True)
                with suppress(OSError):  # a full disk; after a power cut it is made again
                    self._write(entry)

    def _keep_part(self, entry: _Entry) -> None:
        """Of a tree, for the next who wants it."""
        is_part = entry.record.use.kind is CacheKind.TREE and entry.path.is_dir()
        size = folder_bytes(entry.path) if is_part else 0
        with self._lock:
            entry.record = replace(entry.record, bytes=size)
            if not is_part:
                self._remove(entry)

    def _is_unchanged(self, entry: _Entry, cancellation: Cancellation) -> bool:
        """Whether a tree is as it was when it was verified. One that is not is made again."""
        try:
            mark = entry.record.fingerprint
            if not mark or fingerprint(entry.path, cancellation) == mark:
                return True
        except BaseException:
            self.give_back(entry.record.use)
            raise
        _log.error("E1101: files of %s were changed by something on this node; they are fetched again", entry.path)
        with self._lock:
            entry.users -= 1
            if entry.users:
                hint = "it is fetched again as soon as those tasks have ended"
                message = f"files of {entry.path.name} on this node were changed, and other tasks use them"
                raise HarchError("E1113", message, hint=hint)
            self._remove(entry)
        return False

    def _use(self, entry: _Entry) -> None:
        entry.users += 1
        self._touch(entry)

    def _touch(self, entry: _Entry) -> None:
        use, now_s = entry.record.use, self._now().timestamp()
        self._entries[use] = self._entries.pop(use)
        try:
            os.utime(self._record_path(use), (now_s, now_s))
        except OSError as error:
            _log.warning("the last use of %s cannot be noted: %s", entry.path, error)

    def _reserve(self, entry: _Entry, size: int) -> None:
        before = folder_bytes(entry.path)
        with self._lock:
            entry.record = replace(entry.record, bytes=size)
            self._make_room(max(0, size - before), keep=entry)

    def _make_room(self, coming_bytes: int, *, keep: _Entry | None = None) -> None:
        """Idle entries leave until the rest is within the limits. Raises E1113 if what is coming has no room."""
        disk, free = self._disk_bytes(self._root)
        limit = min(self._bytes_max, int(disk * DISK_SHARE_MAX))
        total, count = self.bytes_used, len(self._entries)
        for entry in [one for one in self._entries.values() if one.is_idle and one is not keep]:
            if entry.is_doomed or total > limit or coming_bytes > free or count > ENTRIES_MAX:
                count -= 1
                total -= entry.record.bytes
                free += entry.record.bytes
                self._remove(entry)
        if coming_bytes and (total > disk * DISK_SHARE_MAX or coming_bytes > free):
            sentence = (
                f"{coming_bytes / GB:.1f} GB have no room on this node: {free / GB:.1f} of {disk / GB:.0f} GB "
                f"are free, and content of running tasks takes {(total - coming_bytes) / GB:.1f} GB"
            )
            raise HarchError("E1113", sentence, hint=f"content may take {DISK_SHARE_MAX:.0%} of the disk; free some")

    def _remove(self, entry: _Entry) -> None:
        use = entry.record.use
        del self._entries[use]
        try:
            self._record_path(use).unlink(missing_ok=True)
            self._trash.throw_away(entry.path)
        except OSError as error:
            _log.warning("%s cannot be removed: %s", entry.path, error)

    def _write(self, entry: _Entry) -> None:
        path = self._record_path(entry.record.use)
        write_atomically(path, FIELD.seal(msgspec.json.encode(entry.record)))
        now_s = self._now().timestamp()
        os.utime(path, (now_s, now_s))

    @property
    def _records(self) -> Path:
        return self._root / "records"

    def _record_path(self, use: CacheUse) -> Path:
        return self._records / f"{use.kind}.{use.name.replace('/', '.')}.json"

    def _path(self, use: CacheUse) -> Path:
        environments = self._root / CacheKind.ENVIRONMENT
        match use.kind:
            case CacheKind.TREE | CacheKind.IMAGE:
                return self._root / use.kind / use.name
            case CacheKind.PACKAGES:
                return environments / use.name / "packages"
            case CacheKind.ENVIRONMENT:
                tenant, _, key = use.name.partition("/")
                return environments / tenant / "ready" / key

    def _read_records(self) -> Iterator[_Record]:
        """Longest unused first."""
        found = [entry for entry in os.scandir(self._records) if entry.name.endswith(".json")]
        for entry in sorted(found, key=lambda one: one.stat().st_mtime_ns):
            try:
                yield msgspec.json.decode(FIELD.unseal(Path(entry.path).read_bytes()), type=_Record)
            except (DamagedContent, msgspec.DecodeError, OSError) as error:
                _log.error("E1030: %s is damaged, and what it stands for is made again: %s", entry.path, error)
                os.unlink(entry.path)

    def _folders(self) -> Iterator[Path]:
        for kind in (CacheKind.TREE, CacheKind.IMAGE):
            yield from (self._root / kind).iterdir()
        for tenant in (self._root / CacheKind.ENVIRONMENT).iterdir():
            yield from (tenant / name for name in ("packages", BUILDING) if (tenant / name).exists())
            if (tenant / "ready").is_dir():
                yield from (tenant / "ready").iterdir()


def folder_bytes(folder: Path) -> int:
    """What a folder takes on disk. A file that has several names counts at each of them for its part."""
    total = 0
    for parent, folders, names in os.walk(folder):
        for is_file, name in (*((False, one) for one in folders), *((True, one) for one in names)):
            try:
                found = os.lstat(os.path.join(parent, name))
            except OSError:
                continue  # it has just been removed
            total += found.st_blocks * BLOCK_BYTES // (found.st_nlink if is_file else 1)
    return total


def fingerprint(folder: Path, cancellation: Cancellation) -> str:
    """Changes when a file below is written, replaced, added or removed; costs one look at each."""
    digest = blake3()
    for parent, folders, names in os.walk(folder):
        cancellation.check()
        folders.sort()
        for name in (*folders, *sorted(names)):
            path = os.path.join(parent, name)
            found = os.lstat(path)
            mode = found.st_mode & ~(stat.S_IRWXG | stat.S_IRWXO)  # which `close_to_others` takes away
            fields = (path[len(str(folder)) :], mode, found.st_size, found.st_mtime_ns, found.st_ino)
            digest.update(repr(fields).encode())
    return digest.hexdigest()


def _disk_bytes(folder: Path) -> tuple[int, int]:
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
