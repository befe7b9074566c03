"""Who may read the state? The user that HarchOS runs as: folders 0700, files 0600, whatever the system's habits are."""

from __future__ import annotations

import os
import stat
from collections import deque
from pathlib import Path

UMASK = 0o077
ENTRIES_MAX = 200_000  # of one folder; what lies deeper is behind a folder that is closed already
_OTHERS = 0o077


def keep_files_private() -> None:
    """Of this process and of what it starts, from here on. Tasks of users get an ordinary mask again."""
    os.umask(UMASK)


def close_to_others(folder: Path, *, deep: bool = True) -> int:
    """Takes from others what an earlier version gave them: the folder and, if `deep`, all in it. Answers how many.

    `folder` itself may be a link, inside of it none is followed. What belongs to somebody else is left alone, and so is
    what cannot be changed.
    """
    changed, seen = 0, 0
    folders = deque([os.path.realpath(folder)])
    changed += _close(folders[0])
    while deep and folders and seen < ENTRIES_MAX:
        try:
            with os.scandir(folders.popleft()) as entries:
                for entry in entries:
                    seen += 1
                    if not entry.is_symlink():
                        changed += _close(entry.path)
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
        except OSError:
            continue
    return changed


def _close(path: str) -> int:
    try:
        found = os.stat(path, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        if not is_plain or not mode & _OTHERS or found.st_uid != os.geteuid():
            return 0
        # Through a descriptor: a link that takes the place of the file meanwhile is not followed.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, mode & ~_OTHERS)
        finally:
            os.close(descriptor)
    except OSError:
        return 0
    return 1
