"""What lies in the folder of a tenant's blocks? Opening it finishes what a crash interrupted."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from harch.base.errors import HarchError
from harch.sentinel.store.blocks.block import Block
from harch.sentinel.store.blocks.damage import DamagedBlock
from harch.sentinel.store.blocks.disk import Disk, remove_tree
from harch.sentinel.store.blocks.index_file import SectionCache
from harch.sentinel.store.blocks.meta import BlockMeta, block_name
from harch.sentinel.store.blocks.names import BLOCK, QUARANTINE, REMOVING, WRITING, numbered


class BlockFolder:
    """Opens, removes and sets aside blocks. One process owns a folder."""

    def __init__(self, path: Path, disk: Disk, cache: SectionCache) -> None:
        self.path = path
        self._disk = disk
        self._cache = cache

    def recover(self) -> tuple[list[Block], list[HarchError]]:
        """All blocks that count, and what is wrong with others.

        What was being written or removed goes. Blocks that another one replaces go too: the power failed after the new
        one was complete and before the old ones were gone.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for prefix in (WRITING, REMOVING):
            for number in numbered(self.path, prefix):
                remove_tree(self._disk, self.path / f"{prefix}{number:012d}")
        blocks: list[Block] = []
        problems: list[HarchError] = []
        for number in numbered(self.path, BLOCK):
            try:
                blocks.append(self.open(number))
            except DamagedBlock as damaged:
                problems.append(damaged)
                with suppress(OSError):  # what cannot be moved is not served either
                    self.quarantine(damaged.block)
            except HarchError as foreign:
                problems.append(foreign)
        replaced = {parent for block in blocks for parent in block.meta.parents}
        self.remove(block for block in blocks if block.meta.sequence in replaced)
        return [block for block in blocks if block.meta.sequence not in replaced], problems

    def open(self, number: int) -> Block:
        return Block.open(self.path / block_name(number), self._cache)

    def remove(self, blocks: Iterable[Block]) -> None:
        """They are no blocks any more after the rename, whatever happens to their files."""
        moved = []
        for block in blocks:
            removing = self.path / f"{REMOVING}{block.meta.sequence:012d}"
            self._disk.rename(block.path, removing)
            moved.append(removing)
            block.close()
        if moved:
            self._disk.sync_folder(self.path)
        for removing in moved:
            remove_tree(self._disk, removing)

    def sweep(self, counting: Iterable[BlockMeta]) -> None:
        """Removes what earlier removals left: folders renamed for it, and blocks that others have replaced."""
        metas = list(counting)
        for number in numbered(self.path, REMOVING):
            remove_tree(self._disk, self.path / f"{REMOVING}{number:012d}")
        replaced = {parent for meta in metas for parent in meta.parents} - {meta.sequence for meta in metas}
        for number in sorted(replaced.intersection(numbered(self.path, BLOCK))):
            self._disk.rename(self.path / block_name(number), self.path / f"{REMOVING}{number:012d}")
            remove_tree(self._disk, self.path / f"{REMOVING}{number:012d}")

    def quarantine(self, block: Path) -> None:
        """Sets a damaged block aside, for people to look at."""
        quarantine = self.path / QUARANTINE
        if not quarantine.exists():
            self._disk.make_folder(quarantine)
        self._disk.rename(block, quarantine / block.name)
        self._disk.sync_folder(self.path)

    def quarantined(self) -> list[str]:
        quarantine = self.path / QUARANTINE
        return [block_name(number) for number in numbered(quarantine, BLOCK)] if quarantine.is_dir() else []

    def damaged_files(self) -> list[Path]:
        return [self.path / QUARANTINE / name for name in self.quarantined()]

    def last_number(self) -> int:
        """The largest number of any block that is there or being written."""
        return max([*numbered(self.path, BLOCK), *numbered(self.path, WRITING)], default=0)
