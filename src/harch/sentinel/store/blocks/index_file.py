"""How is the index of a block written and read, and where does which page lie?

Named sections with checksums; pages by time into slots, by series into groups.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harch.sentinel.model.selection import Ints, LabelColumn
from harch.sentinel.store.blocks.bytes_kernels import BROKEN
from harch.sentinel.store.blocks.columns_kernels import decode_integer_columns, encode_integer_columns
from harch.sentinel.store.blocks.pages import BrokenPage, Bytes, PageLocation, pack, place_of, unpack

# How is a block's index written and read? As named sections with checksums, and a table of them at the file's end.
#
# A section is an array of integers, a list of texts, or a table of them. It is unpacked when it is first asked for,
# and a
# cache of bounded size keeps it.


MAGIC = b"HARCHIX1"
_TRAILER = struct.Struct("<QII")  # where the table of sections starts, its length, its checksum
_COLUMN = struct.Struct("<II")  # numbers in a column, and where it ends
_CACHE_BYTES = 64 << 20

Sections = dict[str, PageLocation]


class IndexWriter:
    """Collects sections; `finish` gives the bytes of the whole file."""

    def __init__(self) -> None:
        self._parts: list[bytes] = [MAGIC]
        self._size = len(MAGIC)
        self._sections: Sections = {}

    def add_integers(self, name: str, columns: Sequence[Ints]) -> None:
        count = np.array([len(column) for column in columns], np.int64)
        data, places = encode_integer_columns(
            np.concatenate([np.zeros(0, np.int64), *columns]).astype(np.int64), np.cumsum(count) - count, count
        )
        head = b"".join(_COLUMN.pack(*pair) for pair in zip(count.tolist(), places[1:].tolist(), strict=True))
        self._add(name, struct.pack("<I", len(columns)) + head + data.tobytes())

    def add_strings(self, name: str, strings: Sequence[str]) -> None:
        self._add(name, msgspec.msgpack.encode(strings))

    def _add(self, name: str, raw: bytes) -> None:
        stored = pack(raw)
        self._sections[name] = place_of(stored, raw, self._size)
        self._parts.append(stored)
        self._size += len(stored)

    def finish(self) -> bytes:
        table = msgspec.msgpack.encode(self._sections)
        trailer = _TRAILER.pack(self._size, len(table), zlib.crc32(table))
        return b"".join([*self._parts, table, trailer])


class SectionCache:
    """The sections used last, over all blocks that share it. Safe to use from several threads."""

    def __init__(self, limit_bytes: int = _CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._held: OrderedDict[tuple[int, str], tuple[Any, int]] = OrderedDict()
        self._owners = itertools.count()
        self._lock = threading.Lock()

    def new_owner(self) -> int:
        """A number for one index; never given twice."""
        return next(self._owners)

    def get(self, owner: int, name: str, load: Callable[[], tuple[Any, int]]) -> Any:
        """The section, from memory or from `load`, which also says how many bytes it takes."""
        key = (owner, name)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        content, size = load()
        with self._lock:
            if key not in self._held and size <= self._limit_bytes:
                self._held[key] = (content, size)
                self._held_bytes += size
                while self._held_bytes > self._limit_bytes:
                    _, (_, freed) = self._held.popitem(last=False)
                    self._held_bytes -= freed
        return content

    def forget(self, owner: int) -> None:
        with self._lock:
            for key in [key for key in self._held if key[0] == owner]:
                self._held_bytes -= self._held.pop(key)[1]

    @property
    def held_bytes(self) -> int:
        return self._held_bytes


class IndexFile:
    """A written index. Raises BrokenPage for anything that is not as it was written."""

    def __init__(self, data: memoryview, cache: SectionCache) -> None:
        self._data = data
        self._cache = cache
        self._owner = cache.new_owner()
        self._sections = _read_table(data)

    def names(self) -> list[str]:
        return list(self._sections)

    def integers(self, name: str) -> list[Ints]:
        def load() -> tuple[list[Ints], int]:
            columns = _columns(self._raw(name))
            return columns, sum(column.nbytes for column in columns) + 200

        found: list[Ints] = self._cache.get(self._owner, name, load)
        return found

    def label(self, name: str) -> LabelColumn:
        """The column of a label: its codes, and its values sorted."""

        def load() -> tuple[LabelColumn, int]:
            values = self.strings(f"values/{name}")
            (codes,) = _columns(self._raw(f"codes/{name}"))
            if len(codes) and not 0 <= codes.min() <= codes.max() < len(values):
                raise BrokenPage(f"the values of label {name} do not fit")
            return LabelColumn(codes.astype(np.int32), values), 4 * len(codes)

        found: LabelColumn = self._cache.get(self._owner, f"codes/{name}", load)
        return found

    def strings(self, name: str) -> tuple[str, ...]:
        def load() -> tuple[tuple[str, ...], int]:
            raw = self._raw(name)
            try:
                strings = msgspec.msgpack.decode(raw.data, type=tuple[str, ...])
            except msgspec.MsgspecError as broken:
                raise BrokenPage(f"the strings of {name} are malformed") from broken
            return strings, len(raw) + 60 * len(strings)

        found: tuple[str, ...] = self._cache.get(self._owner, name, load)
        return found

    def cached(self, name: str, load: Callable[[], tuple[Any, int]]) -> Any:
        """What somebody makes of sections, kept like them. The name must not be that of a section."""
        return self._cache.get(self._owner, name, load)

    def close(self) -> None:
        self._cache.forget(self._owner)

    def _raw(self, name: str) -> Bytes:
        if name not in self._sections:
            raise BrokenPage(f"the index lacks {name}")
        return unpack(self._data, self._sections[name])


def map_file(path: Path) -> memoryview:
    """A file's bytes without reading them. They stay readable after the file is removed."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _read_table(data: memoryview) -> Sections:
    if len(data) < len(MAGIC) + _TRAILER.size or bytes(data[: len(MAGIC)]) != MAGIC:
        raise BrokenPage("the index does not start as one")
    start, length, checksum = _TRAILER.unpack(data[-_TRAILER.size :])
    if start + length + _TRAILER.size != len(data):
        raise BrokenPage("the index does not end as one")
    table = data[start : start + length]
    if zlib.crc32(table) != checksum:
        raise BrokenPage("the checksum of the index is wrong")
    try:
        return msgspec.msgpack.decode(table, type=Sections)
    except msgspec.MsgspecError as broken:
        raise BrokenPage("the table of the index is malformed") from broken


