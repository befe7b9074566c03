"""Which life of this hub is it? A number that grows with every start, also if the clock went back."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.sealed import read_sealed
from harch.federation.identity.folder import write_private


class _Stored(Struct, frozen=True):
    """What the file says; in older releases, a number alone."""

    generation: int


def next_generation(file: Path, now: datetime) -> int:
    """Above every earlier one; on disk when this returns."""
    try:
        stored = msgspec.json.decode(read_sealed(file), type=_Stored | int) if file.exists() else 0
    except (OSError, msgspec.MsgspecError) as error:
        raise HarchError("E1005", f"{file} cannot be read", hint="remove it; the clock takes its place") from error
    last = stored if isinstance(stored, int) else stored.generation
    generation = max(last + 1, int(now.timestamp() * 1000))
    write_private(file, LINE.seal(msgspec.json.encode(_Stored(generation))))
    return generation
