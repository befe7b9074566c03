"""How do chunks become files again, so that nothing outside of the folder is ever written?

Whatever a tree says, and whatever somebody links or renames in the folder meanwhile: each path is opened step by step
from the folder's descriptor, through no link. A file is written under another name, in a folder of parts beside the
others, and takes its place when it is whole; so no reader sees half of one. Parts bear the digest of the tree: what was
cut goes on where it stood, and every chunk that is there already is compared with its name before it counts.

Nothing is synced. Whoever needs the files after a power cut fetches again, and keeps what is right.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from harch.base.errors import HarchError
from harch.content.beneath import FOLDER_FLAGS, base_of, is_link_error, open_file, open_folder
from harch.content.frames import chunk_id
from harch.content.ignore import PARTS_PREFIX, PARTS_SUFFIX
from harch.content.model import ChunkRef, EntryKind, TreeEntry
from harch.content.packing import Progress, build_tree, no_progress

_PERMISSIONS = 0o777
_WRITE = 0o222
_ENTER = 0o500  # for the owner of any folder: it could not even be removed otherwise
_PART_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LINK_DRAFT = "link"


class TreeWriter:
    """One tree that is being written to a folder. Within `with`: `wanted` says what it lacks, `write` brings it from
    any thread, `finish` ends it. Raises E1105 for entries that no tree may have, E1113 for what cannot be written."""

    def __init__(
        self,
        entries: list[TreeEntry],
        folder: Path,
        *,
        read_only: bool = False,
        within: Path | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._entries = entries
        self._name = f"{PARTS_PREFIX}{build_tree(entries).digest[:16]}{PARTS_SUFFIX}"
        self._folders = {entry.path: entry for entry in _of_kind(entries, EntryKind.FOLDER)}
        self._parents = _parents_of(entries)
        self._path, self._within, self._progress = folder, within, progress
        self._mask = _PERMISSIONS & ~_WRITE if read_only else _PERMISSIONS
        self._lock = threading.RLock()
        self._stack = ExitStack()
        self._base = self._parts = -1  # descriptors
        self._had_parts = False
        self._found_parts: frozenset[str] | None = None
        self._open: dict[int, int] = {}  # parts being written: number of the entry, descriptor
        self._remaining: dict[int, int] = {}  # chunks that they still lack

    def __enter__(self) -> TreeWriter:
        try:
            base = base_of(self._path, self._within)
        except ValueError as error:
            raise HarchError("E1113", str(error), hint="name a folder below it") from error
        with ExitStack() as stack, self._explained("."):
            self._base = stack.enter_context(base.opened(make=True))
            self._had_parts = self._name in os.listdir(self._base)
            # Before anything is fetched, so that what stands in the way is said at once.
            for path in sorted(self._parents | self._folders.keys()):
                with self._explained(path):
                    self._make_folder(path)
            for entry in _of_kind(self._entries, EntryKind.LINK):
                with self._explained(entry.path):
                    self._check_no_folder(entry.path)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        if self._parts >= 0:
            with suppress(OSError):  # it holds parts, which the next attempt uses
                os.rmdir(self._name, dir_fd=self._base)
            os.close(self._parts)
            self._parts = -1
        self._stack.close()

    def wanted(self) -> Iterator[tuple[int, int, ChunkRef]]:
        """Each chunk that the folder lacks: number of the entry, place in the file, chunk. Lazy: files that are right
        already are read, and counted as progress, when it is their turn."""
        for number, entry in enumerate(self._entries):
            if entry.kind is not EntryKind.FILE:
                continue
            with self._explained(entry.path):
                if self._is_right(entry):
                    self._progress(entry.size)
                    continue
                lacking = self._lacking(number, entry)
                with self._lock:
                    self._remaining[number] = len(lacking)
                if not lacking:
                    self._complete(number, self._part(number))
            for at, chunk in lacking:
                yield number, at, chunk

    def write(self, number: int, at: int, raw: bytes) -> None:
        with self._explained(self._entries[number].path):
            descriptor = self._part(number)
            view = memoryview(raw)
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written
            with self._lock:
                self._remaining[number] -= 1
                is_whole = not self._remaining[number]
            if is_whole:
                self._complete(number, descriptor)

    def finish(self) -> None:
        """Links last, so that no file was written through one; then the modes of folders, of which some may be closed
        to us from then on."""
        for entry in _of_kind(self._entries, EntryKind.LINK):
            with self._explained(entry.path):
                self._link(entry)
        for path in sorted(self._folders, reverse=True):
            with self._explained(path):
                self._set_mode(path, self._folders[path].mode & self._mask | _ENTER)

    # Files

    def _is_right(self, entry: TreeEntry) -> bool:
        try:
            descriptor = open_file(self._base, entry.path)
        except OSError:
            return False  # if something is in the way, writing says so
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder", entry.path)
            # A file of several names is written anew: its mode would change everywhere.
            if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size or found.st_nlink > 1:
                return False
            at = 0
            for chunk in entry.chunks:
                if not _holds(descriptor, at, chunk):
                    return False
                at += chunk.size
            if stat.S_IMODE(found.st_mode) != entry.mode & self._mask:
                os.fchmod(descriptor, entry.mode & self._mask)
        finally:
            os.close(descriptor)
        return True

    def _lacking(self, number: int, entry: TreeEntry) -> list[tuple[int, ChunkRef]]:
        """What its part does not hold yet."""
        if self._found_parts is None:
            self._found_parts = frozenset(os.listdir(self._parts_folder()) if self._had_parts else ())
        descriptor = self._part(number) if str(number) in self._found_parts else -1
        lacking, at = [], 0
        for chunk in entry.chunks:
            if descriptor >= 0 and _holds(descriptor, at, chunk):
                self._progress(chunk.size)
            else:
                lacking.append((at, chunk))
            at += chunk.size
        return lacking

    def _part(self, number: int) -> int:
        with self._lock:
            descriptor = self._open.get(number)
            if descriptor is None:
                descriptor = self._open[number] = _open_part(self._parts_folder(), str(number))
            return descriptor

    def _complete(self, number: int, descriptor: int) -> None:
        """The part takes its place."""
        entry = self._entries[number]
        os.ftruncate(descriptor, entry.size)  # an older part may have been longer
        os.fchmod(descriptor, entry.mode & self._mask)
        self._place(str(number), entry.path)
        with self._lock:
            del self._open[number], self._remaining[number]
        os.close(descriptor)

    def _place(self, draft: str, path: str) -> None:
        folder, _, name = path.rpartition("/")
        descriptor = self._open_folder(folder)
        try:
            os.rename(draft, name, src_dir_fd=self._parts, dst_dir_fd=descriptor)
        finally:
            os.close(descriptor)

    # Links and folders

    def _check_no_folder(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        descriptor = open_folder(self._base, folder)
        try:
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        finally:
            os.close(descriptor)

    def _link(self, entry: TreeEntry) -> None:
        folder, _, name = entry.path.rpartition("/")
        descriptor = self._open_folder(folder)
        try:
            with suppress(OSError):
                if os.readlink(name, dir_fd=descriptor) == entry.target:
                    return
        finally:
            os.close(descriptor)
        parts = self._parts_folder()
        with suppress(FileNotFoundError):
            os.unlink(_LINK_DRAFT, dir_fd=parts)
        os.symlink(entry.target, _LINK_DRAFT, dir_fd=parts)
        self._place(_LINK_DRAFT, entry.path)

    def _make_folder(self, path: str) -> None:
        """One that is there is not touched: it may be read-only, and lack nothing."""
        try:
            os.close(open_folder(self._base, path))
        except FileNotFoundError:
            os.close(self._open_folder(path.rpartition("/")[0]))
            os.close(self._open_folder(path))

    def _open_folder(self, path: str) -> int:
        """Made if it is missing. One of the tree's own becomes writable, as `finish` sets its mode again."""
        return open_folder(self._base, path, make=True, writable=path in self._folders)

    def _set_mode(self, path: str, mode: int) -> None:
        descriptor = open_folder(self._base, path)
        try:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    # Parts

    def _parts_folder(self) -> int:
        """Made by the first file that is written, so a folder that lacks nothing is not touched."""
        with self._lock:
            if self._parts < 0:
                self._parts = self._open_parts()
            return self._parts

    def _open_parts(self) -> int:
        _remove_old_parts(self._base, keep=self._name)
        with suppress(FileExistsError):
            os.mkdir(self._name, 0o700, dir_fd=self._base)
        descriptor = os.open(self._name, FOLDER_FLAGS, dir_fd=self._base)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "belongs to another user", self._name)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise HarchError(
                "E1113", f"these files are being written to {self._path} already", hint="wait until that has ended"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._cannot_write(path, error) from error

    def _cannot_write(self, path: str, error: OSError) -> HarchError:
        where = error.filename if isinstance(error.filename, str) and error.filename else path
        if is_link_error(error):
            why, hint = f"`{where}` is a file or a link there", "remove it, or name the folder that it leads to"
        elif isinstance(error, IsADirectoryError):
            why, hint = "it is a folder there", "remove it, or choose another folder"
        else:
            why, hint = str(error.strerror), "make room, or choose another folder"
        return HarchError("E1113", f"`{path}` cannot be written to {self._path}: {why}", hint=hint)


def _of_kind(entries: list[TreeEntry], kind: EntryKind) -> Iterator[TreeEntry]:
    return (entry for entry in entries if entry.kind is kind)


def _parents_of(entries: list[TreeEntry]) -> set[str]:
    parents: set[str] = set()
    for entry in entries:
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition("/")[0]
    return parents


def _holds(descriptor: int, at: int, chunk: ChunkRef) -> bool:
    raw = os.pread(descriptor, chunk.size, at)
    return len(raw) == chunk.size and chunk_id(raw) == chunk.id


def _open_part(parts: int, name: str) -> int:
    """A file of ours with this one name; what else may stand there is removed."""
    for _ in range(2):
        with suppress(OSError):
            descriptor = os.open(name, _PART_FLAGS, 0o600, dir_fd=parts)
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid():
                return descriptor
            os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parts)
    return os.open(name, _PART_FLAGS | os.O_EXCL, 0o600, dir_fd=parts)


def _remove_old_parts(base: int, *, keep: str) -> None:
    """Of other trees, which nobody is writing any more."""
    for name in os.listdir(base):
        if not name.startswith(PARTS_PREFIX) or not name.endswith(PARTS_SUFFIX) or name == keep:
            continue
        with suppress(OSError):
            descriptor = os.open(name, FOLDER_FLAGS, dir_fd=base)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for part in os.listdir(descriptor):
                    os.unlink(part, dir_fd=descriptor)
                os.rmdir(name, dir_fd=base)
            finally:
                os.close(descriptor)
