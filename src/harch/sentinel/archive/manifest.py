"""Which files make up the archive of a tenant? A small list, replaced as a whole: the point of every change."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent
from harch.base.sealed import put_right
from harch.sentinel.archive.entries import Manifest
from harch.sentinel.store.blocks.disk import Disk, write_file

MANIFEST = "files.json"
_NEW = "files.new"


def read_manifest(folder: Path, disk: Disk) -> Manifest:
    """Raises E0613 for a list that was changed: it also says what must not be answered."""
    if (folder / _NEW).exists():
        disk.remove_file(folder / _NEW)
    path = folder / MANIFEST
    if not path.exists():
        return Manifest()
    raw = path.read_bytes()
    try:
        line, is_mended = LINE.open(raw)
    except DamagedContent as damage:
        raise HarchError("E0613", f"{MANIFEST} is damaged: {damage}", hint=f"see {path}") from damage
    if is_mended:
        put_right(path, raw, line)
    try:
        found = msgspec.json.decode(line, type=Manifest)
    except msgspec.MsgspecError as broken:
        raise HarchError("E0613", f"{MANIFEST} has another form", hint=f"see {path}") from broken
    if found.version != 1:
        raise HarchError("E0614", f"{MANIFEST} is of version {found.version}", hint=f"see {path}")
    return found


def write_manifest(folder: Path, manifest: Manifest, disk: Disk) -> None:
    """Durable on return: the old list or the new one is there, never a part."""
    if (folder / _NEW).exists():
        disk.remove_file(folder / _NEW)
    write_file(disk, folder / _NEW, LINE.seal(msgspec.json.encode(manifest)))
    disk.rename(folder / _NEW, folder / MANIFEST)
    disk.sync_folder(folder)
