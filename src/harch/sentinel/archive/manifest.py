"""Which files make up the archive of a tenant? A small list, replaced as a whole: the point of every change."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.store.blocks.disk import Disk, write_file

MANIFEST = "files.json"
_NEW = "files.new"


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """One Parquet file with its index. `first` orders files by the arrival of what they hold."""

    name: str
    first: int
    start_ns: int
    end_ns: int  # of the newest row, included
    rows: int
    raw_bytes: int
    disk_bytes: int
    clean_to: int = 0  # erasures up to this number have been carried out in it


class Erasure(msgspec.Struct, frozen=True):
    """What must not be answered any more, and is taken out of files that are older than the erasure."""

    number: int
    content: bytes  # as the store of lines or of spans wrote it


class Manifest(msgspec.Struct, frozen=True):
    version: int = 1
    segment: int = 0  # older segments of the log are done with: their rows are in files
    next_file: int = 1
    next_erasure: int = 1
    files: tuple[FileEntry, ...] = ()
    erasures: tuple[Erasure, ...] = ()


def read_manifest(folder: Path, disk: Disk) -> Manifest:
    """Raises E0613 for a list that was changed: it also says what must not be answered."""
    if (folder / _NEW).exists():
        disk.remove_file(folder / _NEW)
    path = folder / MANIFEST
    if not path.exists():
        return Manifest()
    line, _, checksum = path.read_bytes().partition(b"\n")
    try:
        if checksum != b"%08x\n" % zlib.crc32(line):
            raise HarchError("E0613", f"the checksum of {MANIFEST} is wrong", hint=f"see {path}")
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
    line = msgspec.json.encode(manifest)
    write_file(disk, folder / _NEW, line + b"\n" + b"%08x\n" % zlib.crc32(line))
    disk.rename(folder / _NEW, folder / MANIFEST)
    disk.sync_folder(folder)
