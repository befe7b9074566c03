"""How does a table deal with spans? What its `Kind` asks, answered for tables of spans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from harch.sentinel.archive.logs.file import INDEX, PARQUET
from harch.sentinel.archive.open_files import OpenFiles
from harch.sentinel.archive.spans.blocks import Block, MemoryBlock
from harch.sentinel.archive.spans.file import SpanFile, read_span_file, write_span_file
from harch.sentinel.archive.spans.matching import matching, possible
from harch.sentinel.archive.spans.rows import START, SpanRows, decoded, joined, taken
from harch.sentinel.archive.texts import Mask
from harch.sentinel.model.selection import Ints
from harch.sentinel.model.spans import AttributeValue, Comparison, Field, SpanCondition, SpanQuery
from harch.sentinel.store.blocks.disk import Disk

_OPEN_FILES_MAX = 256


class SpanErasure(msgspec.Struct, array_like=True, frozen=True):
    """Spans that satisfy all conditions and are, if any ids are given, of one of these traces."""

    start_ns: int
    end_ns: int
    conditions: tuple[tuple[str, str, AttributeValue, str], ...]
    trace_ids: tuple[str, ...]

    def read_conditions(self) -> tuple[SpanCondition, ...]:
        return tuple(
            SpanCondition(Field(field), Comparison(comparison), value, attribute)
            for field, comparison, value, attribute in self.conditions
        )


def erasure_bytes(query: SpanQuery, trace_ids: Sequence[str]) -> bytes:
    conditions = tuple((one.field.value, one.comparison.value, one.value, one.attribute) for one in query.conditions)
    return msgspec.msgpack.encode(SpanErasure(query.start_ns, query.end_ns, conditions, tuple(trace_ids)))


def erased(block: Block, erasure: bytes) -> Mask:
    """Which rows of a block an erasure takes out."""
    told = msgspec.msgpack.decode(erasure, type=SpanErasure)
    conditions = told.read_conditions()
    mask = np.zeros(int(block.bounds[-1]), np.bool_)
    if told.trace_ids:
        among = np.zeros(len(mask), np.bool_)
        for trace_id in told.trace_ids:
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
        if among[begin:end].any() and possible(block, group, conditions, told.start_ns, told.end_ns):
            mask[begin:end] = matching(block, group, conditions, told.start_ns, told.end_ns)
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


class SpanKindOfRows:
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

    def write(self, stem: Path, rows: SpanRows, disk: Disk) -> int:
        return write_span_file(stem, rows, disk)

    def read(self, stem: Path) -> SpanRows:
        return read_span_file(stem)

    def holds(self, stem: Path, erasure: bytes) -> bool:
        return bool(erased(self.file(stem), erasure).any())
