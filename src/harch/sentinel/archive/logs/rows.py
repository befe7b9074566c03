"""What is a log line in memory? A place in columns: its stream's number, its time, its text, and its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from harch.sentinel.archive.string_columns import (
    PackedStrings,
    StringColumn,
    bytes_in,
    empty_strings,
    joined_strings,
    packed,
    string_column,
    unpacked,
)
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import SPAN_ID, TRACE_ID, LogBatch
from harch.sentinel.model.selection import Codes, Ints

REST = "metadata"  # as JSON: all metadata but the links to traces, which have columns of their own
EXTRAS = (TRACE_ID, SPAN_ID, REST)
_ROW_BYTES = 24  # of numbers and offsets

_to_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class LogRows:
    """Lines by arrival. `extras` lacks the columns in which every line is empty."""

    streams: tuple[Labels, ...]
    stream_at: Codes
    times: Ints
    bodies: StringColumn
    extras: Mapping[str, StringColumn]

    @property
    def count(self) -> int:
        return len(self.times)

    @property
    def raw_bytes(self) -> int:
        return bytes_in(self.bodies)

    @property
    def memory_bytes(self) -> int:
        return _ROW_BYTES * self.count + bytes_in(self.bodies) + sum(bytes_in(one) for one in self.extras.values())


class _Record(msgspec.Struct, array_like=True, frozen=True):
    streams: tuple[Labels, ...]
    stream_at: bytes
    times: bytes
    bodies: PackedStrings
    extras: dict[str, PackedStrings]


_decoder = msgspec.msgpack.Decoder(_Record)
_encoder = msgspec.msgpack.Encoder()


def rows_of(batches: Sequence[LogBatch]) -> LogRows:
    """Raises UnicodeEncodeError for text that is no UTF-8."""
    known: dict[Labels, int] = {}
    codes = [known.setdefault(batch.labels, len(known)) for batch in batches]
    counts = [len(batch.bodies) for batch in batches]
    bodies: list[str] = []
    times: list[int] = []
    for batch in batches:
        bodies += batch.bodies
        times += batch.times_ns
    extras: dict[str, StringColumn] = {}
    if any(batch.metadata for batch in batches):
        extras = _extras_of(batches)
    return LogRows(
        tuple(known),
        np.repeat(np.array(codes, np.int32), counts),
        np.array(times, np.int64),
        string_column(bodies),
        extras,
    )


def _extras_of(batches: Sequence[LogBatch]) -> dict[str, StringColumn]:
    columns: dict[str, list[str]] = {name: [] for name in EXTRAS}
    for batch in batches:
        for more in batch.metadata or [()] * len(batch.bodies):
            trace_id, span_id, rest = _parts(more)
            columns[TRACE_ID].append(trace_id)
            columns[SPAN_ID].append(span_id)
            columns[REST].append(rest)
    return {name: string_column(values) for name, values in columns.items() if any(values)}


@lru_cache(maxsize=4096)
def _rest_text(rest: Labels) -> str:
    return _to_json(dict(rest)).decode() if rest else ""


def _parts(more: Labels) -> tuple[str, str, str]:
    if not more:
        return "", "", ""
    values = dict(more)
    trace_id, span_id = values.pop(TRACE_ID, ""), values.pop(SPAN_ID, "")
    return trace_id, span_id, _rest_text(tuple(sorted(values.items())))


@lru_cache(maxsize=65_536)
def rest_labels(text: str) -> Labels:
    return tuple(msgspec.json.decode(text, type=dict[str, str]).items()) if text else ()


def metadata_of(trace_id: str, span_id: str, rest: str) -> Labels:
    """A line's metadata, from the columns."""
    found = rest_labels(rest)
    if not trace_id and not span_id:
        return found
    links = [(name, value) for name, value in ((TRACE_ID, trace_id), (SPAN_ID, span_id)) if value]
    return tuple(sorted((*found, *links)))


def encoded(rows: LogRows) -> bytes:
    return _encoder.encode(
        _Record(
            rows.streams,
            rows.stream_at.tobytes(),
            rows.times.tobytes(),
            packed(rows.bodies),
            {name: packed(column) for name, column in rows.extras.items()},
        )
    )


def decoded(record: bytes) -> LogRows:
    found = _decoder.decode(record)
    return LogRows(
        found.streams,
        np.frombuffer(found.stream_at, np.int32),
        np.frombuffer(found.times, np.int64),
        unpacked(found.bodies),
        {name: unpacked(column) for name, column in found.extras.items()},
    )


def joined(parts: Sequence[LogRows]) -> LogRows:
    if len(parts) == 1:
        return parts[0]
    known: dict[Labels, int] = {}
    codes = []
    for part in parts:
        local = np.array([known.setdefault(stream, len(known)) for stream in part.streams], np.int32)
        codes.append(local[part.stream_at] if len(local) else part.stream_at)
    names = {name for part in parts for name in part.extras}
    return LogRows(
        tuple(known),
        np.concatenate(codes),
        np.concatenate([part.times for part in parts]),
        joined_strings([part.bodies for part in parts]),
        {name: joined_strings([_column(part, name) for part in parts]) for name in sorted(names)},
    )


def _column(rows: LogRows, name: str) -> StringColumn:
    found = rows.extras.get(name)
    return empty_strings(rows.count) if found is None else found


def taken(rows: LogRows, places: Ints) -> LogRows:
    return LogRows(
        rows.streams,
        rows.stream_at[places],
        rows.times[places],
        rows.bodies.take(places),
        {name: column.take(places) for name, column in rows.extras.items()},
    )
