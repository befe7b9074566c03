"""How does a folder become a tree? Each file is cut into chunks named by their hash, and a manifest lists them.

Nothing is kept of the files but these names: whoever uploads a chunk reads it again, and it is compared with its name
then. A file that changes while it is read is read once more, and after a few times refused: no tree holds half of one
content and half of another.
"""

from __future__ import annotations

import os
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from harch.base.compile_once import is_compiled
from harch.base.errors import HarchError
from harch.content import chunking
from harch.content.beneath import Base, is_link_error, open_file
from harch.content.file_cache import FileCache
from harch.content.file_chunks import BUFFER_BYTES, cut_file, read_exactly
from harch.content.folder_scan import FileStamp as FileStamp
from harch.content.folder_scan import FolderScan as FolderScan
from harch.content.folder_scan import OutsideLinks as OutsideLinks
from harch.content.folder_scan import ScannedEntry as ScannedEntry
from harch.content.folder_scan import scan as scan
from harch.content.folder_scan import size_text, stamp_of
from harch.content.frames import chunk_id
from harch.content.model import (
    CHUNK_BYTES_MAX,
    ROOT_VERSION,
    ChunkRef,
    EntryKind,
    TreeEntry,
    TreeRoot,
    check_entries,
    encode_root,
)
from harch.content.parallel import for_each

Progress = Callable[[int], None]

THREADS_MAX = 4
THREADS_FROM_BYTES = 16 * 1024 * 1024  # for less, starting threads costs more than it saves
KERNEL_FROM_BYTES = 160 * 1024 * 1024  # loading it takes 0.5 s of CPU, cutting so much without it 0.5 s more
READ_ATTEMPTS_MAX = 3
GROUP_BYTES = 4 * 1024 * 1024  # of small files that one thread takes at once
TAILS_BYTES_MAX = 16 * 1024 * 1024
MANIFEST_CHUNK_BYTES_MIN = 64 * 1024
MANIFEST_CHUNK_BYTES = 512 * 1024
_CUT_MASK = 0xFF  # one path in 256 may begin a chunk of a manifest


def no_progress(_: int) -> None:
    """For callers who show none."""


class BuiltTree(Struct, frozen=True, kw_only=True):
    """The tree of a list of entries: its digest, and the bytes of those chunks that are not of files."""

    digest: str
    root: TreeRoot
    chunks: dict[bytes, bytes]  # the root's, and those of the manifest


def build_tree(entries: Iterable[TreeEntry]) -> BuiltTree:
    """Raises E1105 for entries that no tree may have."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    check_entries(ordered)
    chunks: dict[bytes, bytes] = {}
    refs = []
    for piece in cut_manifest(ordered):
        name = chunk_id(piece)
        chunks[name] = piece
        refs.append(ChunkRef(name, len(piece)))
    files = [entry for entry in ordered if entry.kind is EntryKind.FILE]
    root = TreeRoot(ROOT_VERSION, sum(entry.size for entry in files), len(files), tuple(refs))
    encoded = encode_root(root)
    name = chunk_id(encoded)
    chunks[name] = encoded
    return BuiltTree(digest=name.hex(), root=root, chunks=chunks)


def cut_manifest(entries: list[TreeEntry]) -> Iterator[bytes]:
    """What `encode_manifest` makes of entries in order, in chunks that begin with an entry.

    Which one follows from its path, so a file that changes makes one new chunk of a large manifest, and one that comes
    or goes makes one or two. That needs no kernel for cutting: most folders are packed without loading one.
    """
    encode = msgspec.msgpack.Encoder().encode
    held = [_array_head(len(entries))]
    size = len(held[0])
    for entry in entries:
        encoded = encode(entry)
        may_begin = size >= MANIFEST_CHUNK_BYTES_MIN and not zlib.crc32(entry.path.encode()) & _CUT_MASK
        if may_begin or size >= MANIFEST_CHUNK_BYTES:
            yield from _pieces(b"".join(held))
            held, size = [], 0
        held.append(encoded)
        size += len(encoded)
    yield from _pieces(b"".join(held))


def _pieces(data: bytes) -> Iterator[bytes]:
    """The entry of a huge file alone is longer than a chunk may be."""
    for at in range(0, len(data), CHUNK_BYTES_MAX):
        yield data[at : at + CHUNK_BYTES_MAX]


def _array_head(count: int) -> bytes:
    """Of a list in msgpack, as its encoder writes it."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


