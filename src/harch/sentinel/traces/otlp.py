"""How do spans leave as they came? OTLP's message, its JSON, and the JSON that Tempo answers, which differs in details.

Tempo writes the JSON of protobuf: ids in base64 and the names of enums. OTLP's own JSON has hexadecimal ids and
numbers; what is written so can be sent to `/v1/traces` again.
"""

# harch: pure

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harch.sentinel.model.spans import Attributes, AttributeValue, Span, SpanKind, SpanStatus
from harch.sentinel.traces.query import SERVICE_NAME

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

Json = dict[str, object]

KIND_NUMBERS: Mapping[SpanKind, int] = {
    SpanKind.INTERNAL: 1,
    SpanKind.SERVER: 2,
    SpanKind.CLIENT: 3,
    SpanKind.PRODUCER: 4,
    SpanKind.CONSUMER: 5,
}
STATUS_NUMBERS: Mapping[SpanStatus, int] = {SpanStatus.UNSET: 0, SpanStatus.OK: 1, SpanStatus.ERROR: 2}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a JSON writes ids, kinds and states."""

    id_text: Callable[[str], str]
    kind: Callable[[SpanKind], object]
    status: Callable[[SpanStatus], object]


def _base64(hexadecimal: str) -> str:
    try:
        return base64.b64encode(bytes.fromhex(hexadecimal)).decode()
    except ValueError:
        return ""  # a link may name anything


OTLP = Dialect(lambda text: text, KIND_NUMBERS.__getitem__, STATUS_NUMBERS.__getitem__)
TEMPO = Dialect(
    _base64, lambda kind: f"SPAN_KIND_{kind.value.upper()}", lambda status: f"STATUS_CODE_{status.value.upper()}"
)

_Group = tuple[str, Attributes]


def resource_spans(spans: Sequence[Span], dialect: Dialect) -> list[Json]:
    """The list under `resourceSpans` (Tempo's first API: `batches`)."""
    return [
        {
            "resource": {"attributes": attributes_json(((SERVICE_NAME, service), *resource))},
            "scopeSpans": [
                {"scope": {"name": scope} if scope else {}, "spans": [_span_json(span, dialect) for span in found]}
                for scope, found in scopes.items()
            ],
        }
        for (service, resource), scopes in _grouped(spans).items()
    ]


def _grouped(spans: Iterable[Span]) -> dict[_Group, dict[str, list[Span]]]:
    groups: dict[_Group, dict[str, list[Span]]] = {}
    for span in spans:
        scopes = groups.setdefault((span.service, span.resource), {})
        scopes.setdefault(span.scope, []).append(span)
    return groups


def _span_json(span: Span, dialect: Dialect) -> Json:
    view: Json = {
        "traceId": dialect.id_text(span.trace_id),
        "spanId": dialect.id_text(span.span_id),
        "name": span.name,
        "kind": dialect.kind(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": attributes_json(span.attributes),
        "status": _status_json(span, dialect),
    }
    if span.parent_id:
        view["parentSpanId"] = dialect.id_text(span.parent_id)
    if span.events:
        view["events"] = [
            {"timeUnixNano": str(one.time_ns), "name": one.name, "attributes": attributes_json(one.attributes)}
            for one in span.events
        ]
    if span.links:
        view["links"] = [
            {
                "traceId": dialect.id_text(one.trace_id),
                "spanId": dialect.id_text(one.span_id),
                "attributes": attributes_json(one.attributes),
            }
            for one in span.links
        ]
    return view


def _status_json(span: Span, dialect: Dialect) -> Json:
    message: Json = {"message": span.status_message} if span.status_message else {}
    return message if span.status is SpanStatus.UNSET else {**message, "code": dialect.status(span.status)}


def attributes_json(attributes: Attributes) -> list[Json]:
    return [{"key": name, "value": value_json(value)} for name, value in attributes]


def value_json(value: AttributeValue) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _odd_number(value)}
    return {"stringValue": value}


def _odd_number(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def message_of(spans: Sequence[Span]) -> TracesData:
    """The spans as OTLP's message; Tempo's `Trace` has the same fields."""
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    message = TracesData()
    for (service, resource), scopes in _grouped(spans).items():
        batch = message.resource_spans.add()
        _fill(batch.resource.attributes.add, ((SERVICE_NAME, service), *resource))
        for scope, found in scopes.items():
            part = batch.scope_spans.add()
            part.scope.name = scope
            for span in found:
                exported = part.spans.add()
                exported.trace_id, exported.span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
                exported.parent_span_id = bytes.fromhex(span.parent_id)
                exported.name, exported.kind = span.name, KIND_NUMBERS[span.kind]  # type: ignore[assignment]
                exported.start_time_unix_nano, exported.end_time_unix_nano = span.start_ns, span.end_ns
                exported.status.code = STATUS_NUMBERS[span.status]  # type: ignore[assignment]
                exported.status.message = span.status_message
                _fill(exported.attributes.add, span.attributes)
                for event in span.events:
                    noted = exported.events.add()
                    noted.time_unix_nano, noted.name = event.time_ns, event.name
                    _fill(noted.attributes.add, event.attributes)
                for link in span.links:
                    linked = exported.links.add()
                    linked.trace_id, linked.span_id = bytes.fromhex(link.trace_id), bytes.fromhex(link.span_id)
                    _fill(linked.attributes.add, link.attributes)
    return message


def _fill(add: Callable[[], KeyValue], attributes: Attributes) -> None:
    for name, value in attributes:
        pair = add()
        pair.key = name
        if isinstance(value, bool):
            pair.value.bool_value = value
        elif isinstance(value, int):
            pair.value.int_value = value
        elif isinstance(value, float):
            pair.value.double_value = value
        else:
            pair.value.string_value = value
