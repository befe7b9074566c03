"""How is a block written? Into a folder of another name, synced, then renamed: it is there as a whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.selection import Ints, Samples, Selection
from harch.sentinel.store.blocks.block import Block
from harch.sentinel.store.blocks.columns_kernels import encode_integer_columns, encode_value_columns
from harch.sentinel.store.blocks.disk import Disk, remove_tree, write_file
from harch.sentinel.store.blocks.histogram_pages import encode_histograms
from harch.sentinel.store.blocks.index_file import IndexWriter
from harch.sentinel.store.blocks.layout import Layout, PageKind, plan_layout
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
from harch.sentinel.store.blocks.names import WRITING, reserve_sequence
from harch.sentinel.store.blocks.pages import pack, place_of
from harch.sentinel.store.blocks.selecting_kernels import any_nonzero, cut_regions
from harch.sentinel.store.blocks.sorting import SortedSeries, sort_series
from harch.sentinel.store.blocks.sources import SelectionSource, Source
from harch.sentinel.store.blocks.time_pool import TimePool

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
    folder: Path, selection: Selection, start_ms: int, end_ms: int, *, came_ms: int = 0, disk: Disk | None = None
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
    return write_from(folder, source, Recipe(start_ms, end_ms, came_ms=came_ms), disk or Disk())


def write_from(folder: Path, source: Source, recipe: Recipe, disk: Disk) -> BlockMeta | None:
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


def _write_series(writing: Path, source: Source, recipe: Recipe, sequence: int, disk: Disk) -> BlockMeta | None:
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
    index.add_texts("labels", list(series.columns))
    for name, column in series.columns.items():
        index.add_texts(f"values/{name}", column.values)
        index.add_integers(f"codes/{name}", [column.codes.astype(np.int64)])


def _write_pages(
    file: _SamplesFile, source: Source, series: SortedSeries, layout: Layout, index: IndexWriter, written: _Written
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

    def __init__(self, disk: Disk, path: Path) -> None:
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
