"""Where does a file go that is not as it was written? Beside its place, under a name that says so.

Nothing that is damaged is deleted, and nothing that is damaged is used. `harch doctor` and the alert FilesDamaged name
what waits; whoever has looked at it deletes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path

SUFFIX = ".damaged"
FOLDER = "quarantine"  # of stores whose parts are many files
COPIES_MAX = 16  # of one file: the newest are kept
FILES_MAX = 1000  # that are counted
_OF_TASKS = ("tasks", "checkpoints", "trash")  # of an agent: what lies there is named by users

_log = logging.getLogger("harch.damage")


def set_aside(path: Path, why: str, *, code: str) -> Path:
    """Renames the file and says so. A second damage of the same file gets a number."""
    earlier = sorted(path.parent.glob(f"{path.name}*{SUFFIX}"), key=lambda one: one.stat().st_mtime_ns)
    for old in earlier[: max(0, len(earlier) + 1 - COPIES_MAX)]:
        _log.warning("%d damaged copies of %s are kept; %s gives way", COPIES_MAX, path.name, old.name)
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
