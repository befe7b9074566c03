"""Which blocks count at this moment, and what lies in their folder?

Queries take one moment and keep it; opening the folder finishes what a crash interrupted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent
from harch.base.state_files import put_right
from harch.sentinel.model.labels import Matcher
from harch.sentinel.store.blocks.block import BLOCK, QUARANTINE, REMOVING, WRITING, Block, DamagedBlock, numbered
from harch.sentinel.store.blocks.deletions import Deletion, DeletionList
from harch.sentinel.store.blocks.index_file import SectionCache
from harch.sentinel.store.blocks.meta import BlockMeta, block_name
from harch.sentinel.store.disk import FileSystem, remove_tree, write_file


class BlockFolder:
    """Opens, removes and sets aside blocks. One process owns a folder."""

    def __init__(self, path: Path, disk: FileSystem, cache: SectionCache) -> None:
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


# Where does the list of deletions stand? In one small file that is replaced as a whole.


DELETIONS_FILE = "deletions.json"
_NEW_FILE = "deletions.new"


def read_deletions(folder: Path, disk: FileSystem) -> DeletionList:
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
        raise HarchError("E0613", f"{DELETIONS_FILE} is malformed", hint=f"see {path}") from broken


def write_deletions(folder: Path, deletions: DeletionList, disk: FileSystem) -> None:
    """Durable on return: the old list or the new one is there, never a part."""
    _remove_unfinished(folder, disk)
    new = folder / _NEW_FILE
    write_file(disk, new, LINE.seal(msgspec.json.encode(deletions)))
    disk.rename(new, folder / DELETIONS_FILE)
    disk.sync_folder(folder)


def _remove_unfinished(folder: Path, disk: FileSystem) -> None:
    if (folder / _NEW_FILE).exists():
        disk.remove_file(folder / _NEW_FILE)


# Which blocks count at this moment? Queries take one moment and keep it; changes make the next.


_PROBLEMS_MAX = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moment:
    blocks: tuple[Block, ...] = ()
    deletions: DeletionList = field(default_factory=DeletionList)

    def metas(self) -> list[BlockMeta]:
        return [block.meta for block in self.blocks]

    def block(self, meta: BlockMeta) -> Block:
        return next(block for block in self.blocks if block.meta is meta)


class BlockState:
    """Changes wait for each other; nobody waits to read."""

    def __init__(self, folder: BlockFolder, disk: FileSystem) -> None:
        self.folder = folder
        self._disk = disk
        self._changing = threading.Lock()
        self._adding = 0
        found, problems = folder.recover()
        self._problems = problems[-_PROBLEMS_MAX:]
        for problem in problems:
            _log.error("%s: %s under %s", problem.code, problem.message, folder.path)
        self._moment = Moment(tuple(found), read_deletions(folder.path, disk))

    def moment(self) -> Moment:
        return self._moment

    def problems(self) -> tuple[HarchError, ...]:
        """Blocks that are not served, with the reason; the last hundred."""
        return tuple(self._problems)

    @contextmanager
    def adding(self) -> Iterator[list[Block]]:
        """For blocks that are being written: they count when the list is handed over, and deletions wait for them."""
        written: list[Block] = []
        with self._changing:
            self._adding += 1
        try:
            yield written
            self.add(written)
        except (OSError, HarchError):
            self.folder.remove(written)
            raise
        finally:
            with self._changing:
                self._adding -= 1

    def add(self, blocks: Sequence[Block]) -> None:
        with self._changing:
            self._moment = replace(self._moment, blocks=(*self._moment.blocks, *blocks))

    def put_in_place_of(self, gone: Sequence[Block], new: Block) -> None:
        """`new` is complete and names the others as its parents: from now on they do not count."""
        with self._changing:
            left = tuple(block for block in self._moment.blocks if block not in gone)
            self._moment = replace(self._moment, blocks=(*left, new))
        self.folder.remove(gone)

    def remove(self, gone: Sequence[Block]) -> None:
        """One by one: what cannot be removed goes on counting."""
        for block in gone:
            self.folder.remove([block])
            self._drop(block)

    def set_aside(self, damaged: DamagedBlock) -> None:
        """Takes a damaged block out. Several queries may find it at the same time."""
        block = next((block for block in self._moment.blocks if block.path == damaged.block), None)
        if block is None:
            return
        self._drop(block)
        self._problems = [*self._problems, damaged][-_PROBLEMS_MAX:]
        _log.error("%s: %s under %s", damaged.code, damaged.message, self.folder.path)
        with suppress(OSError):  # what cannot be moved is not served either, and found again at the next start
            self.folder.quarantine(block.path)

    def delete(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, now_ms: int | None) -> Deletion:
        """Durable, and in force for every query that starts afterwards."""
        with self._changing:
            up_to = self.folder.last_number()
            deletions = self._moment.deletions.with_new(matchers, start_ms, end_ms, up_to=up_to, requested_ms=now_ms)
            write_deletions(self.folder.path, deletions, self._disk)
            self._moment = replace(self._moment, deletions=deletions)
            return deletions.waiting[-1]

    def forget_done_deletions(self) -> None:
        with self._changing:
            left = self._moment.deletions.without_done(self._moment.metas())
            if left != self._moment.deletions and not self._adding:
                write_deletions(self.folder.path, left, self._disk)
                self._moment = replace(self._moment, deletions=left)

    def sweep(self) -> None:
        """Removes what earlier removals left behind."""
        self.folder.sweep(self._moment.metas())

    def close(self) -> None:
        with self._changing:
            for block in self._moment.blocks:
                block.close()
            self._moment = replace(self._moment, blocks=())

    def _drop(self, gone: Block) -> None:
        with self._changing:
            left = tuple(block for block in self._moment.blocks if block is not gone)
            self._moment = replace(self._moment, blocks=left)
