"""How is a block cut into pages? By time into slots, by series into groups; a page is one group in one slot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

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
class Layout:
    """Slots are `start <= t <= end` and touch each other; `group` series share a page."""

    slots: tuple[tuple[int, int], ...]
    group: int


def plan_layout(start_ms: int, end_ms: int, series: int, samples: int) -> Layout:
    """Slots of about SAMPLES_PER_COLUMN samples a series, pages of about SAMPLES_PER_PAGE samples."""
    each = max(1, samples // max(1, series))
    slots = max(1, min(round(each / SAMPLES_PER_COLUMN), SLOTS_MAX, end_ms - start_ms))
    bounds = [start_ms + (end_ms - start_ms) * slot // slots for slot in range(slots + 1)]
    low, high = SERIES_PER_PAGE
    group = max(low, min(high, SAMPLES_PER_PAGE * slots // each))
    return Layout(tuple((begin, stop - 1) for begin, stop in pairwise(bounds)), group)
