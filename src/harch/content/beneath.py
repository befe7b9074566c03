"""How is a file below a folder opened, when somebody may put links in its way?

Step by step from the folder's own descriptor, and through no link: what is opened lies below the folder, whatever is
renamed or linked meanwhile. A task may do that to its working folder while its agent, which may read more, packs it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe that takes the place of a file would keep the one who opens it waiting for ever.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWNER_MAY_WRITE = stat.S_IWUSR | stat.S_IXUSR


@dataclass(frozen=True, slots=True)
class Base:
    """A folder. Links on the way to `trusted` are followed, none below it. `below` is its path from there."""

    trusted: Path
    below: str = ""

    @property
    def path(self) -> Path:
        return self.trusted / self.below

    @contextmanager
    def opened(self, *, make: bool = False) -> Iterator[int]:
        """Its descriptor. `make`: it is made if it is missing. Raises OSError."""
        if make:
            self.trusted.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.trusted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self.below:
                outer, descriptor = descriptor, -1
                try:
                    descriptor = open_folder(outer, self.below, make=make)
                finally:
                    os.close(outer)
            yield descriptor
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def base_of(folder: Path, within: Path | None) -> Base:
    """Raises ValueError where `folder` is not below `within`."""
    if within is None:
        return Base(Path(os.path.realpath(folder)))
    below = os.path.relpath(os.path.abspath(folder), os.path.abspath(within))
    if below == os.pardir or below.startswith(os.pardir + os.sep):
        raise ValueError(f"{folder} is not below {within}")
    return Base(Path(os.path.realpath(within)), "" if below == os.curdir else below)


def open_folder(base: int, path: str, *, make: bool = False, writable: bool = False) -> int:
    """`path` below an open folder; empty: another descriptor of that folder.

    `make`: folders that are missing are made. `writable`: its owner may change it from now on. Raises OSError; for a
    link or a file on the way it is NotADirectoryError and names the part of the path that is one.
    """
    current = os.open(".", FOLDER_FLAGS, dir_fd=base)
    at = 0
    while at < len(path):
        end = path.find("/", at)
        end = len(path) if end < 0 else end
        try:
            inner = _step(current, path[at:end], make)
        except NotADirectoryError as error:
            raise NotADirectoryError(errno.ENOTDIR, "is a file or a link", path[:end]) from error
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path[:end]) from error
        finally:
            os.close(current)
        current, at = inner, end + 1
    if writable:
        try:
            mode = stat.S_IMODE(os.fstat(current).st_mode)
            if mode & _OWNER_MAY_WRITE != _OWNER_MAY_WRITE:
                os.fchmod(current, mode | stat.S_IRWXU)
        except BaseException:
            os.close(current)
            raise
    return current


def _step(folder: int, name: str, make: bool) -> int:
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another thread made it
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, FOLDER_FLAGS, dir_fd=folder)


def open_file(base: int, path: str) -> int:
    """For reading. Raises OSError: `is_link_error` tells whether a link stands there."""
    folder, _, name = path.rpartition("/")
    if not folder:
        return os.open(name, READ_FLAGS, dir_fd=base)
    descriptor = open_folder(base, folder)
    try:
        return os.open(name, READ_FLAGS, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def is_link_error(error: OSError) -> bool:
    return error.errno in (errno.ELOOP, errno.ENOTDIR)
