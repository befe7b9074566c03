"""Which blocks count at this moment? Queries take one moment and keep it; changes make the next."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from harch.base.errors import HarchError
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.store.blocks.block import Block
from harch.sentinel.store.blocks.damage import DamagedBlock
from harch.sentinel.store.blocks.deletion_file import read_deletions, write_deletions
from harch.sentinel.store.blocks.deletions import Deletion, DeletionList
from harch.sentinel.store.blocks.disk import Disk
from harch.sentinel.store.blocks.folder import BlockFolder
from harch.sentinel.store.blocks.meta import BlockMeta

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

    def __init__(self, folder: BlockFolder, disk: Disk) -> None:
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
            deletions = self._moment.deletions.with_new(matchers, start_ms, end_ms, up_to=up_to, asked_ms=now_ms)
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
