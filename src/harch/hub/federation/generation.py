"""Which life of this hub is it? A number that grows with every start, also if the clock went back."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from harch.base.errors import HarchError
from harch.federation.identity.folder import write_private


def next_generation(file: Path, now: datetime) -> int:
    """Above every earlier one; on disk when this returns."""
    try:
        stored = int(file.read_text()) if file.exists() else 0
    except (OSError, ValueError) as error:
        raise HarchError("E1005", f"{file} cannot be read", hint="remove it; the clock takes its place") from error
    generation = max(stored + 1, int(now.timestamp() * 1000))
    write_private(file, f"{generation}\n".encode())
    return generation
