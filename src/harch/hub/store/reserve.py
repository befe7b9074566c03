"""What is left when the disk is full? Room behind the end of the hub's own files, so that work can still be stopped.

A file that is deleted when the disk is full would help whoever writes next, and that is mostly what filled the disk.
Blocks that belong to the database, its log and its digests already can be taken by nobody else: they are reserved
behind the ends of these files (`fallocate`, the size stays), and used as they grow. Whether they can be reserved anew
is asked every few seconds; where they cannot, the disk is full, and the hub knows it before a write has failed. File
systems that cannot do this keep no reserve: there the first write that fails tells.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

RESERVE_BYTES = 4 * 1024 * 1024  # of each file: hundreds of stops
DISK_SHARE_MAX = 1 / 32  # of small disks, e.g. in tests
FULL = (errno.ENOSPC, errno.EDQUOT)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_NOT_HERE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Reserve:
    """Of one database. Its files stay open: closing one would give up the locks that SQLite holds in this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[Path, int] = {}
        self._fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
        if self._fallocate is not None:
            self._fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)

    @property
    def bytes_each(self) -> int:
        disk = os.statvfs(self._path.parent)
        return min(RESERVE_BYTES, int(disk.f_blocks * disk.f_frsize * DISK_SHARE_MAX))

    def renew(self, database_bytes: int) -> None:
        """`database_bytes`: how large the database is, with what only its log holds. Raises OSError on a full disk."""
        size = self.bytes_each
        self._hold(self._path, max(0, database_bytes - self._path.stat().st_size) + size)
        for suffix in ("-wal", "-sums"):  # nothing goes from the log to the database before its digests are written
            self._hold(self._path.with_name(f"{self._path.name}{suffix}"), size)

    def close(self) -> None:
        """Only when the database has been closed."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _hold(self, path: Path, size: int) -> None:
        if self._fallocate is None:
            return
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if self._fallocate(file, _KEEP_SIZE, os.fstat(file).st_size, size) != 0:
            number = ctypes.get_errno()
            if number not in _NOT_HERE:
                raise OSError(number, os.strerror(number), str(path))
