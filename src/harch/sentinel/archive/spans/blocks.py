"""What do searches read?

Blocks of spans in groups: facts that rule groups out, columns for the rest, and arrays over their traces, sorted by
id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harch.sentinel.archive.spans import rows as columns
from harch.sentinel.archive.spans.conditions import holds, query_spelling, spellings
from harch.sentinel.archive.spans.rows import (
    ATTRIBUTE,
    DURATION,
    KINDS,
    PARENT,
    SPAN,
    START,
    STATUS,
    STATUSES,
    TRACE,
    SpanRows,
    typed_spellings,
    typed_text,
    typed_value,
    unpacked_attributes,
    words_of,
)
from harch.sentinel.model.selection import Codes, Ints
from harch.sentinel.model.spans import AttributeValue, Comparison, SpanCondition, SpanField, SpanStatus
from harch.sentinel.store.disk import crc32c

TraceId = tuple[int, int]
_ERROR = STATUSES.index(SpanStatus.ERROR)


@dataclass(frozen=True, slots=True)
class TraceTable:
    """One entry a trace. Its spans are rows `first` to `first + count` of the block."""

    high: Any  # uint64: the id's halves
    low: Any
    first: Ints
    count: Ints
    start: Ints
    end: Ints
    errors: Ints
    root: Ints  # row of the span that stands for it: its root, else its earliest
    has_root: Ints
    root_start: Ints
    root_span: Any

    def find(self, trace: TraceId) -> int:
        """The entry of a trace, -1 where it is not here."""
        high, low = np.uint64(trace[0]), np.uint64(trace[1])
        place = int(self.high.searchsorted(high))
        while place < len(self.high) and self.high[place] == high:
            if self.low[place] == low:
                return place
            place += 1
        return -1


COLUMNS = tuple(one.name for one in fields(TraceTable))


def ordered(table: Any) -> tuple[Ints, TraceTable]:
    """The order in which rows are kept (traces by their start, spans of one together), and its traces."""
    trace, span = words_of(table.column(TRACE)), words_of(table.column(SPAN))
    start = table.column(START).to_numpy()
    by_id = np.lexsort((span, start, trace[:, 1], trace[:, 0]))
    high, low, start = trace[by_id, 0], trace[by_id, 1], start[by_id]
    begins = np.flatnonzero(np.append(True, (np.diff(high) != 0) | (np.diff(low) != 0)))
    counts = np.diff(np.append(begins, len(by_id)))
    by_start = np.lexsort((low[begins], high[begins], start[begins]))
    first = np.empty(len(begins), np.int64)
    first[by_start] = np.cumsum(counts[by_start]) - counts[by_start]
    target = np.repeat(first - begins, counts) + np.arange(len(by_id))
    order = np.empty(len(by_id), np.int64)
    order[target] = by_id
    end = (table.column(START).to_numpy() + table.column(DURATION).to_numpy())[by_id]
    is_error = table.column(STATUS).to_numpy()[by_id] == _ERROR
    is_root = words_of(table.column(PARENT))[by_id] == 0
    numbers = np.arange(len(by_id))
    first_root = np.minimum.reduceat(np.where(is_root, numbers, len(by_id)), begins)
    has_root = first_root < np.append(begins[1:], len(by_id))
    root = np.where(has_root, first_root, begins)
    return order, TraceTable(
        high[begins],
        low[begins],
        first,
        counts.astype(np.int64),
        start[begins],
        np.maximum.reduceat(end, begins),
        np.add.reduceat(is_error.astype(np.int64), begins),
        first + root - begins,
        has_root.astype(np.int64),
        start[root],
        span[by_id][root],
    )


# What do searches read? Blocks of spans in groups: facts that rule groups out, columns for those that stay.


_BITS_PER_VALUE = 8
_SECOND = 0x9E3779B1  # the second place of a value in its filter


class GroupFacts(msgspec.Struct, array_like=True, frozen=True):
    """What is known of a group without reading it."""

    rows: int
    start_min: int
    start_max: int
    duration_min: int
    duration_max: int
    services: tuple[str, ...]
    names: tuple[str, ...]
    statuses: tuple[str, ...]
    kinds: tuple[str, ...]
    keys: tuple[str, ...]  # attributes of its spans and their resources
    values: bytes  # a Bloom filter over attributes with their values

    def may_satisfy(self, condition: SpanCondition) -> bool:
        match condition.field:
            case SpanField.SERVICE:
                return _any_holds(self.services, condition)
            case SpanField.NAME:
                return _any_holds(self.names, condition)
            case SpanField.STATUS:
                return _any_holds(self.statuses, condition)
            case SpanField.KIND:
                return _any_holds(self.kinds, condition)
            case SpanField.DURATION:
                return self._duration_may(condition)
            case SpanField.ATTRIBUTE:
                return self._attribute_may(condition)

    def _duration_may(self, condition: SpanCondition) -> bool:
        match condition.comparison:
            case Comparison.ABOVE | Comparison.AT_LEAST if isinstance(condition.value, int | float):
                return holds(self.duration_max, condition.comparison, condition.value)
            case Comparison.BELOW | Comparison.AT_MOST if isinstance(condition.value, int | float):
                return holds(self.duration_min, condition.comparison, condition.value)
            case _:
                return True

    def _attribute_may(self, condition: SpanCondition) -> bool:
        if condition.comparison in (Comparison.NOT_EQUAL, Comparison.NOT_REGEX):
            return True
        if condition.attribute not in self.keys:
            return False
        if condition.comparison is not Comparison.EQUAL:
            return True
        spelling = query_spelling(condition.value)
        return spelling is None or _may_hold(self.values, condition.attribute, spelling)


def _any_holds(values: Iterable[str], condition: SpanCondition) -> bool:
    return any(holds(value, condition.comparison, condition.value) for value in values)


def _may_hold(values: bytes, name: str, text: str) -> bool:
    """Whether an attribute may have this text, by a Bloom filter with two places for each."""
    mask = len(values) * 8 - 1
    first = crc32c(text.encode(), crc32c(name.encode()))
    return all(values[place >> 3] >> (place & 7) & 1 for place in (first & mask, (first * _SECOND >> 16) & mask))


def _filter_of(hashes: Sequence[int]) -> bytes:
    size = max(64, 1 << (len(hashes) * _BITS_PER_VALUE - 1).bit_length() if hashes else 0)
    first = np.array(hashes, np.uint64)
    bits = np.zeros(size, np.bool_)
    bits[(first & np.uint64(size - 1)).astype(np.int64)] = True
    bits[(((first * np.uint64(_SECOND)) >> np.uint64(16)) & np.uint64(size - 1)).astype(np.int64)] = True
    return np.packbits(bits, bitorder="little").tobytes()


class Coded:
    """A column of few different values: which ones, and of each row the place of its value, -1 for none."""

    __slots__ = ("_is_typed", "_values", "codes", "size", "strings")

    def __init__(self, column: Any, kind: str) -> None:
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        self.codes: Codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        self.strings = coded.dictionary
        self._is_typed = kind == ATTRIBUTE
        self._values: list[Any] | None = None
        self.size = self.codes.nbytes + self.strings.nbytes + 64 * len(self.strings)

    @property
    def values(self) -> list[Any]:
        if self._values is None:
            found = self.strings.to_pylist()
            self._values = [typed_value(value) for value in found] if self._is_typed else found
        return self._values

    def equal_to(self, wanted: AttributeValue) -> dict[int, AttributeValue]:
        """The few values of an attribute that can be equal to this one, by their places."""
        among = pc.is_in(self.strings, value_set=pa.array(typed_spellings(wanted), pa.string()))
        return {place: typed_value(self.strings[place].as_py()) for place in pc.indices_nonzero(among).to_pylist()}


class SpanBlock(Protocol):
    """Spans in the order of `traces.ordered`, in groups of rows."""

    traces: TraceTable
    groups: Sequence[GroupFacts]
    bounds: Ints  # first row of each group, and the one behind the last

    def numbers(self, group: int, name: str) -> Ints: ...

    def coded(self, group: int, name: str) -> Coded | None:
        """None: no such column, as of an attribute that no span has."""
        ...

    def ids(self, group: int) -> Any:
        """Span ids as words."""
        ...

    def rows(self, first: int, count: int) -> Any:
        """A table of these rows with all columns."""
        ...

    def root(self, entry: int) -> tuple[str, str]:
        """Service and name of the span that stands for a trace."""
        ...


class MemoryBlock:
    """Spans in memory, as one group."""

    def __init__(self, table: Any) -> None:
        order, self.traces = ordered(table)
        self._table = table.take(pa.array(order)).combine_chunks()
        self.groups: Sequence[GroupFacts] = [facts_of(self._table)]
        self.bounds: Ints = np.array([0, table.num_rows], np.int64)
        self._coded: dict[str, Coded | None] = {}

    def numbers(self, group: int, name: str) -> Ints:
        found: Ints = self._table.column(name).to_numpy()
        return found

    def coded(self, group: int, name: str) -> Coded | None:
        if name not in self._coded:
            known = name in self._table.column_names
            self._coded[name] = Coded(self._table.column(name), name[:2]) if known else None
        return self._coded[name]

    def ids(self, group: int) -> Any:
        return columns.words_of(self._table.column(columns.SPAN))

    def rows(self, first: int, count: int) -> Any:
        return self._table.slice(first, count)

    def root(self, entry: int) -> tuple[str, str]:
        row = int(self.traces.root[entry])
        return (
            self._table.column(columns.SERVICE)[row].as_py(),
            self._table.column(columns.NAME)[row].as_py(),
        )


def block_of(rows: SpanRows) -> MemoryBlock:
    """The block of a piece of memory, made once."""
    if rows.block is None:
        rows.block = MemoryBlock(rows.table)
    found: MemoryBlock = rows.block
    return found


def facts_of(table: Any) -> GroupFacts:
    """What is worth knowing of these rows before they are read."""
    starts, durations = table.column(columns.START).to_numpy(), table.column(columns.DURATION).to_numpy()
    hashes: list[int] = []
    keys: set[str] = set()
    for column in table.column_names:
        if column.startswith(ATTRIBUTE):
            strings = table.column(column).unique().drop_null().to_pylist()
            if strings:
                keys.add(column[2:])
                hashes += _hashes(column[2:], strings)
    for packed in (columns.RESOURCE, columns.MORE):
        for value in table.column(packed).unique().to_pylist():
            for name, one in unpacked_attributes(value):
                keys.add(name)
                hashes += _hashes(name, [typed_text(one)])
    return GroupFacts(
        table.num_rows,
        int(starts.min()),
        int(starts.max()),
        int(durations.min()),
        int(durations.max()),
        tuple(table.column(columns.SERVICE).unique().to_pylist()),
        tuple(table.column(columns.NAME).unique().to_pylist()),
        tuple(STATUSES[code].value for code in table.column(columns.STATUS).unique().to_pylist()),
        tuple(KINDS[code].value for code in table.column(columns.KIND).unique().to_pylist()),
        tuple(sorted(keys)),
        _filter_of(hashes),
    )


def _hashes(name: str, strings: Sequence[str]) -> list[int]:
    """Of each way to ask for these values of an attribute."""
    seed = crc32c(name.encode())
    return [
        crc32c(spelling.encode(), seed)
        for text in strings
        for spelling in ((text[1:],) if text[0] in "si" else spellings(typed_value(text)))
    ]
