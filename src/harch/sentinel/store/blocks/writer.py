"""How is a block written?

Series sorted by labels, times that were scraped together once, into a folder of another name that is synced, then
renamed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import Codes, Ints, LabelColumn, Samples, Selection, SeriesTable
from harch.sentinel.store.blocks.block import WRITING, Block, reserve_sequence
from harch.sentinel.store.blocks.columns_kernels import encode_integer_columns, encode_value_columns
from harch.sentinel.store.blocks.index_file import SAMPLES_PER_PAGE, IndexWriter, PageKind, PageLayout, plan_layout
from harch.sentinel.store.blocks.meta import (
    INDEX_FILE,
    META_FILE,
    RAW_MS,
    SAMPLES_FILE,
    SAMPLES_MAGIC,
    VERSION,
    BlockMeta,
    block_name,
    meta_bytes,
)
from harch.sentinel.store.blocks.pages import encode_histograms, pack, place_of
from harch.sentinel.store.blocks.sample_kernels import any_nonzero, cut_regions, share_columns
from harch.sentinel.store.blocks.sources import BlockSource, SelectionSource
from harch.sentinel.store.disk import FileSystem, remove_tree, write_file


@dataclass(frozen=True, slots=True)
class SortedSeries:
    """`order` lists places of the table it was made from; the columns are in that order, their values sorted."""

    order: Ints
    columns: Mapping[str, LabelColumn]

    @property
    def count(self) -> int:
        return len(self.order)


def sort_series(table: SeriesTable, places: Ints) -> SortedSeries:
    """These series of a table by label values, with dictionaries that hold only what is used."""
    columns = {name: _ranked(table.columns[name], places) for name in _label_order(table)}
    used = {name: column for name, column in columns.items() if len(column.values) > 1}
    if not used:
        return SortedSeries(places, {})
    order = np.lexsort([column.codes for column in reversed(used.values())])
    ordered = {name: LabelColumn(column.codes[order], column.values) for name, column in used.items()}
    return SortedSeries(places[order], ordered)


def _label_order(table: SeriesTable) -> list[str]:
    return sorted(table.columns, key=lambda name: (name != METRIC_NAME, name))


def _ranked(column: LabelColumn, places: Ints) -> LabelColumn:
    """The same column with codes that sort as their values do."""
    codes = column.codes[places]
    used = np.zeros(len(column.values), np.bool_)
    used[codes] = True
    used[0] = False
    found = sorted((column.values[code], code) for code in np.flatnonzero(used).tolist())
    translation: Codes = np.zeros(len(column.values), np.int32)
    for rank, (_, code) in enumerate(found, start=1):
        translation[code] = rank
    return LabelColumn(translation[codes], ("", *(value for value, _ in found)))


# Which series were scraped together? Their times are one column, written once.


_COLUMNS_MAX = 16_384  # that are compared with; older ones are written and forgotten
_TIMES_MAX = 4 << 20
_COLUMNS_PER_PAGE = 64


class TimePool:
    """The columns of times of one slot. Codes count from 1 in the order of `columns`; 0 is a series without samples."""

    def __init__(self) -> None:
        self._lengths: list[Ints] = []
        self._firsts: list[Ints] = []
        self._lasts: list[Ints] = []
        self._full: list[tuple[Ints, Ints]] = []
        self._written = 0
        self._reset(_TIMES_MAX)

    def _reset(self, times: int) -> None:
        self._pool = np.empty(times, np.int64)
        self._pool_first = np.zeros(_COLUMNS_MAX + 1, np.int64)
        self._state = np.zeros(2, np.int64)
        self._table = np.zeros(4 * _COLUMNS_MAX, np.int64)
        self._hashes = np.zeros(_COLUMNS_MAX, np.uint64)

    def add(self, samples: Samples) -> Ints:
        """The codes of the times of these series."""
        codes = np.zeros(len(samples.first), np.int64)
        done = 0
        while True:
            part = codes[done:]
            more = int(
                share_columns(
                    samples.timestamps,
                    samples.first[done:],
                    samples.count[done:],
                    self._pool,
                    self._pool_first,
                    self._state,
                    self._table,
                    self._hashes,
                    part,
                )
            )
            part[:more] += np.where(part[:more] > 0, self._written, 0)
            done += more
            if done == len(codes):
                return codes
            self._take_out()
            self._reset(max(_TIMES_MAX, int(samples.count[done])))

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Lengths, first and last times of all columns. Nothing may be added afterwards."""
        self._take_out()
        nothing = np.zeros(0, np.int64)
        return tuple(np.concatenate([nothing, *parts]) for parts in (self._lengths, self._firsts, self._lasts))  # type: ignore[return-value]

    def pages(self) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Times, first places and lengths of the columns of each page, in order."""
        for times, first in self._full:
            begin = 0
            for stop in range(1, len(first)):
                size = first[stop] - first[begin]
                if stop == len(first) - 1 or stop - begin == _COLUMNS_PER_PAGE or size >= SAMPLES_PER_PAGE:
                    yield times, first[begin:stop], np.diff(first[begin : stop + 1])
                    begin = stop

    def _take_out(self) -> None:
        columns, used = self._state.tolist()
        if not columns:
            return
        times, first = self._pool[:used].copy(), self._pool_first[: columns + 1].copy()
        self._full.append((times, first))
        self._lengths.append(np.diff(first))
        self._firsts.append(times[first[:-1]])
        self._lasts.append(times[first[1:] - 1])
        self._written += columns
        self._state[:] = 0


# How is a block written? Into a folder of another name, synced, then renamed: it is there as a whole or not at all.


_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a new block is to be. `ancestors` are None for samples that come from the head."""

    start_ms: int
    end_ms: int
    resolution_ms: int = RAW_MS
    ancestors: tuple[int, int] | None = None  # oldest and newest
    parents: tuple[int, ...] = ()
    erased: tuple[int, ...] = ()
    came_ms: int = 0


