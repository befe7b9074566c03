"""How do spans lie in a file?

Parquet that any tool reads, whole traces together, and an index beside it; how a table writes, reads and erases them.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cramjam
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harch.sentinel.archive.files import DamagedFile, mapped
from harch.sentinel.archive.logs.file import INDEX, PARQUET
from harch.sentinel.archive.parquet import GroupReader, ParquetSums, sums_of
from harch.sentinel.archive.row_storage import OpenFiles
from harch.sentinel.archive.spans import rows as columns
from harch.sentinel.archive.spans.blocks import (
    COLUMNS,
    Coded,
    GroupFacts,
    MemoryBlock,
    SpanBlock,
    TraceTable,
    facts_of,
    ordered,
)
from harch.sentinel.archive.spans.rows import START, SpanRows, decoded, joined, taken
from harch.sentinel.archive.spans.search import matching, possible
from harch.sentinel.archive.string_columns import Mask
from harch.sentinel.model.selection import Ints
from harch.sentinel.model.spans import AttributeValue, Comparison, SpanCondition, SpanField, SpanQuery
from harch.sentinel.store.disk import FileSystem, crc32c, write_file

GROUP_ROWS = 1 << 14
_MAGIC = b"HSSPNIX1"
_WORDS = frozenset({"high", "low", "root_span"})
_PLAIN = frozenset({columns.TRACE, columns.SPAN, columns.PARENT, columns.START, columns.DURATION})
_NUMBERED = _PLAIN | {columns.KIND, columns.STATUS}
_CACHE_BYTES = 128 << 20


class _Index(msgspec.Struct, array_like=True, frozen=True):
    groups: list[GroupFacts]
    strings: list[str]  # services and names of roots
    root_services: bytes  # int32 each, places in `texts`
    root_names: bytes
    traces: int
    traces_checksum: int
    parquet: ParquetSums | None = None  # None: of an older release


def write_span_file(stem: Path, rows: SpanRows, disk: FileSystem) -> int:
    """Both files, synced; returns how many bytes they take."""
    order, traces = ordered(rows.table)
    table = rows.table.take(pa.array(order)).combine_chunks()
    empty = [name for name in table.column_names if table.column(name).null_count == table.num_rows]
    table = table.drop_columns(empty)
    parquet = _parquet(table)
    write_file(disk, stem.with_suffix(PARQUET), parquet)
    index = _index(table, traces, sums_of(parquet))
    write_file(disk, stem.with_suffix(INDEX), index)
    return len(parquet) + len(index)


def _parquet(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    coded = [name for name in table.column_names if name not in _PLAIN]
    delta = {columns.START: "DELTA_BINARY_PACKED", columns.DURATION: "DELTA_BINARY_PACKED"}
    pq.write_table(
        table,
        sink,
        row_group_size=GROUP_ROWS,
        compression="zstd",
        compression_level=1,
        use_dictionary=coded,
        column_encoding=delta,
        write_statistics=False,
        write_page_checksum=True,
    )
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _index(table: Any, traces: TraceTable, parquet: ParquetSums) -> bytes:
    groups = [facts_of(table.slice(begin, GROUP_ROWS)) for begin in range(0, table.num_rows, GROUP_ROWS)]
    known: dict[str, int] = {}
    roots = []
    for column in (columns.SERVICE, columns.NAME):
        coded = table.column(column).take(pa.array(traces.root)).combine_chunks().dictionary_encode()
        places = np.array([known.setdefault(text, len(known)) for text in coded.dictionary.to_pylist()], np.int32)
        roots.append(places[coded.indices.to_numpy()].tobytes())
    body = b"".join(getattr(traces, name).tobytes() for name in COLUMNS)
    content = _Index(groups, list(known), roots[0], roots[1], len(traces.high), crc32c(body), parquet)
    head = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(content), 3))
    padding = bytes(-(16 + len(head)) % 8)
    return b"".join([_MAGIC, len(head).to_bytes(4, "little"), crc32c(head).to_bytes(4, "little"), head, padding, body])


class ColumnCache:
    """Columns that were read lately, of all files, within a bound."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[tuple[int, int, str], tuple[Any, int]] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int, str]) -> Any:
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: tuple[int, int, str], column: Any, size: int) -> None:
        with self._lock:
            if key not in self._held:
                self._held[key] = (column, size)
                self._used += size
            while self._used > self._bytes_max:
                self._used -= self._held.popitem(last=False)[1][1]


