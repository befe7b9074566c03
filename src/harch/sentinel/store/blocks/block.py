"""What does one block hold, and what is its folder called?

Files on disk, of which only what a query needs is read; a damaged one is reported by name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from harch.base.errors import HarchError
from harch.base.seal import LINE, DamagedContent
from harch.base.state_files import put_right
from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.model.selection import Codes, Ints, LabelColumn, Samples, Selection, SeriesTable
from harch.sentinel.store.blocks.index_file import IndexFile, SectionCache, map_file
from harch.sentinel.store.blocks.meta import (
    INDEX_FILE,
    META_FILE,
    SAMPLES_FILE,
    SAMPLES_MAGIC,
    VERSION,
    BlockMeta,
    block_name,
)
from harch.sentinel.store.blocks.pages import BrokenPage
from harch.sentinel.store.blocks.reader import PageReader, ReadAnswer, ReadPlan
from harch.sentinel.store.disk import FileSystem

_ORDER = (MatchKind.EQUAL, MatchKind.REGEX, MatchKind.NOT_EQUAL, MatchKind.NOT_REGEX)  # cheap and narrow ones first


def matching_series(count: int, column_of: Callable[[str], LabelColumn | None], matchers: Sequence[Matcher]) -> Ints:
    """Places of the series that all matchers take, ascending. Dictionaries are sorted, "" first.

    A regular expression sees only the values that the matchers before it left over.
    """
    places = np.arange(count)
    for matcher in sorted(matchers, key=lambda matcher: _ORDER.index(matcher.kind)):
        column = column_of(matcher.name)
        if column is None:
            if not matcher.matches_empty():
                return places[:0]
            continue
        codes = column.codes if len(places) == count else column.codes[places]
        places = places[_accepted(matcher, column.values, codes)]
        if not len(places):
            break
    return places


def _accepted(matcher: Matcher, values: Sequence[str], codes: Codes) -> npt.NDArray[np.bool_]:
    if matcher.kind in (MatchKind.EQUAL, MatchKind.NOT_EQUAL):
        code = bisect_left(values, matcher.value)
        known = code < len(values) and values[code] == matcher.value
        equal: npt.NDArray[np.bool_] = codes == (code if known else -1)
        return equal if matcher.kind is MatchKind.EQUAL else ~equal
    taken = np.zeros(len(values), np.bool_)
    present = np.zeros(len(values), np.bool_)
    present[codes] = True
    for code in np.flatnonzero(present).tolist():
        taken[code] = matcher.matches(values[code])
    return taken[codes]


# What if bytes on disk are not those that were written?


class DamagedBlock(HarchError):
    """A block that cannot be trusted. Whoever keeps the set of blocks takes it out."""

    def __init__(self, block: Path, reason: str) -> None:
        hint = f"other blocks are unaffected; check the disk under {block.parent}"
        super().__init__("E0613", f"block {block.name}: {reason}", hint=hint)
        self.block = block
        self.reason = reason


# What does one block hold? Files on disk, of which only what a query needs is read.


Answer = TypeVar("Answer")

_PIECE = 1024  # series that are checked at a time


class Block:
    """An open block. All methods may be called from several threads; all raise DamagedBlock where bytes are wrong."""

    def __init__(self, path: Path, meta: BlockMeta, index: IndexFile, samples: memoryview) -> None:
        self.path = path
        self.meta = meta
        self._index = index
        self._pages = PageReader(index, samples)

    @staticmethod
    def open(path: Path, cache: SectionCache | None = None) -> Block:
        """Maps the files and checks their frames; pages are checked when they are read."""
        meta = _read_meta(path)
        try:
            index_data, samples = map_file(path / INDEX_FILE), map_file(path / SAMPLES_FILE)
            if len(index_data) != meta.index_bytes or len(samples) != meta.samples_bytes:
                raise BrokenPage("a file has the wrong length")
            if bytes(samples[: len(SAMPLES_MAGIC)]) != SAMPLES_MAGIC:
                raise BrokenPage("the samples have no valid start")
            index = IndexFile(index_data, cache or SectionCache())
        except (OSError, ValueError, BrokenPage) as broken:
            raise DamagedBlock(path, str(broken)) from broken
        return Block(path, meta, index, samples)

    def plan(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> tuple[SeriesTable, ReadPlan]:
        """The first half of `select`: which series, and how many samples of each. Values are not read."""

        def answer() -> tuple[SeriesTable, ReadPlan]:
            places = matching_series(self.meta.series, self._column, matchers)
            return self.table().take(places), self._pages.plan(places, start, end, limit)

        return self._checked(answer)

    def fill(self, plan: ReadPlan, first: Ints, answer: ReadAnswer) -> None:
        """The second half: reads what was planned to the places from `first` on, by series."""
        self._checked(lambda: self._pages.fill(plan, first, answer))

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        """Samples of all matching series, `start <= t <= end`. Raises E0603 beyond `limit` samples."""

        series, plan = self.plan(matchers, start, end, limit=limit)
        answer = ReadAnswer.for_counts(plan.count)
        self.fill(plan, answer.samples.first, answer)
        return Selection(series, answer.finished())

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        """Labels of matching series that have samples in the range. Reads no values."""

        places, counts = self.counts(matchers, start, end)
        return self.table().take(places[counts > 0])

    def counts(self, matchers: Sequence[Matcher], start: int, end: int) -> tuple[Ints, Ints]:
        """Places of matching series, and how many samples in the range each has. Reads no values."""

        def answer() -> tuple[Ints, Ints]:
            places = matching_series(self.meta.series, self._column, matchers)
            return places, self._pages.counts(places, start, end)

        return self._checked(answer)

    def read(self, places: Ints, start: int, end: int) -> Samples:
        """Samples of these series, in any order, without a limit: for those who go on by pieces."""

        def answer() -> Samples:
            order = np.argsort(places, kind="stable")
            found = self._pages.read(places[order], start, end, None)
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            return Samples(
                found.first[back],
                found.count[back],
                found.timestamps,
                found.values,
                found.starts,
                found.histogram_at,
                found.histograms,
            )

        return self._checked(answer)

    def table(self) -> SeriesTable:
        """The labels of all series, in their order on disk."""

        def answer() -> SeriesTable:
            names = self._index.strings("labels")
            return SeriesTable(self.meta.series, {name: self._index.label(name) for name in names})

        return self._checked(answer)

    def verify(self) -> None:
        """Reads everything, in pieces."""
        places = np.arange(self.meta.series)
        total = 0
        for first in range(0, self.meta.series, _PIECE):
            for start, end in self._checked(self._pages.slots):
                total += int(self.read(places[first : first + _PIECE], start, end).count.sum())
        if total != self.meta.samples:
            raise DamagedBlock(self.path, f"{total} samples, {self.meta.samples} expected")

    def close(self) -> None:
        """Frees what is cached. Maps go when the last reader does."""
        self._index.close()

    def _column(self, name: str) -> LabelColumn | None:
        return self._index.label(name) if name in self._index.strings("labels") else None

    def _checked(self, answer: Callable[[], Answer]) -> Answer:
        try:
            return answer()
        except BrokenPage as broken:
            raise DamagedBlock(self.path, str(broken)) from broken


def _read_meta(block: Path) -> BlockMeta:
    """Raises DamagedBlock for a file that is not as it was written, E0614 for one of another version."""
    path = block / META_FILE
    try:
        raw = path.read_bytes()
        line, is_mended = LINE.open(raw)
    except OSError as broken:
        raise DamagedBlock(block, f"{META_FILE} is not readable") from broken
    except DamagedContent as broken:
        raise DamagedBlock(block, f"the checksum of {META_FILE} is wrong") from broken
    if is_mended:
        put_right(path, raw, line)
    try:
        version = msgspec.json.decode(line)["version"]
        if version != VERSION:
            raise HarchError("E0614", f"{block.name} has version {version}, this release reads version {VERSION}")
        return msgspec.json.decode(line, type=BlockMeta)
    except (msgspec.MsgspecError, KeyError, TypeError) as broken:
        raise DamagedBlock(block, f"{META_FILE} is malformed") from broken


# How are the folders of a tenant's blocks called, and which number is the next?


BLOCK = "block-"
WRITING = "writing-"  # not yet a block: removed when the folder is opened
REMOVING = "removing-"  # no block any more: removed when the folder is opened
QUARANTINE = "quarantine"  # where damaged blocks go


def numbered(folder: Path, prefix: str) -> list[int]:
    """The numbers of the entries with this prefix, sorted; names of other forms are somebody else's."""
    found = (entry.name.removeprefix(prefix) for entry in folder.iterdir() if entry.name.startswith(prefix))
    return sorted(int(number) for number in found if number.isdecimal())


def reserve_sequence(folder: Path, disk: FileSystem) -> int:
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
