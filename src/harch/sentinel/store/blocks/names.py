"""How are the folders of a tenant's blocks called, and which number is the next?"""

from __future__ import annotations

from pathlib import Path

from harch.sentinel.store.blocks.disk import Disk
from harch.sentinel.store.blocks.meta import block_name

BLOCK = "block-"
WRITING = "writing-"  # not yet a block: removed when the folder is opened
REMOVING = "removing-"  # no block any more: removed when the folder is opened
QUARANTINE = "quarantine"  # where damaged blocks go


def numbered(folder: Path, prefix: str) -> list[int]:
    """The numbers of the entries with this prefix, sorted; names of other forms are somebody else's."""
    found = (entry.name.removeprefix(prefix) for entry in folder.iterdir() if entry.name.startswith(prefix))
    return sorted(int(number) for number in found if number.isdecimal())


def reserve_sequence(folder: Path, disk: Disk) -> int:
    """The next number, taken by a folder that says that somebody is writing it. Others may ask at the same time.

    Numbers of damaged blocks are not given again, so that a block that is brought back keeps its place.
    """
    quarantine = folder / QUARANTINE
    damaged = numbered(quarantine, BLOCK) if quarantine.is_dir() else []
    taken = [*numbered(folder, BLOCK), *numbered(folder, WRITING), *numbered(folder, REMOVING), *damaged]
    sequence = max(taken, default=0) + 1
    while True:
        writing = folder / f"{WRITING}{sequence:012d}"
        try:
            disk.make_folder(writing)
        except FileExistsError:
            sequence += 1
            continue
        if not (folder / block_name(sequence)).exists():  # finished by somebody between the two looks
            return sequence
        disk.remove_folder(writing)
        sequence += 1
