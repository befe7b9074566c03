"""Which chunks is a file made of, if it has not changed since they were last cut? One cache per folder that is packed.

A file is known by its path, size, mtime, ctime and inode. That proves nothing about a file that was written at about
the time when it was read: a second write within the same tick of the clock leaves every one of them as it was. So what
was written shortly before it was read, or later by the clock, is not kept (git calls such files racily clean), and is
read again next time. ctime is what makes that safe: no program can set it, whatever it does to mtime.

The cache is only a shortcut: a file that is torn, of another version or somebody else's is no cache. Each run replaces
it whole, under another name first, so runs beside each other lose nothing but time.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import blake3
import msgspec
from msgspec import Struct

from harch.base.clock import Clock, SystemClock, epoch_ns
from harch.base.compile_once import cache_root
from harch.content.chunking import CHUNK_BYTES_AVERAGE, CHUNK_BYTES_MIN
from harch.content.folder_scan import FileStamp
from harch.content.model import CHUNK_BYTES_MAX, DIGEST_BYTES, ChunkRef

FOLDER = Path("harch", "files")  # in the user's cache
CACHES_MAX = 128  # folders that are remembered
CACHES_BYTES_MAX = 512 * 1024 * 1024
UNUSED_S_MAX = 60 * 86_400.0
# Times move in ticks of the kernel, of at most 10 ms; a time without a fraction comes from a file system that keeps
# seconds, of which FAT counts every second one.
TICK_NS = 20_000_000
COARSE_TICK_NS = 2_000_000_000
_SECOND_NS = 1_000_000_000
# Other limits make other chunks of the same file.
_VERSION = f"harch file cache 1: {CHUNK_BYTES_MIN} {CHUNK_BYTES_AVERAGE} {CHUNK_BYTES_MAX}\n".encode()


class CachedFile(Struct, frozen=True, array_like=True, gc=False):
    stamp: FileStamp
    chunks: tuple[ChunkRef, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, CachedFile]).decode


class FileCache:
    """What is known of the files of one folder. For one thread; `save` keeps what was found or added since."""

    def __init__(self, folder: Path, *, clock: Clock | None = None, root: Path | None = None) -> None:
        """`root`: where caches are kept; this user's cache folder by default."""
        self._clock = clock or SystemClock()
        self._root = (root or cache_root()) / FOLDER
        self._name = blake3.blake3(os.fsencode(os.path.realpath(folder))).hexdigest(length=16)
        self._known = self._read()
        self._used: dict[str, CachedFile] = {}
        self._is_changed = False

    def find(self, path: str, stamp: FileStamp) -> tuple[ChunkRef, ...] | None:
        known = self._known.get(path)
        if known is None or known.stamp != stamp:
            return None
        self._used[path] = known
        return known.chunks

    def earlier_chunks(self, path: str) -> tuple[ChunkRef, ...]:
        """What it was made of at some time: a file that has changed is mostly still made of these."""
        known = self._known.get(path)
        return known.chunks if known is not None else ()

    def add(self, path: str, stamp: FileStamp, chunks: tuple[ChunkRef, ...], *, read_from_ns: int) -> None:
        """`read_from_ns`: when reading it began, in nanoseconds since 1970."""
        if is_settled(stamp, read_from_ns):
            self._used[path] = CachedFile(stamp, chunks)
            self._is_changed = True

    def now_ns(self) -> int:
        return epoch_ns(self._clock.now())

    def distrust(self, path: str) -> None:
        """The file is not what the cache says, whatever its times are. Durable at once."""
        self._used.pop(path, None)
        self._is_changed = True
        self.save()

    def save(self) -> None:
        """Does nothing where nothing has changed, or where it cannot be written: it is only a cache."""
        if not self._is_changed and len(self._used) == len(self._known):
            return
        with suppress(OSError):
            self._write(_encode(self._used))
            self._known, self._is_changed = dict(self._used), False
            self._make_room()

    def _read(self) -> dict[str, CachedFile]:
        try:
            descriptor = os.open(self._root / self._name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if found.st_uid != os.geteuid() or found.st_size > CACHES_BYTES_MAX:
                    return {}
                raw = file.read()
            os.utime(self._root / self._name, follow_symlinks=False)  # its age is that of its last use
        except OSError:
            return {}
        head = len(_VERSION) + DIGEST_BYTES
        content = memoryview(raw)[head:]
        if raw[:head] != _VERSION + blake3.blake3(content).digest():
            return {}
        try:
            return _decode(content)
        except msgspec.DecodeError:
            return {}

    def _write(self, content: bytes) -> None:
        if len(content) > CACHES_BYTES_MAX:
            return
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(self._root, follow_symlinks=False)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            return  # others could say what this user's files contain
        draft = self._root / f".{self._name}.{os.getpid()}"
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(_VERSION + blake3.blake3(content).digest())
                file.write(content)
            os.replace(draft, self._root / self._name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _make_room(self) -> None:
        """The caches that were not used for the longest time go; this one was used now, whatever the clock says."""
        oldest_s = self.now_ns() / _SECOND_NS - UNUSED_S_MAX
        with os.scandir(self._root) as listing:
            others = [entry for entry in listing if entry.name != self._name]
            found = sorted(((entry.stat(follow_symlinks=False), entry.path) for entry in others), key=_by_age)
        kept, kept_bytes = 1, os.stat(self._root / self._name).st_size
        for status, path in found:
            kept, kept_bytes = kept + 1, kept_bytes + status.st_size
            if kept > CACHES_MAX or kept_bytes > CACHES_BYTES_MAX or status.st_mtime < oldest_s:
                with suppress(FileNotFoundError):
                    os.unlink(path)


def _by_age(found: tuple[os.stat_result, str]) -> int:
    return -found[0].st_mtime_ns


def is_settled(stamp: FileStamp, read_from_ns: int) -> bool:
    """Whether a write after it was read would have changed its times."""
    return all(moment + _tick_ns(moment) < read_from_ns for moment in (stamp.mtime_ns, stamp.ctime_ns))


def _tick_ns(moment_ns: int) -> int:
    return TICK_NS if moment_ns % _SECOND_NS else COARSE_TICK_NS