_CACHE = ColumnCache(_CACHE_BYTES)
_NUMBERS = itertools.count()  # of opened files, so that the cache never takes one for another


class SpanFile:
    """An open file, as a block."""

    def __init__(self, stem: Path) -> None:
        """Raises E0613 for what was not written like that."""
        self._number = next(_NUMBERS)
        data = mapped(stem.with_suffix(INDEX))
        size = int.from_bytes(data[8:12], "little")
        head = data[16 : 16 + size]
        if data[:8] != _MAGIC or crc32c(head) != int.from_bytes(data[12:16], "little"):
            raise DamagedFile(stem, "its index does not match its checksum")
        self._index = msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(head)), type=_Index)
        self.groups: Sequence[GroupFacts] = self._index.groups
        self.bounds: Ints = np.cumsum([0, *(one.rows for one in self.groups)])
        begin = 16 + size + -(16 + size) % 8
        count = self._index.traces
        if len(data) != begin + 8 * count * len(COLUMNS):
            raise DamagedFile(stem, "its index has the wrong length")
        parts: dict[str, Any] = {}
        for place, name in enumerate(COLUMNS):
            kind = np.uint64 if name in _WORDS else np.int64
            parts[name] = np.frombuffer(data, kind, count, begin + 8 * count * place)
        if crc32c(memoryview(data)[begin:]) != self._index.traces_checksum:
            raise DamagedFile(stem, "its list of traces does not match its checksum")
        self.traces = TraceTable(**parts)
        self._services = np.frombuffer(self._index.root_services, np.int32)
        self._names = np.frombuffer(self._index.root_names, np.int32)
        self._parquet = GroupReader(stem.with_suffix(PARQUET), self._index.parquet, _NUMBERED)

    def numbers(self, group: int, name: str) -> Ints:
        found = _CACHE.get((self._number, group, name))
        if found is None:
            found = self._parquet.read(group, [name]).column(0).to_numpy()
            _CACHE.put((self._number, group, name), found, found.nbytes)
        numbers: Ints = found
        return numbers

    def coded(self, group: int, name: str) -> Coded | None:
        if name not in self._parquet.names:
            return None
        found = _CACHE.get((self._number, group, name))
        if found is None:
            found = Coded(self._parquet.read(group, [name]).column(0), name[:2])
            _CACHE.put((self._number, group, name), found, found.size)
        coded: Coded = found
        return coded

    def ids(self, group: int) -> Any:
        found = _CACHE.get((self._number, group, columns.SPAN))
        if found is None:
            found = columns.words_of(self._parquet.read(group, [columns.SPAN]).column(0))
            _CACHE.put((self._number, group, columns.SPAN), found, found.nbytes)
        return found

    def rows(self, first: int, count: int) -> Any:
        begin = int(np.searchsorted(self.bounds, first, side="right")) - 1
        end = int(np.searchsorted(self.bounds, first + count, side="left"))
        parts = []
        for group in range(begin, end):
            low = max(first, int(self.bounds[group])) - int(self.bounds[group])
            high = min(first + count, int(self.bounds[group + 1])) - int(self.bounds[group])
            parts.append(self._parquet.read(group, None).slice(low, high - low))
        return pa.concat_tables(parts)

    def all_rows(self) -> Any:
        """Of columns as they are, not coded."""
        return self._parquet.read_all()

    def root(self, entry: int) -> tuple[str, str]:
        return self._index.strings[self._services[entry]], self._index.strings[self._names[entry]]


