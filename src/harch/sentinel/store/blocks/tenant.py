"""What was measured before?

All blocks of one tenant: cut at fixed hours, added to, queried, listed, rewritten, thinned out, deleted from.
"""

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
from harch.sentinel.model.labels import Matcher
from harch.sentinel.model.selection import Ints, Samples, Selection, SeriesTable
from harch.sentinel.store.blocks.block import Block, DamagedBlock
from harch.sentinel.store.blocks.deletions import Deletion
from harch.sentinel.store.blocks.downsampling import WindowAggregate, aggregate_matchers, without_aggregate
from harch.sentinel.store.blocks.index_file import SectionCache
from harch.sentinel.store.blocks.maintenance import Maintenance, MaintenanceReport, PurgeProof, prove_erasure
from harch.sentinel.store.blocks.merge import empty_selection, merge_selections, merge_tables
from harch.sentinel.store.blocks.meta import RAW_MS, BlockMeta
from harch.sentinel.store.blocks.planning import BlockPolicy, visible_spans
from harch.sentinel.store.blocks.reader import ReadAnswer, ReadPlan
from harch.sentinel.store.blocks.sample_kernels import cut_regions, windows_of_regions
from harch.sentinel.store.blocks.sources import drop_deleted, marked_series, without_deleted
from harch.sentinel.store.blocks.state import BlockFolder, BlockState, Moment
from harch.sentinel.store.blocks.writer import write_block
from harch.sentinel.store.disk import FileSystem

_BLOCKS_MAX = 48  # from one selection: years of old samples become few long blocks and not thousands of short ones


