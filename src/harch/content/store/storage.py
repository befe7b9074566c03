"""Where do packs lie? In a folder, or wherever else a `PackStorage` puts them.

A pack appears whole or not at all. The folder writes to a temporary file, syncs it, renames it, and syncs itself; what
a kill leaves behind is a temporary file, removed at the next start, or a whole pack that no index knows.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from harch.base.errors import HarchError
from harch.base.state_files import FOLDER as QUARANTINE
from harch.base.state_files import rewrite

PACKS, KEYS, RESERVE = "packs", "keys", "reserve"
RESERVE_BYTES = 8 * 1024 * 1024  # of log: thousands of holds that end, and chunks that go
RESERVE_SHARE_MAX = 1 / 32  # of small disks, e.g. in tests
_DRAFT_PREFIX = "."
_PIECES_MAX = 512  # of one call of the system
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOST = (errno.EIO,)  # the disk cannot read what it holds


class PackGone(Exception):
    """No pack of this name is there."""


class PackStorage(Protocol):
    """Packs by name, and a few small notes. Whatever fails is E1110, or E1002 where no space is left."""

    location: str

    def write(self, name: str, pieces: Sequence[bytes]) -> None:
        """Durable once `sync` returns."""
        ...

    def sync(self) -> None: ...

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Each range (begin, end) is shorter, or empty, where the pack ends before. Raises PackGone."""
        ...

    def read_whole(self, name: str) -> bytes:
        """Raises PackGone."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Those that are gone already do not count."""
        ...

    def set_aside(self, name: str) -> str:
        """Out of the way, for somebody to look at. Returns where it is now."""
        ...

    def packs(self) -> dict[str, int]:
        """Names and sizes of all."""
        ...

    def bytes_free(self) -> int | None: ...

    def write_note(self, name: str, content: bytes) -> None:
        """Small, replaced as a whole, durable."""
        ...

    def read_note(self, name: str) -> bytes | None: ...

    def delete_note(self, name: str) -> None: ...

    def notes(self, folder: str) -> list[str]:
        """Names of all notes `FOLDER/…`."""
        ...


class FolderStorage:
    """Packs as files of a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder, and removes what a kill left of packs that were not acknowledged."""
        self.location = str(folder)
        self._folder, self._packs = folder, folder / PACKS
        with _errors(folder):
            for one in (self._packs, folder / KEYS):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
                for entry in os.scandir(one):
                    if entry.name.startswith(_DRAFT_PREFIX):
                        os.unlink(entry.path)
            _sync_folder(folder)

    def write(self, name: str, pieces: Sequence[bytes]) -> None:
        draft = self._packs / f"{_DRAFT_PREFIX}{name}"
        with _errors(draft):
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                try:
                    _write_all(file, pieces)
                    os.fsync(file)
                finally:
                    os.close(file)
                os.rename(draft, self._packs / name)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft)
                raise

    def sync(self) -> None:
        with _errors(self._packs):
            _sync_folder(self._packs)

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._opened(name) as file:
            return [_read(file, begin, end) for begin, end in ranges]

    def read_whole(self, name: str) -> bytes:
        with self._opened(name) as file:
            return _read(file, 0, os.fstat(file).st_size)

    def delete(self, names: Iterable[str]) -> None:
        with _errors(self._packs):
            for name in names:
                with suppress(FileNotFoundError):
                    os.unlink(self._packs / name)

    def set_aside(self, name: str) -> str:
        kept = self._folder / QUARANTINE / name
        with _errors(kept):
            kept.parent.mkdir(mode=0o700, exist_ok=True)
            os.rename(self._packs / name, kept)
            _sync_folder(self._packs)
        return str(kept)

    def packs(self) -> dict[str, int]:
        with _errors(self._packs):
            return {entry.name: entry.stat().st_size for entry in os.scandir(self._packs) if entry.is_file()}

    def bytes_free(self) -> int | None:
        with _errors(self._packs):
            disk = os.statvfs(self._packs)
        return disk.f_bavail * disk.f_frsize

    def write_note(self, name: str, content: bytes) -> None:
        path = self._folder / name
        with _errors(path):
            rewrite(path, content)
            _sync_folder(path.parent)

    def read_note(self, name: str) -> bytes | None:
        path = self._folder / name
        with _errors(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def delete_note(self, name: str) -> None:
        path = self._folder / name
        with _errors(path):
            path.unlink(missing_ok=True)
            _sync_folder(path.parent)

    def notes(self, folder: str) -> list[str]:
        with _errors(self._folder / folder):
            found = os.listdir(self._folder / folder)
        return sorted(f"{folder}/{name}" for name in found if not name.startswith(_DRAFT_PREFIX))

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with _errors(self._packs / name):
            try:
                file = os.open(self._packs / name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise PackGone(name) from None
            try:
                yield file
            finally:
                os.close(file)


class Reserve:
    """Space that is given up when the disk is full: without some, an index could not even write what may go."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RESERVE

    def fill(self) -> None:
        """As far as there is space."""
        with suppress(OSError):
            disk = os.statvfs(self._path.parent)
            size = min(RESERVE_BYTES, int(disk.f_blocks * disk.f_frsize * RESERVE_SHARE_MAX))
            if self._path.exists() and self._path.stat().st_size == size:
                return
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, size)
            except OSError:
                os.unlink(self._path)
            finally:
                os.close(file)

    def give_up(self) -> None:
        self._path.unlink(missing_ok=True)


def _write_all(file: int, pieces: Sequence[bytes]) -> None:
    """Many pieces at a time, without putting them together first."""
    left = list(pieces)
    while left:
        some = left[:_PIECES_MAX]
        written = os.writev(file, some)
        done = 0
        for piece in some:
            if written < len(piece):
                break
            written -= len(piece)
            done += 1
        del left[:done]
        if written:  # inside of the next piece
            left[0] = left[0][written:]


def _read(file: int, begin: int, end: int) -> bytes:
    """Less where the file ends before, and nothing where the disk cannot read: both are damage, which callers find."""
    try:
        found = os.pread(file, end - begin, begin)
        while len(found) < end - begin and (more := os.pread(file, end - begin - len(found), begin + len(found))):
            found += more
    except OSError as error:
        if error.errno in _LOST:
            return b""
        raise
    return found


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, str(path)) from error


def storage_error(error: BaseException, where: str) -> HarchError:
    """What a failure means for people. A full disk has its own error, because people can mend it."""
    if (isinstance(error, OSError) and error.errno in _FULL) or "disk is full" in str(error):
        return HarchError(
            "E1002",
            f"no space left for content in {where}",
            hint="free space on this disk; `harch content collect` removes what nobody needs",
            retry_after_s=5,
        )
    return HarchError(
        "E1110", f"the content store cannot use {where}: {error}", hint="`harch doctor` checks it", retry_after_s=5
    )
