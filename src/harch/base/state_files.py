"""How are files of the state kept safe?

Private to their owner (folders 0700, files 0600), read under a seal by which one flipped bit is put right, and set
aside where they are damaged.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import deque
from collections.abc import Collection
from pathlib import Path

from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent

# Where does a file go that is not as it was written? Beside its place, under a name that says so.
#
# Nothing that is damaged is deleted, and nothing that is damaged is used. `harch doctor` and the alert FilesDamaged
# name
# what waits; whoever has looked at it deletes it.


SUFFIX = ".damaged"
FOLDER = "quarantine"  # of stores whose parts are many files
COPIES_MAX = 16  # of one file: the newest are kept
FILES_MAX = 1000  # that are counted
_OF_TASKS = ("tasks", "checkpoints", "trash")  # of an agent: what lies there is named by users


def set_aside(path: Path, why: str, *, code: str) -> Path:
    """Renames the file and says so. A second damage of the same file gets a number."""
    earlier = sorted(path.parent.glob(f"{path.name}*{SUFFIX}"), key=lambda one: one.stat().st_mtime_ns)
    for old in earlier[: max(0, len(earlier) + 1 - COPIES_MAX)]:
        _log.warning("%d damaged copies of %s are kept; dropping %s", COPIES_MAX, path.name, old.name)
        old.unlink(missing_ok=True)
    number = 1
    kept = path.with_name(f"{path.name}{SUFFIX}")
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.{number}{SUFFIX}")
    os.replace(path, kept)
    _log.error("%s: %s %s; kept as %s", code, path, why, kept.name)
    return kept


def set_aside_files(root: Path, *, skip: Collection[str] = (), limit: int = FILES_MAX) -> list[Path]:
    """What was set aside anywhere below a folder, up to so many; not in what belongs to tasks, or is named `skip`."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        found += [Path(folder, name) for name in names if name.endswith(SUFFIX)]
        if FOLDER in folders:
            found += sorted(Path(folder, FOLDER).iterdir())
        folders[:] = [name for name in folders if name not in (FOLDER, *_OF_TASKS, *skip)]
        if len(found) >= limit:
            break
    return sorted(found)[:limit]


# Where do small files go that are damaged? One flipped bit is put right, else the file is set aside; both are said.


_log = logging.getLogger("harch.damage")


def read_sealed(path: Path) -> bytes:
    """The content of a file that has a seal, or is of an older release. Raises FileNotFoundError, OSError, and E1030
    for damage that cannot be put right, after the file was set aside."""
    raw = path.read_bytes()
    try:
        content = LINE.unseal(raw)
    except DamagedContent as damage:
        found = LINE.mended(raw)
        if found is None:
            kept = set_aside(path, str(damage), code="E1030")
            raise HarchError("E1030", f"{path} is damaged: {damage}", hint=f"see {kept}") from damage
    else:
        found = LINE.mended(raw) if content is raw else content  # the seal itself may be hit
        if found is None or found is content:
            return content
    put_right(path, raw, found)
    return found


def put_right(path: Path, raw: bytes, content: bytes) -> None:
    """Writes what a file should hold, and keeps what it held."""
    rewrite(path.with_name(f"{path.name}{SUFFIX}"), raw)
    rewrite(path, LINE.seal(content))
    _log.error("E1030: repaired a flipped bit in %s", path)


def rewrite(path: Path, content: bytes) -> None:
    """Whole or not at all, readable by its owner only, durable."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, content)
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(draft, path)


# Who may read the state? The user that HarchOS runs as: folders 0700, files 0600, whatever the system's habits are.


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
