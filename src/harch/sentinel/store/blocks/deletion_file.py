"""Where does the list of deletions stand? In one small file that is replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent
from harch.base.sealed import put_right
from harch.sentinel.store.blocks.deletions import DeletionList
from harch.sentinel.store.blocks.disk import Disk, write_file

DELETIONS_FILE = "deletions.json"
_NEW_FILE = "deletions.new"


def read_deletions(folder: Path, disk: Disk) -> DeletionList:
    """Raises E0613 for a file that was changed: better no answer than one with what must not be seen."""
    _remove_unfinished(folder, disk)
    path = folder / DELETIONS_FILE
    if not path.exists():
        return DeletionList()
    raw = path.read_bytes()
    try:
        line, is_mended = LINE.open(raw)
    except DamagedContent as damage:
        raise HarchError("E0613", f"{DELETIONS_FILE} is damaged: {damage}", hint=f"see {path}") from damage
    if is_mended:
        put_right(path, raw, line)
    try:
        return msgspec.json.decode(line, type=DeletionList)
    except msgspec.MsgspecError as broken:
        raise HarchError("E0613", f"{DELETIONS_FILE} has another form", hint=f"see {path}") from broken


def write_deletions(folder: Path, deletions: DeletionList, disk: Disk) -> None:
    """Durable on return: the old list or the new one is there, never a part."""
    _remove_unfinished(folder, disk)
    new = folder / _NEW_FILE
    write_file(disk, new, LINE.seal(msgspec.json.encode(deletions)))
    disk.rename(new, folder / DELETIONS_FILE)
    disk.sync_folder(folder)


def _remove_unfinished(folder: Path, disk: Disk) -> None:
    if (folder / _NEW_FILE).exists():
        disk.remove_file(folder / _NEW_FILE)
