"""How do spans look on the wire? OTLP protobuf, written by hand: an agent has no megabytes for generated classes."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable

from harch.base.tracing.span import Attributes, FinishedSpan, Resource, SpanEvent, Value

SCOPE = "harch"
_fixed64 = struct.Struct("<Q").pack
_double = struct.Struct("<d").pack
_WORD = (1 << 64) - 1
_OK, _ERROR = 1, 2


def encode(spans: Iterable[FinishedSpan], resource: Resource) -> bytes:
    """An `ExportTraceServiceRequest` with one part for each service among the spans."""
    by_service: dict[str, list[bytes]] = defaultdict(list)
    for span in spans:
        by_service[span.service].append(_field(2, _span(span)))
    scope = _field(1, _text(1, SCOPE))
    return b"".join(
        _field(1, _field(1, _resource(resource.of(service))) + _field(2, scope + b"".join(found)))
        for service, found in by_service.items()
    )


def _resource(resource: Resource) -> bytes:
    return _attributes(1, {"service.name": resource.service, **resource.attributes})


def _span(span: FinishedSpan) -> bytes:
    parts = [_field(1, span.trace_id), _field(2, span.span_id)]
    if span.parent_id:
        parts.append(_field(4, span.parent_id))
    parts += [
        _text(5, span.name),
        b"\x30" + _varint(span.kind),
        b"\x39" + _fixed64(span.start_ns & _WORD),
        b"\x41" + _fixed64(span.end_ns & _WORD),
        _attributes(9, span.attributes),
    ]
    parts += [_field(11, _event(event)) for event in span.events]
    if span.error is not None:
        said = (_text(2, span.error) if span.error else b"") + b"\x18" + _varint(_ERROR if span.error else _OK)
        parts.append(_field(15, said))
    return b"".join(parts)


def _event(event: SpanEvent) -> bytes:
    return b"\x09" + _fixed64(event.at_ns & _WORD) + _text(2, event.name) + _attributes(3, event.attributes)


def _attributes(number: int, attributes: Attributes) -> bytes:
    return b"".join([_field(number, _text(1, name) + _field(2, _value(v))) for name, v in attributes.items()])


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return _text(1, value)
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & _WORD)
    return b"\x21" + _double(value)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _field(number: int, body: bytes) -> bytes:
    """One with a length."""
    size = len(body)
    head = number << 3 | 2
    if size < 128 and head < 128:
        return bytes((head, size)) + body
    return _varint(head) + _varint(size) + body


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
