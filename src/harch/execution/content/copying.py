"""How does a task get files of its own that are on the node already? As copies, which share blocks where possible."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

from harch.execution.content.cancellation import Cancellation

PIECE_BYTES = 64 * 1024 * 1024  # between two looks at whether it was called off
_NOT_HERE = frozenset({errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ETXTBSY})


def copy_tree(source: Path, target: Path, cancellation: Cancellation) -> None:
    """To a folder that is there and empty. Nobody else writes to either. What is read-only may be written again."""
    for parent, folders, names in os.walk(source):
        inside = os.path.relpath(parent, source)
        for name in folders:
            path, copy = os.path.join(parent, name), target / inside / name
            if os.path.islink(path):
                copy.symlink_to(os.readlink(path))
            else:
                copy.mkdir(mode=stat.S_IMODE(os.stat(path).st_mode) | stat.S_IRWXU)
        for name in names:
            cancellation.check()
            path, copy = os.path.join(parent, name), target / inside / name
            if os.path.islink(path):
                copy.symlink_to(os.readlink(path))
            else:
                _copy_file(path, copy, cancellation)


def _copy_file(source: str, target: Path, cancellation: Cancellation) -> None:
    with open(source, "rb") as file, open(target, "xb") as copy:
        found = os.fstat(file.fileno())
        os.fchmod(copy.fileno(), stat.S_IMODE(found.st_mode) | stat.S_IWUSR)
        left = found.st_size
        try:
            while left > 0 and (count := os.copy_file_range(file.fileno(), copy.fileno(), min(left, PIECE_BYTES))):
                left -= count
                cancellation.check()
        except OSError as error:
            if error.errno not in _NOT_HERE or left != found.st_size:
                raise
            shutil.copyfileobj(file, copy, PIECE_BYTES)