class PackedFolder:
    """A tree, and where its chunks are. `raw` may be called from any thread."""

    def __init__(
        self, base: Base, entries: list[TreeEntry], tails: dict[bytes, bytes], cache: FileCache | None
    ) -> None:
        built = build_tree(entries)
        self.digest, self.root, self.entries = built.digest, built.root, entries
        self._base, self._cache, self._lock = base, cache, threading.Lock()
        self._held = built.chunks | tails
        self._sizes: dict[bytes, int] = {}
        self._places: dict[bytes, tuple[TreeEntry, int]] = {}
        for entry in entries:
            at = 0
            for chunk in entry.chunks:
                if chunk.id not in self._sizes:
                    self._sizes[chunk.id] = chunk.size
                    self._places[chunk.id] = (entry, at)
                at += chunk.size
        for name, content in built.chunks.items():
            self._sizes[name] = len(content)

    @property
    def size_bytes(self) -> int:
        return self.root.size_bytes

    @property
    def files(self) -> int:
        return self.root.files

    @property
    def chunk_bytes(self) -> int:
        """Of all chunks, each once, with those of the manifest: what an upload to an empty store brings there."""
        return sum(self._sizes.values())

    @property
    def ids(self) -> list[bytes]:
        """The names of all chunks, each once: of files in order, of the manifest, and the root last."""
        return list(self._sizes)

    def size_of(self, chunk: bytes) -> int:
        return self._sizes[chunk]

    def raw(self, chunk: bytes) -> bytes:
        """Its bytes, which are what its name says. Raises E1106 if the file has changed since, KeyError for others."""
        held = self._held.get(chunk)
        if held is not None:
            return held
        entry, at = self._places[chunk]
        try:
            with self._base.opened() as base:
                descriptor = open_file(base, entry.path)
                try:
                    raw = read_exactly(descriptor, self._sizes[chunk], at)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise _unreadable(entry.path, error) from error
        if chunk_id(raw) != chunk:
            if self._cache is not None:
                with self._lock:
                    self._cache.distrust(entry.path)
            raise _changed(entry.path)
        return raw


def pack(
    scan: FolderScan,
    *,
    cache: FileCache | None = None,
    progress: Progress = no_progress,
    threads: int | None = None,
) -> PackedFolder:
    """Reads what the cache does not know. `progress` counts the bytes of files, known ones too.

    An exception that `progress` raises stops it. Raises E1106 for files that cannot be read or go on changing.
    """
    packing = _Packing(scan, cache, progress)
    total = sum(scan.entries[number].stamp.size for number in packing.unknown)
    if threads is None:
        threads = min(THREADS_MAX, len(os.sched_getaffinity(0))) if total >= THREADS_FROM_BYTES else 1
    _load_kernel_for(packing.bytes_to_cut)
    try:
        with scan.base.opened() as base:
            for_each(packing.groups(), lambda group: packing.read(base, group), threads=threads)
    except OSError as error:
        raise HarchError("E1106", f"`{scan.folder}` cannot be read: {error.strerror}", hint="try again") from error
    entries = packing.entries()
    if cache is not None:
        cache.save()
    return PackedFolder(scan.base, entries, packing.tails, cache)


def _load_kernel_for(size_bytes: int) -> None:
    """Cutting alone finds out late that there is much to do; here it is known. Nothing is compiled for it."""
    if size_bytes < KERNEL_FROM_BYTES:
        return
    with suppress(ImportError):
        from harch.content.chunking_kernels import SOURCES

        if is_compiled("content", SOURCES):
            chunking.load_kernel()


