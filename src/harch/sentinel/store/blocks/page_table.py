"""Where does which page lie? The table of a block's pages, by kind and slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.selection import Ints
from harch.sentinel.store.blocks.index_file import IndexFile
from harch.sentinel.store.blocks.layout import PAGE_COLUMNS, PageKind
from harch.sentinel.store.blocks.pages import BrokenPage, Place

_BYTES_PER_PAGE = 300  # about what one takes in memory


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that holds what is wanted: `wanted[low:high]`."""

    first: int  # series or column of times that the page starts with
    count: int
    place: Place
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Pages:
    first: Ints
    count: Ints
    places: list[Place]


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
            raise BrokenPage("the table of pages has another form")
        kind, slot, first, count, *place = columns
        rows = [Place(*numbers) for numbers in zip(*(column.tolist() for column in place), strict=True)]
        table: Table = {}
        for key in set(zip(kind.tolist(), slot.tolist(), strict=True)):
            mine = np.flatnonzero((kind == key[0]) & (slot == key[1]))
            table[key] = _Pages(first[mine], count[mine], [rows[row] for row in mine.tolist()])
        return table, _BYTES_PER_PAGE * len(rows)

    found: Table = index.cached("page table", load)
    return found