def _columns(raw: Bytes) -> list[Ints]:
    (columns,) = struct.unpack_from("<I", raw.data) if len(raw) >= 4 else (-1,)
    head = 4 + columns * _COLUMN.size
    if columns < 0 or head > len(raw):
        raise BrokenPage("a table of the index is too short")
    sizes = np.frombuffer(raw[4:head].tobytes(), np.uint32).astype(np.int64).reshape(columns, 2)
    length, stop = sizes[:, 0].copy(), sizes[:, 1].copy()
    begin = np.concatenate([np.zeros(1, np.int64), stop[:-1]])[:columns]
    target = np.cumsum(length) - length
    out = np.empty(int(length.sum()), np.int64)
    nothing = np.zeros(columns, np.int64)
    if decode_integer_columns(raw[head:], begin, stop, length, nothing, length, target, out) == BROKEN:
        raise BrokenPage("a column of the index does not decode")
    return [out[at : at + size] for at, size in zip(target.tolist(), length.tolist(), strict=True)]


# How is a block cut into pages? By time into slots, by series into groups; a page is one group in one slot.


SAMPLES_PER_COLUMN = 512  # of one series in one slot: enough to compress well, little to decode in vain
SAMPLES_PER_PAGE = 32_768
SERIES_PER_PAGE = (16, 1024)
SLOTS_MAX = 4096


class PageKind(IntEnum):
    TIMES = 0  # columns of times, shared by series that were scraped together
    VALUES = 1
    STARTS = 2  # since when counters count; only where that is known
    HISTOGRAMS = 3


PAGE_COLUMNS = ("kind", "slot", "first", "count", "offset", "stored", "raw", "checksum")  # of the table of pages


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Slots are `start <= t <= end` and touch each other; `group` series share a page."""

    slots: tuple[tuple[int, int], ...]
    group: int


def plan_layout(start_ms: int, end_ms: int, series: int, samples: int) -> PageLayout:
    """Slots of about SAMPLES_PER_COLUMN samples a series, pages of about SAMPLES_PER_PAGE samples."""
    each = max(1, samples // max(1, series))
    slots = max(1, min(round(each / SAMPLES_PER_COLUMN), SLOTS_MAX, end_ms - start_ms))
    bounds = [start_ms + (end_ms - start_ms) * slot // slots for slot in range(slots + 1)]
    low, high = SERIES_PER_PAGE
    group = max(low, min(high, SAMPLES_PER_PAGE * slots // each))
    return PageLayout(tuple((begin, stop - 1) for begin, stop in pairwise(bounds)), group)


# Where does which page lie? The table of a block's pages, by kind and slot.


_BYTES_PER_PAGE = 300  # about what one takes in memory


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that holds what is wanted: `wanted[low:high]`."""

    first: int  # series or column of times that the page starts with
    count: int
    place: PageLocation
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Pages:
    first: Ints
    count: Ints
    places: list[PageLocation]


Table = dict[tuple[int, int], _Pages]


def pages_holding(index: IndexFile, kind: PageKind, slot: int, wanted: Ints) -> Iterator[Hit]:
    """The pages that hold any of these series or columns (ascending), in order."""
    pages = page_table(index).get((kind, slot))
    if pages is None:
        return
    low = np.searchsorted(wanted, pages.first)
    high = np.searchsorted(wanted, pages.first + pages.count)
    for row in np.flatnonzero(low < high).tolist():
        yield Hit(int(pages.first[row]), int(pages.count[row]), pages.places[row], int(low[row]), int(high[row]))


def has_kind(index: IndexFile, kind: PageKind) -> bool:
    return any(known == kind for known, _ in page_table(index))


def page_table(index: IndexFile) -> Table:
    def load() -> tuple[Table, int]:
        columns = index.integers("pages")
        if len(columns) != len(PAGE_COLUMNS):
            raise BrokenPage("the table of pages is malformed")
        kind, slot, first, count, *place = columns
        rows = [PageLocation(*numbers) for numbers in zip(*(column.tolist() for column in place), strict=True)]
        table: Table = {}
        for key in set(zip(kind.tolist(), slot.tolist(), strict=True)):
            mine = np.flatnonzero((kind == key[0]) & (slot == key[1]))
            table[key] = _Pages(first[mine], count[mine], [rows[row] for row in mine.tolist()])
        return table, _BYTES_PER_PAGE * len(rows)

    found: Table = index.cached("page table", load)
    return found