def read_span_file(stem: Path) -> SpanRows:
    """All of it, for rewriting."""
    return SpanRows(SpanFile(stem).all_rows().combine_chunks())


# How does a table deal with spans? What its `Kind` asks, answered for tables of spans.


_OPEN_FILES_MAX = 256


class SpanErasure(msgspec.Struct, array_like=True, frozen=True):
    """Spans that satisfy all conditions and are, if any ids are given, of one of these traces."""

    start_ns: int
    end_ns: int
    conditions: tuple[tuple[str, str, AttributeValue, str], ...]
    trace_ids: tuple[str, ...]

    def read_conditions(self) -> tuple[SpanCondition, ...]:
        return tuple(
            SpanCondition(SpanField(field), Comparison(comparison), value, attribute)
            for field, comparison, value, attribute in self.conditions
        )


def erasure_bytes(query: SpanQuery, trace_ids: Sequence[str]) -> bytes:
    conditions = tuple((one.field.value, one.comparison.value, one.value, one.attribute) for one in query.conditions)
    return msgspec.msgpack.encode(SpanErasure(query.start_ns, query.end_ns, conditions, tuple(trace_ids)))


def erased(block: SpanBlock, erasure: bytes) -> Mask:
    """Which rows of a block an erasure takes out."""
    criteria = msgspec.msgpack.decode(erasure, type=SpanErasure)
    conditions = criteria.read_conditions()
    mask = np.zeros(int(block.bounds[-1]), np.bool_)
    if criteria.trace_ids:
        among = np.zeros(len(mask), np.bool_)
        for trace_id in criteria.trace_ids:
            entry = block.traces.find(trace_words(trace_id))
            if entry >= 0:
                first = int(block.traces.first[entry])
                among[first : first + int(block.traces.count[entry])] = True
        if not among.any():
            return mask
    else:
        among = np.ones(len(mask), np.bool_)
    for group in range(len(block.groups)):
        begin, end = int(block.bounds[group]), int(block.bounds[group + 1])
        if among[begin:end].any() and possible(block, group, conditions, criteria.start_ns, criteria.end_ns):
            mask[begin:end] = matching(block, group, conditions, criteria.start_ns, criteria.end_ns)
    return mask & among


def trace_words(trace_id: str) -> tuple[int, int]:
    """The halves of an id; (0, 0), which no trace has, for what is none."""
    try:
        data = bytes.fromhex(trace_id)
    except ValueError:
        data = b""
    if len(data) != 16:
        return 0, 0
    return int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big")


class SpanRowStorage:
    suffixes: tuple[str, ...] = (PARQUET, INDEX)

    def __init__(self) -> None:
        self._files = OpenFiles(SpanFile, _OPEN_FILES_MAX)

    def file(self, stem: Path) -> SpanFile:
        return self._files.at(stem)

    def forget(self, name: str) -> None:
        self._files.forget(name)

    def decoded(self, record: bytes) -> SpanRows:
        return decoded(record)

    def joined(self, parts: Sequence[SpanRows]) -> SpanRows:
        return joined(parts)

    def times(self, rows: SpanRows) -> Ints:
        found: Ints = rows.table.column(START).to_numpy()
        return found

    def taken(self, rows: SpanRows, places: Ints) -> SpanRows:
        return taken(rows, places)

    def without(self, rows: SpanRows, erasure: bytes) -> SpanRows:
        block = MemoryBlock(rows.table)
        gone = erased(block, erasure)
        if not gone.any():
            return rows
        return SpanRows(block.rows(0, rows.count).filter(~gone).combine_chunks())

    def write(self, stem: Path, rows: SpanRows, disk: FileSystem) -> int:
        return write_span_file(stem, rows, disk)

    def read(self, stem: Path) -> SpanRows:
        return read_span_file(stem)

    def holds(self, stem: Path, erasure: bytes) -> bool:
        return bool(erased(self.file(stem), erasure).any())
