"""What was measured before? All blocks of one tenant: added to, asked, rewritten, thinned out, deleted from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import stale_mask
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import Samples, Selection, SeriesTable
from harch.sentinel.store.blocks.block import Block
from harch.sentinel.store.blocks.damage import DamagedBlock
from harch.sentinel.store.blocks.deletions import Deletion
from harch.sentinel.store.blocks.disk import Disk
from harch.sentinel.store.blocks.downsampling import Aggregate, aggregate_matchers, without_aggregate
from harch.sentinel.store.blocks.erasing import without_deleted
from harch.sentinel.store.blocks.folder import BlockFolder
from harch.sentinel.store.blocks.in_turn import select_in_turn
from harch.sentinel.store.blocks.index_file import SectionCache
from harch.sentinel.store.blocks.listing import list_series
from harch.sentinel.store.blocks.maintenance import Maintenance, Report
from harch.sentinel.store.blocks.merging import merge_selections, merge_tables
from harch.sentinel.store.blocks.meta import RAW_MS, BlockMeta
from harch.sentinel.store.blocks.planning import visible_spans
from harch.sentinel.store.blocks.policy import BlockPolicy
from harch.sentinel.store.blocks.proof import PurgeProof, prove_erasure
from harch.sentinel.store.blocks.state import BlockState, Moment
from harch.sentinel.store.blocks.windows import split_windows
from harch.sentinel.store.blocks.writer import write_block

Answer = TypeVar("Answer")
_CACHE = SectionCache()  # one for all tenants of a process, so that its limit is one of the process
_ALL_TIMES = (-(1 << 63), (1 << 63) - 1)


class Blocks:
    """Safe to use from several threads: a query sees one moment, rewriting goes on beside it.

    A query that meets damaged bytes raises E0613 with the block's name. The block is set aside, and the next query is
    answered from the others; `problems` says what is missing.
    """

    def __init__(self, state: BlockState, policy: BlockPolicy, disk: Disk) -> None:
        self._state = state
        self._policy = policy
        self._disk = disk
        self._maintenance = Maintenance(state, policy, disk)
        self._maintaining = threading.Lock()
        self.report = Report()  # of the last maintenance

    @staticmethod
    def open(
        folder: Path,
        policy: BlockPolicy | None = None,
        *,
        disk: Disk | None = None,
        cache: SectionCache | None = None,
    ) -> Blocks:
        """Opens what is there and finishes what a crash interrupted."""
        used = disk or Disk()
        state = BlockState(BlockFolder(folder, used, cache or _CACHE), used)
        return Blocks(state, policy or BlockPolicy(), used)

    def add(self, selection: Selection) -> None:
        """Makes all samples durable, see `write`."""
        self.write(selection, *_ALL_TIMES)

    def write(self, selection: Selection, start_ms: int, end_ms: int, *, now_ms: int = 0) -> tuple[BlockMeta, ...]:
        """Makes the samples of `start_ms <= t < end_ms`, which came by `now_ms`, durable in blocks cut at fixed hours.

        They may overlap in time with blocks that are there: what is written later wins. Raises OSError, for example
        where the disk is full, and leaves no trace then.
        """
        ranges_ms = self._policy.ranges_ms(RAW_MS)
        with self._state.adding() as written:
            for low, high in split_windows(selection.samples, start_ms, end_ms, ranges_ms):
                meta = write_block(self._state.folder.path, selection, low, high, came_ms=now_ms, disk=self._disk)
                if meta is not None:
                    written.append(self._state.folder.open(meta.sequence))
        return tuple(block.meta for block in written)

    def select(
        self,
        matchers: Sequence[Matcher],
        start: int,
        end: int,
        *,
        limit: int,
        aggregate: Aggregate = Aggregate.LAST,
    ) -> Selection:
        """Raw samples where there are any, coarse ones elsewhere, looked at by `aggregate`. E0603 beyond `limit`."""
        moment = self._state.moment()
        asked = list(_asked(moment, start, end))
        if aggregate is Aggregate.LAST and _is_simple(moment, asked):
            return self._checked(partial(select_in_turn, asked, matchers, limit))
        found: list[Selection] = []
        for block, low, high in asked:
            part = self._select_one(moment, block, matchers, (low, high), limit, aggregate)
            limit -= int(part.samples.count.sum())
            if part.series.count:
                found.append(part)
        return merge_selections(found)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        """Labels of matching series with samples in the range."""
        moment = self._state.moment()
        tables: list[SeriesTable] = []
        for block, low, high in _asked(moment, start, end):
            coarse = block.meta.resolution_ms != RAW_MS
            asked = aggregate_matchers(matchers, Aggregate.LAST) if coarse else matchers
            if asked is not None:
                deletions = moment.deletions.concerning(block.meta)
                table = self._checked(partial(list_series, block, asked, low, high, deletions))
                tables.append(without_aggregate(table) if coarse else table)
        return merge_tables(tables)[0] if tables else SeriesTable(0, {})

    def delete(self, matchers: Sequence[Matcher], start: int, end: int, *, now_ms: int | None = None) -> Deletion:
        """No query that starts afterwards finds these samples; the next `maintain` takes them off the disk."""
        return self._state.delete(matchers, start, end, now_ms)

    def maintain(self, now_ms: int) -> Report:
        """Erasure, downsampling, retention and compaction, as far as they are due and there is space."""
        with self._maintaining:
            self.report = self._maintenance.run(now_ms)
            return self.report

    def purge(self, now_ms: int) -> PurgeProof:
        """Carries out all deletions now and proves that nothing of them can be read. Raises E0616 where it cannot."""
        with self._maintaining:
            deletions = self._state.moment().deletions.waiting
            before = {meta.sequence for meta in self._state.moment().metas()}
            self.report = self._maintenance.run(now_ms, only_erasure=True)
            self._state.sweep()
            return prove_erasure(self._state, deletions, before, self.report)

    def time_range(self) -> tuple[int, int] | None:
        """First and last time of any sample; None without samples."""
        metas = self.metas()
        if not metas:
            return None
        return min(meta.first_ms for meta in metas), max(meta.last_ms for meta in metas)

    def end_ms(self) -> int | None:
        """The time behind the last sample; None without samples."""
        times = self.time_range()
        return None if times is None else times[1] + 1

    def metas(self) -> list[BlockMeta]:
        return self._state.moment().metas()

    def problems(self) -> tuple[HarchError, ...]:
        """What is not served, and why."""
        return self._state.problems()

    def damaged_files(self) -> list[Path]:
        """Blocks that were set aside and are still there."""
        return self._state.folder.damaged_files()

    def close(self) -> None:
        with self._maintaining:
            self._state.close()

    def _select_one(
        self,
        moment: Moment,
        block: Block,
        matchers: Sequence[Matcher],
        span: tuple[int, int],
        limit: int,
        aggregate: Aggregate,
    ) -> Selection:
        coarse = block.meta.resolution_ms != RAW_MS
        asked = aggregate_matchers(matchers, aggregate) if coarse else list(matchers)
        if asked is None:
            return merge_selections([])
        found = self._checked(lambda: block.select(asked, *span, limit=limit))
        found = without_deleted(found, moment.deletions.concerning(block.meta), block.meta.resolution_ms)
        if coarse:
            return Selection(without_aggregate(found.series), found.samples)
        return _counted(found) if aggregate is Aggregate.COUNT else found

    def _checked(self, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except DamagedBlock as damaged:
            self._state.set_aside(damaged)
            raise


def _asked(moment: Moment, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
    """Which blocks to ask for which times, both ends included; those written later come later."""
    metas = moment.metas()
    for block in sorted(moment.blocks, key=lambda block: (block.meta.newest, block.meta.sequence)):
        if block.meta.first_ms <= end and start <= block.meta.last_ms:
            for low, high in visible_spans(block.meta, metas):
                if low <= end and start < high:
                    yield block, max(low, start), min(high - 1, end)


def _is_simple(moment: Moment, asked: Sequence[tuple[Block, int, int]]) -> bool:
    """Raw blocks one after the other, nothing deleted: then samples can be read straight to where they belong."""
    spans = sorted((low, high) for _, low, high in asked)
    in_turn = all(before[1] < after[0] for before, after in pairwise(spans))
    metas = [block.meta for block, _, _ in asked]
    return in_turn and all(meta.resolution_ms == RAW_MS and not moment.deletions.concerning(meta) for meta in metas)


def _counted(selection: Selection) -> Selection:
    """Raw samples as what a window of one sample counts: one each."""
    samples = selection.samples
    ones = np.where(stale_mask(samples.values), samples.values, 1.0)
    return Selection(selection.series, Samples(samples.first, samples.count, samples.timestamps, ones, samples.starts))
