"""Who compiles, if several processes start together? One of this user's, and the others wait for a while.

What was compiled is noted, so that later starts wait for nobody. Note and lock lie in a folder that belongs to this
user alone: in a shared one, anybody could hold the lock, or put a link in its place.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harch.base.compiling import SourceStamp

FOLDER = "harch"  # in the user's cache
WAIT_S_MAX = 180.0  # compiling takes about a minute; one that takes longer is not waited for
NOTES_KEPT = 32  # of all versions and installations; an old one that is missed costs a wait
_LOOK_S = 0.2
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def compile_once(what: str, sources: SourceStamp, *, wait_s_max: float = WAIT_S_MAX) -> Iterator[None]:
    """Around loading or compiling the kernels called `what`. Without a folder of one's own nobody waits at all."""
    folder = _own_folder()
    if folder is None:
        yield
        return
    try:
        note = f"{what}.{_key(sources)}.done"
        lock = None if _exists(note, folder) else _lock(f"{what}.lock", folder, wait_s_max)
        try:
            yield
            _note(note, folder)
        finally:
            if lock is not None:
                os.close(lock)
    finally:
        os.close(folder)


def is_compiled(what: str, sources: SourceStamp) -> bool:
    """Whether the kernels called `what` only have to be loaded."""
    folder = _own_folder()
    if folder is None:
        return False
    try:
        return _exists(f"{what}.{_key(sources)}.done", folder)
    finally:
        os.close(folder)


def cache_root() -> Path:
    """Where this user's caches are; XDG says so."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return Path(configured) if configured.startswith("/") else Path(os.path.expanduser("~")) / ".cache"


def _own_folder() -> int | None:
    """Open, ours, and closed to others; None if it cannot be had."""
    path = cache_root() / FOLDER
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(folder)
    if found.st_uid != os.geteuid():
        os.close(folder)
        return None
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.fchmod(folder, 0o700)
    return folder


def _lock(name: str, folder: int, wait_s_max: float) -> int | None:
    try:
        lock = os.open(name, _OPEN, 0o600, dir_fd=folder)
    except OSError:
        return None
    until_s = time.monotonic() + wait_s_max
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            if time.monotonic() >= until_s:
                os.close(lock)
                return None
        time.sleep(_LOOK_S)


def _note(note: str, folder: int) -> None:
    """This one is compiled; the oldest notes go."""
    if _exists(note, folder):
        return
    with suppress(OSError):
        os.close(os.open(note, _OPEN, 0o600, dir_fd=folder))
        notes = [name for name in os.listdir(folder) if name.endswith(".done")]
        notes.sort(key=lambda name: os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns)
        for name in notes[:-NOTES_KEPT]:
            os.unlink(name, dir_fd=folder)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _key(sources: SourceStamp) -> str:
    """Of everything that decides whether the machine code on disk is still good."""
    try:
        compiler = version("numba")
    except PackageNotFoundError:
        compiler = ""
    parts = (sources, compiler, sys.version, sys.prefix, str(Path(__file__).parent), os.uname().machine)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