def split_windows(samples: Samples, start_ms: int, end_ms: int, ranges_ms: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of `start_ms <= t < end_ms` that hold any sample, cut at the shortest range that gives few of them."""
    first, count = cut_regions(samples.timestamps, samples.first, samples.count, start_ms, end_ms - 1)
    for span in ranges_ms:
        windows = np.unique(windows_of_regions(samples.timestamps, first, count, span))
        if len(windows) <= _BLOCKS_MAX:
            break
    return [(max(start_ms, window * span), min(end_ms, (window + 1) * span)) for window in windows.tolist()]


# How are blocks read that follow each other in time? Each straight to its place in the answer, without merging.


def select_in_turn(wanted: Sequence[tuple[Block, int, int]], matchers: Sequence[Matcher], limit: int) -> Selection:
    """Samples of blocks whose spans do not overlap. Raises E0603 beyond `limit` samples, before any value is read."""
    plans: list[tuple[Block, ReadPlan]] = []
    tables = []
    for block, low, high in sorted(wanted, key=lambda one: one[1]):
        table, plan = block.plan(matchers, low, high, limit=limit)
        if table.count:
            limit -= int(plan.count.sum())
            plans.append((block, plan))
            tables.append(table)
    if not plans:
        return empty_selection()
    series, homes = (tables[0], [np.arange(tables[0].count)]) if len(tables) == 1 else merge_tables(tables)
    answer = ReadAnswer.for_counts(_total(plans, homes, series.count))
    target = answer.samples.first.copy()
    for (block, plan), home in zip(plans, homes, strict=True):
        block.fill(plan, target[home], answer)
        target[home] += plan.count
    return Selection(series, answer.finished())


def _total(plans: Sequence[tuple[Block, ReadPlan]], homes: Sequence[Ints], series: int) -> Ints:
    total = np.zeros(series, np.int64)
    for (_, plan), home in zip(plans, homes, strict=True):
        total[home] += plan.count
    return total


# Which series have samples? Asked of times alone; values are read only where deletions wait, and in pieces.


_PIECE = 1024  # series of which samples are in memory at a time


def list_series(
    block: Block, matchers: Sequence[Matcher], start: int, end: int, deletions: Sequence[Deletion]
) -> SeriesTable:
    """Matching series of a block with samples in the range that no deletion has taken."""
    places, counts = block.counts(matchers, start, end)
    present = counts > 0
    table = block.table()
    marks = [marked_series(table, deletion) for deletion in deletions]
    if marks:
        doubtful = np.flatnonzero(present & np.any([mark[places] for mark in marks], axis=0))
        for first in range(0, len(doubtful), _PIECE):
            piece = doubtful[first : first + _PIECE]
            samples = block.read(places[piece], start, end)
            for deletion, mark in zip(deletions, marks, strict=True):
                samples = drop_deleted(samples, deletion, mark[places[piece]], block.meta.resolution_ms)
            present[piece] = samples.count > 0
    return table.take(places[present])


# What was measured before? All blocks of one tenant: added to, asked, rewritten, thinned out, deleted from.


Answer = TypeVar("Answer")
_CACHE = SectionCache()  # one for all tenants of a process, so that its limit is one of the process
_ALL_TIMES = (-(1 << 63), (1 << 63) - 1)


class TenantBlocks:
    """Safe to use from several threads: a query sees one moment, rewriting goes on beside it.

    A query that meets damaged bytes raises E0613 with the block's name. The block is set aside, and the next query is
    answered from the others; `problems` says what is missing.
    """

    def __init__(self, state: BlockState, policy: BlockPolicy, disk: FileSystem) -> None:
        self._state = state
        self._policy = policy
        self._disk = disk
        self._maintenance = Maintenance(state, policy, disk)
        self._maintaining = threading.Lock()
        self.report = MaintenanceReport()  # of the last maintenance

    @staticmethod
    def open(
        folder: Path,
        policy: BlockPolicy | None = None,
        *,
        disk: FileSystem | None = None,
        cache: SectionCache | None = None,
    ) -> TenantBlocks:
        """Opens what is there and finishes what a crash interrupted."""
        used = disk or FileSystem()
        state = BlockState(BlockFolder(folder, used, cache or _CACHE), used)
        return TenantBlocks(state, policy or BlockPolicy(), used)

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
        aggregate: WindowAggregate = WindowAggregate.LAST,
    ) -> Selection:
        """Raw samples where there are any, coarse ones elsewhere, looked at by `aggregate`. E0603 beyond `limit`."""
        moment = self._state.moment()
        wanted = list(_block_ranges(moment, start, end))
        if aggregate is WindowAggregate.LAST and _is_simple(moment, wanted):
            return self._checked(partial(select_in_turn, wanted, matchers, limit))
        found: list[Selection] = []
        for block, low, high in wanted:
            part = self._select_one(moment, block, matchers, (low, high), limit, aggregate)
            limit -= int(part.samples.count.sum())
            if part.series.count:
                found.append(part)
        return merge_selections(found)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        """Labels of matching series with samples in the range."""
        moment = self._state.moment()
        tables: list[SeriesTable] = []
        for block, low, high in _block_ranges(moment, start, end):
            coarse = block.meta.resolution_ms != RAW_MS
            wanted = aggregate_matchers(matchers, WindowAggregate.LAST) if coarse else matchers
            if wanted is not None:
                deletions = moment.deletions.concerning(block.meta)
                table = self._checked(partial(list_series, block, wanted, low, high, deletions))
                tables.append(without_aggregate(table) if coarse else table)
        return merge_tables(tables)[0] if tables else SeriesTable(0, {})

    def delete(self, matchers: Sequence[Matcher], start: int, end: int, *, now_ms: int | None = None) -> Deletion:
        """No query that starts afterwards finds these samples; the next `maintain` takes them off the disk."""
        return self._state.delete(matchers, start, end, now_ms)

    def maintain(self, now_ms: int) -> MaintenanceReport:
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
        aggregate: WindowAggregate,
    ) -> Selection:
        coarse = block.meta.resolution_ms != RAW_MS
        wanted = aggregate_matchers(matchers, aggregate) if coarse else list(matchers)
        if wanted is None:
            return merge_selections([])
        found = self._checked(lambda: block.select(wanted, *span, limit=limit))
        found = without_deleted(found, moment.deletions.concerning(block.meta), block.meta.resolution_ms)
        if coarse:
            return Selection(without_aggregate(found.series), found.samples)
        return _counted(found) if aggregate is WindowAggregate.COUNT else found

    def _checked(self, read: Callable[[], Answer]) -> Answer:
        try:
            return read()
        except DamagedBlock as damaged:
            self._state.set_aside(damaged)
            raise


def _block_ranges(moment: Moment, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
    """Which blocks to ask for which times, both ends included; those written later come later."""
    metas = moment.metas()
    for block in sorted(moment.blocks, key=lambda block: (block.meta.newest, block.meta.sequence)):
        if block.meta.first_ms <= end and start <= block.meta.last_ms:
            for low, high in visible_spans(block.meta, metas):
                if low <= end and start < high:
                    yield block, max(low, start), min(high - 1, end)


def _is_simple(moment: Moment, wanted: Sequence[tuple[Block, int, int]]) -> bool:
    """Raw blocks one after the other, nothing deleted: then samples can be read straight to where they belong."""
    spans = sorted((low, high) for _, low, high in wanted)
    in_turn = all(before[1] < after[0] for before, after in pairwise(spans))
    metas = [block.meta for block, _, _ in wanted]
    return in_turn and all(meta.resolution_ms == RAW_MS and not moment.deletions.concerning(meta) for meta in metas)


def _counted(selection: Selection) -> Selection:
    """Raw samples as what a window of one sample counts: one each."""
    samples = selection.samples
    ones = np.where(stale_mask(samples.values), samples.values, 1.0)
    return Selection(selection.series, Samples(samples.first, samples.count, samples.timestamps, ones, samples.starts))
