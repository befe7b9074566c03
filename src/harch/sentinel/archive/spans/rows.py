"""What is a span in memory? A row of columns; attributes are columns too, as long as they are few."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from harch.sentinel.model.selection import Ints
from harch.sentinel.model.spans import (
    Attributes,
    AttributeValue,
    Span,
    SpanEvent,
    SpanKind,
    SpanLink,
    SpanStatus,
)

TRACE, SPAN, PARENT = "trace_id", "span_id", "parent_id"
START, DURATION, KIND, STATUS = "start_ns", "duration_ns", "kind", "status"
SERVICE, NAME, SCOPE, MESSAGE = "service", "name", "scope", "status_message"
RESOURCE, EVENTS, LINKS, MORE = "resource", "events", "links", "more"
ATTRIBUTE = "a:"  # before the name of an attribute, in the name of its column
ATTRIBUTE_COLUMNS_MAX = 128
KINDS, STATUSES = tuple(SpanKind), tuple(SpanStatus)
TEXT_COLUMNS = (SERVICE, NAME, SCOPE, MESSAGE)
PACKED_COLUMNS = (RESOURCE, EVENTS, LINKS, MORE)
_KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_STATUS_CODE = {status: code for code, status in enumerate(STATUSES)}

_pack = msgspec.msgpack.Encoder().encode
_spans = msgspec.msgpack.Decoder(list[Span])
_attributes = msgspec.msgpack.Decoder(Attributes)
_events = msgspec.msgpack.Decoder(tuple[SpanEvent, ...])
_links = msgspec.msgpack.Decoder(tuple[SpanLink, ...])


@dataclass(slots=True, eq=False)
class SpanRows:
    """Spans as a table without chunks. `block` is what searches made of it, kept for the next one."""

    table: Any
    block: Any = field(default=None, repr=False)
    memory_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.memory_bytes = int(self.table.nbytes)

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    @property
    def raw_bytes(self) -> int:
        return self.memory_bytes


def encoded_span(span: Span) -> bytes:
    """One span for the log. Raises UnicodeEncodeError or OverflowError for what cannot be kept."""
    return _pack(span)


def record_of(parts: Sequence[bytes]) -> bytes:
    """Encoded spans as one record: an array of MessagePack."""
    return b"\xdd" + len(parts).to_bytes(4, "big") + b"".join(parts)


def decoded(record: bytes) -> SpanRows:
    return rows_of(_spans.decode(record))


def rows_of(spans: Sequence[Span]) -> SpanRows:
    """Ids are hexadecimal; all texts are UTF-8."""
    columns: dict[str, Any] = {
        TRACE: _ids([span.trace_id for span in spans], 16),
        SPAN: _ids([span.span_id for span in spans], 8),
        PARENT: _ids([span.parent_id or "0000000000000000" for span in spans], 8),
        START: pa.array([span.start_ns for span in spans], pa.int64()),
        DURATION: pa.array([span.duration_ns for span in spans], pa.int64()),
        KIND: pa.array([_KIND_CODE[span.kind] for span in spans], pa.int8()),
        STATUS: pa.array([_STATUS_CODE[span.status] for span in spans], pa.int8()),
        SERVICE: pa.array([span.service for span in spans], pa.string()),
        NAME: pa.array([span.name for span in spans], pa.string()),
        SCOPE: pa.array([span.scope for span in spans], pa.string()),
        MESSAGE: pa.array([span.status_message for span in spans], pa.string()),
        RESOURCE: pa.array([_pack(span.resource) if span.resource else b"" for span in spans], pa.binary()),
        EVENTS: pa.array([_pack(span.events) if span.events else b"" for span in spans], pa.binary()),
        LINKS: pa.array([_pack(span.links) if span.links else b"" for span in spans], pa.binary()),
    }
    return SpanRows(pa.table(columns | _attribute_columns(spans)))


def _attribute_columns(spans: Sequence[Span]) -> dict[str, Any]:
    values: dict[str, list[str | None]] = {}
    more: dict[int, list[tuple[str, AttributeValue]]] = {}
    count = len(spans)
    for place, span in enumerate(spans):
        for name, value in span.attributes:
            column = values.get(name)
            if column is None:
                if len(values) >= ATTRIBUTE_COLUMNS_MAX:
                    more.setdefault(place, []).append((name, value))
                    continue
                column = values[name] = [None] * count
            column[place] = "s" + value if type(value) is str else typed_text(value)
    columns = {ATTRIBUTE + name: pa.array(column, pa.string()) for name, column in values.items()}
    packed = [_pack(tuple(more[place])) if place in more else b"" for place in range(count)] if more else [b""] * count
    return {MORE: pa.array(packed, pa.binary()), **columns}


def typed_text(value: AttributeValue) -> str:
    """A value as text that tells its type."""
    if isinstance(value, str):
        return "s" + value
    if isinstance(value, bool):
        return "b1" if value else "b0"
    return f"i{value}" if isinstance(value, int) else f"f{value!r}"


def typed_spellings(wanted: AttributeValue) -> list[str]:
    """How values are kept that can be equal to this one: as the same text, or as the same number."""
    text = str(wanted).lower() if isinstance(wanted, bool) else str(wanted)
    found = {"s" + text, "i" + text, "f" + text}
    if text in ("true", "false"):
        found.add("b1" if text == "true" else "b0")
    if isinstance(wanted, int | float) and not isinstance(wanted, bool) and math.isfinite(wanted):
        found |= {f"i{int(wanted)}", f"f{float(wanted)!r}", f"f{-float(wanted)!r}" if not wanted else ""}
    return sorted(found)


def typed_value(text: str) -> AttributeValue:
    kind, rest = text[0], text[1:]
    if kind == "s":
        return rest
    if kind == "b":
        return rest == "1"
    return int(rest) if kind == "i" else float(rest)


@lru_cache(maxsize=65_536)
def unpacked_attributes(packed: bytes) -> Attributes:
    return _attributes.decode(packed) if packed else ()


def _ids(strings: Sequence[str], size: int) -> Any:
    data = pa.py_buffer(bytes.fromhex("".join(strings)))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(strings), [None, data])


def words_of(column: Any) -> Any:
    """Ids as big-endian words: one a span id, two a trace id. A copy in the machine's own order."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    size = column.type.byte_width
    data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * size : (column.offset + len(column)) * size]
    words = data.view(">u8").astype(np.uint64)
    return words if size == 8 else words.reshape(-1, size // 8)


def keys_of(rows: SpanRows) -> list[str]:
    """Trace and span id of each row, one behind the other."""
    traces, spans = rows.table.column(TRACE).to_pylist(), rows.table.column(SPAN).to_pylist()
    return [(trace + span).hex() for trace, span in zip(traces, spans, strict=True)]


def joined(parts: Sequence[SpanRows]) -> SpanRows:
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables([part.table for part in parts], promote_options="default").combine_chunks()
    return SpanRows(_folded(table))


def taken(rows: SpanRows, places: Ints) -> SpanRows:
    return SpanRows(rows.table.take(pa.array(places)))


def _folded(table: Any) -> Any:
    """Rare attributes go into one column for all, so that nobody can make a file of countless columns."""
    names = [name for name in table.column_names if name.startswith(ATTRIBUTE)]
    if len(names) <= ATTRIBUTE_COLUMNS_MAX:
        return table
    used = Counter({name: table.num_rows - table.column(name).null_count for name in names})
    rare = [name for name, _ in used.most_common()[ATTRIBUTE_COLUMNS_MAX:]]
    more: list[bytes] = table.column(MORE).to_pylist()
    for name in rare:
        values = table.column(name)
        for place in np.flatnonzero(values.is_valid().to_numpy()):
            pair = (name.removeprefix(ATTRIBUTE), typed_value(values[int(place)].as_py()))
            more[place] = _pack((*unpacked_attributes(more[place]), pair))
    table = table.drop_columns(rare)
    at = table.column_names.index(MORE)
    return table.set_column(at, MORE, pa.array(more, pa.binary()))


def spans_of(table: Any) -> list[Span]:
    """The spans of some rows."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    names = sorted(name for name in columns if name.startswith(ATTRIBUTE))
    found: list[Span] = []
    for place in range(table.num_rows):
        own = [(name[2:], typed_value(text)) for name in names if (text := columns[name][place]) is not None]
        more = unpacked_attributes(columns[MORE][place])
        parent = columns[PARENT][place]
        events, links = columns[EVENTS][place], columns[LINKS][place]
        found.append(
            Span(
                trace_id=columns[TRACE][place].hex(),
                span_id=columns[SPAN][place].hex(),
                parent_id=parent.hex() if any(parent) else "",
                service=columns[SERVICE][place],
                name=columns[NAME][place],
                start_ns=columns[START][place],
                duration_ns=columns[DURATION][place],
                kind=KINDS[columns[KIND][place]],
                status=STATUSES[columns[STATUS][place]],
                status_message=columns[MESSAGE][place],
                attributes=tuple(sorted((*own, *more), key=lambda pair: pair[0])),
                resource=unpacked_attributes(columns[RESOURCE][place]),
                scope=columns[SCOPE][place],
                events=_events.decode(events) if events else (),
                links=_links.decode(links) if links else (),
            )
        )
    return found
