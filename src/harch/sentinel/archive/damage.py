"""What if bytes on disk are not those that were written? The file is set aside, and all others go on."""

from __future__ import annotations

import mmap
from pathlib import Path

from harch.base.errors import HarchError

QUARANTINE = "quarantine"


class DamagedFile(HarchError):
    """A file that cannot be trusted. Who meets it fails; who asks after that is answered without it."""

    def __init__(self, stem: Path, reason: str) -> None:
        hint = f"it was moved to `{QUARANTINE}` and the others go on; look at the disk under {stem.parent}"
        super().__init__("E0613", f"file {stem.name}: {reason}", hint=hint)
        self.name = stem.name


def mapped(path: Path) -> mmap.mmap:
    """The bytes of a file. Raises DamagedFile where it is missing or empty."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as problem:
        raise DamagedFile(path.with_suffix(""), f"{path.name}: {problem}") from problem