def write_block(
    folder: Path, selection: Selection, start_ms: int, end_ms: int, *, came_ms: int = 0, disk: FileSystem | None = None
) -> BlockMeta | None:
    """A block of the samples of `start_ms <= t < end_ms`, durable on return; None where there are none.

    Raises OSError, for example where the disk is full, and leaves nothing behind.
    """
    whole = selection.samples
    first, count = cut_regions(whole.timestamps, whole.first, whole.count, start_ms, end_ms - 1)
    present = np.flatnonzero(count)
    if not len(present):
        return None
    samples = replace(whole, first=first[present], count=count[present])
    source = SelectionSource(Selection(selection.series.take(present), samples))
    return write_from(folder, source, Recipe(start_ms, end_ms, came_ms=came_ms), disk or FileSystem())


def write_from(folder: Path, source: BlockSource, recipe: Recipe, disk: FileSystem) -> BlockMeta | None:
    """The same from any source, which is read piece by piece."""
    if recipe.end_ms <= recipe.start_ms:
        raise ValueError(f"a block from {recipe.start_ms} to {recipe.end_ms}")
    sequence = reserve_sequence(folder, disk)
    writing = folder / f"{WRITING}{sequence:012d}"
    try:
        meta = _write_series(writing, source, recipe, sequence, disk)
        if meta is None:
            remove_tree(disk, writing)
            return None
        write_file(disk, writing / META_FILE, meta_bytes(meta))
        disk.sync_folder(writing)
        Block.open(writing).verify()  # read from end to end before it has its name, and before others go for it
        disk.rename(writing, folder / block_name(sequence))
        disk.sync_folder(folder)
    except (OSError, HarchError):
        with contextlib.suppress(OSError):  # what is left is removed when the folder is opened next
            remove_tree(disk, writing)
        raise
    return meta


def _write_series(
    writing: Path, source: BlockSource, recipe: Recipe, sequence: int, disk: FileSystem
) -> BlockMeta | None:
    """Index and samples. Series that turn out to have no samples are left out, with their labels, in a second round."""
    places = np.arange(source.series.count)
    while len(places):
        series = sort_series(source.series, places)
        file = _SamplesFile(disk, writing / SAMPLES_FILE)
        try:
            written = _Written(recipe, sequence, series.count)
            layout = plan_layout(recipe.start_ms, recipe.end_ms, series.count, source.samples)
            index = IndexWriter()
            _write_pages(file, source, series, layout, index, written)
            file.finish()
        finally:
            file.close()
        if written.counts.all():
            index.add_integers("pages", list(np.array(file.pages, np.int64).reshape(-1, 8).T))
            _add_labels(index, series)
            content = index.finish()
            write_file(disk, writing / INDEX_FILE, content)
            return written.meta(len(content), file.size)
        disk.remove_file(writing / SAMPLES_FILE)
        places = np.sort(series.order[written.counts > 0])
    return None