class _Packing:
    """One run: which files must be read, and what they turned out to be."""

    def __init__(self, scan: FolderScan, cache: FileCache | None, progress: Progress) -> None:
        self._scan, self._cache, self._progress = scan, cache, progress
        self._chunks: dict[int, tuple[ChunkRef, ...]] = {}  # of `scan.entries`, by number
        self._modes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._buffers = threading.local()
        self._size_bytes = 0
        self.unknown: list[int] = []
        self.bytes_to_cut = 0  # at most: of files that were cut before, mostly little is cut again
        self.tails: dict[bytes, bytes] = {}
        for number, entry in enumerate(scan.entries):
            if entry.kind is not EntryKind.FILE:
                continue
            known = cache.find(entry.path, entry.stamp) if cache is not None else None
            if known is None:
                self.unknown.append(number)
                if cache is None or not cache.earlier_chunks(entry.path):
                    self.bytes_to_cut += entry.stamp.size
            else:
                self._chunks[number] = known
                self._count(entry.stamp.size)
        self._with_tails = frozenset(_newest(scan.entries, self.unknown))

    def groups(self) -> Iterator[list[int]]:
        """Small files together: a thread that took them one by one would mostly wait for its turn."""
        group: list[int] = []
        size = 0
        for number in self.unknown:
            group.append(number)
            size += self._scan.entries[number].stamp.size
            if size >= GROUP_BYTES or len(group) >= 256:
                yield group
                group, size = [], 0
        if group:
            yield group

    def read(self, base: int, group: list[int]) -> None:
        for number in group:
            entry = self._scan.entries[number]
            began_ns = self._cache.now_ns() if self._cache is not None else 0
            try:
                stamp, mode, chunks, tail = self._read_file(base, entry.path)
            except OSError as error:
                raise _unreadable(entry.path, error) from error
            with self._lock:
                self._chunks[number], self._modes[number] = chunks, mode
                if number in self._with_tails and chunks:
                    self.tails[chunks[-1].id] = tail
                if self._cache is not None:
                    self._cache.add(entry.path, stamp, chunks, read_from_ns=began_ns)
                self._count(stamp.size)

    def _read_file(self, base: int, path: str) -> tuple[FileStamp, int, tuple[ChunkRef, ...], bytes]:
        for _ in range(READ_ATTEMPTS_MAX):
            descriptor = open_file(base, path)
            try:
                before = os.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode):
                    raise _changed(path)
                known = self._cache.earlier_chunks(path) if self._cache is not None else ()
                found = cut_file(descriptor, before.st_size, before=known, buffer=self._buffer())
                stamp = stamp_of(before)
                if found is not None and stamp_of(os.fstat(descriptor)) == stamp:
                    return stamp, before.st_mode & 0o777, *found
            finally:
                os.close(descriptor)
        raise _changed(path)

    def _buffer(self) -> memoryview:
        view: memoryview | None = getattr(self._buffers, "view", None)
        if view is None:
            view = self._buffers.view = memoryview(bytearray(BUFFER_BYTES))
        return view

    def _count(self, size: int) -> None:
        self._size_bytes += size
        if self._size_bytes > self._scan.bytes_max:  # files may have grown since they were scanned
            raise HarchError(
                "E1108",
                f"`{self._scan.folder}` grows: it has more than {size_text(self._scan.bytes_max)} now",
                hint="pack it when nothing is being written to it",
            )
        self._progress(size)

    def entries(self) -> list[TreeEntry]:
        return [
            TreeEntry(
                entry.path,
                entry.kind,
                self._modes.get(number, entry.mode),
                self._chunks.get(number, ()),
                entry.target,
            )
            for number, entry in enumerate(self._scan.entries)
        ]


def _newest(entries: list[ScannedEntry], unknown: list[int]) -> Iterator[int]:
    """The files that were written last. Work that is running may write to them again before they are uploaded, mostly
    at their end; so their last chunks are kept in memory, up to a limit."""
    room = TAILS_BYTES_MAX
    for number in sorted(unknown, key=lambda number: -entries[number].stamp.mtime_ns):
        room -= min(entries[number].stamp.size, CHUNK_BYTES_MAX)
        if room < 0:
            return
        yield number


def _unreadable(path: str, error: OSError) -> HarchError:
    if isinstance(error, FileNotFoundError) or is_link_error(error):
        return _changed(path)
    return HarchError(
        "E1106",
        f"`{path}` cannot be read: {error.strerror}",
        hint="exclude it, or make it readable",
        meta={"paths": [path]},
    )


def _changed(path: str) -> HarchError:
    return HarchError(
        "E1106",
        f"`{path}` changed while it was being packed",
        hint="try again when nothing is writing to it, or exclude it",
        meta={"paths": [path]},
    )
