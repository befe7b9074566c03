"""Where do small files go that are damaged? One flipped bit is put right, else the file is set aside; both are said."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent
from harch.base.set_aside import SUFFIX, set_aside

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
    _log.error("E1030: a flipped bit in %s was put right", path)


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