def _add_labels(index: IndexWriter, series: SortedSeries) -> None:
    index.add_strings("labels", list(series.columns))
    for name, column in series.columns.items():
        index.add_strings(f"values/{name}", column.values)
        index.add_integers(f"codes/{name}", [column.codes.astype(np.int64)])


def _write_pages(
    file: _SamplesFile,
    source: BlockSource,
    series: SortedSeries,
    layout: PageLayout,
    index: IndexWriter,
    written: _Written,
) -> None:
    index.add_integers("slots", [np.array(bounds, np.int64) for bounds in zip(*layout.slots, strict=True)])
    for slot, (start, end) in enumerate(layout.slots):
        pool = TimePool()
        codes = np.zeros(series.count, np.int64)
        for first in range(0, series.count, layout.group):
            group = series.order[first : first + layout.group]
            samples = source.read(group, start, end)
            if not samples.count.any():
                continue
            codes[first : first + len(group)] = pool.add(samples)
            written.counts[first : first + len(group)] += samples.count
            for kind, page in _group_pages(samples):
                file.add_page(kind, slot, first, len(group), page)
        lengths, firsts, lasts = pool.columns()
        column = 0
        for times, begin, length in pool.pages():
            data, places = encode_integer_columns(times, begin.copy(), length)
            file.add_page(PageKind.TIMES, slot, column, len(length), _column_page(data.tobytes(), places))
            column += len(length)
        index.add_integers(f"times/{slot}", [codes, lengths, firsts, lasts])
        written.see(firsts, lasts)


def _group_pages(samples: Samples) -> Iterable[tuple[PageKind, bytes]]:
    data, places = encode_value_columns(samples.values, samples.first, samples.count)
    yield PageKind.VALUES, _column_page(data.tobytes(), places)
    if samples.starts is not None and any_nonzero(samples.starts, samples.first, samples.count):
        data, places = encode_integer_columns(samples.starts, samples.first, samples.count)
        yield PageKind.STARTS, _column_page(data.tobytes(), places)
    histograms = encode_histograms(samples)
    if histograms:
        yield PageKind.HISTOGRAMS, histograms


def _column_page(data: bytes, places: Ints) -> bytes:
    """Where each column ends, then the columns."""
    return places[1:].astype(np.uint32).tobytes() + data


class _Written:
    """What went into the block so far."""

    def __init__(self, recipe: Recipe, sequence: int, series: int) -> None:
        self._recipe = recipe
        self._sequence = sequence
        self.counts = np.zeros(series, np.int64)
        self._first_ms: list[int] = []
        self._last_ms: list[int] = []

    def see(self, firsts: Ints, lasts: Ints) -> None:
        if len(firsts):
            self._first_ms.append(int(firsts.min()))
            self._last_ms.append(int(lasts.max()))

    def meta(self, index_bytes: int, samples_bytes: int) -> BlockMeta:
        recipe = self._recipe
        oldest, newest = recipe.ancestors or (self._sequence, self._sequence)
        return BlockMeta(
            version=VERSION,
            sequence=self._sequence,
            start_ms=recipe.start_ms,
            end_ms=recipe.end_ms,
            first_ms=min(self._first_ms),
            last_ms=max(self._last_ms),
            resolution_ms=recipe.resolution_ms,
            oldest=oldest,
            newest=newest,
            series=len(self.counts),
            samples=int(self.counts.sum()),
            index_bytes=index_bytes,
            samples_bytes=samples_bytes,
            parents=recipe.parents,
            erased=recipe.erased,
            came_ms=recipe.came_ms,
        )


class _SamplesFile:
    """Pages behind each other; remembers where each one lies."""

    def __init__(self, disk: FileSystem, path: Path) -> None:
        self._disk = disk
        self._file: BinaryIO = disk.create(path)
        self._buffer = [SAMPLES_MAGIC]
        self._buffered = len(SAMPLES_MAGIC)
        self.size = len(SAMPLES_MAGIC)
        self.pages: list[tuple[int, ...]] = []

    def add_page(self, kind: PageKind, slot: int, first: int, count: int, raw: bytes) -> None:
        stored = pack(raw)
        self.pages.append((kind, slot, first, count, *place_of(stored, raw, self.size)))
        self._buffer.append(stored)
        self._buffered += len(stored)
        self.size += len(stored)
        if self._buffered >= _BUFFER_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._disk.sync(self._file)

    def close(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        self._disk.write(self._file, b"".join(self._buffer))
        self._buffer, self._buffered = [], 0
