"""What does an export of OpenTelemetry traces say? Spans, and the reason of the first that was not taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harch.sentinel.collect.loki.pushed import TIME_NS_MAX
from harch.sentinel.collect.otlp.any_values import attributes_of
from harch.sentinel.collect.otlp.logs import UNKNOWN_SERVICE
from harch.sentinel.collect.parts import check_count
from harch.sentinel.model.spans import Attributes, Span, SpanEvent, SpanKind, SpanLink, SpanStatus

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.trace.v1 import trace_pb2 as pb

SPANS_MAX = 200_000
EVENTS_MAX, LINKS_MAX = 1000, 1000  # of one span; more are left out
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_NO_TRACE, _NO_SPAN = bytes(_TRACE_BYTES), bytes(_SPAN_BYTES)
_KINDS = (
    SpanKind.INTERNAL,
    SpanKind.INTERNAL,
    SpanKind.SERVER,
    SpanKind.CLIENT,
    SpanKind.PRODUCER,
    SpanKind.CONSUMER,
)
_STATUSES = (SpanStatus.UNSET, SpanStatus.OK, SpanStatus.ERROR)


@dataclass(slots=True)
class ExportedSpans:
    spans: list[Span] = field(default_factory=list)
    refused: int = 0
    reason: str = ""  # of the first span that was not taken

    def refuse(self, reason: str) -> None:
        self.refused += 1
        self.reason = self.reason or reason


def exported_spans(request: ExportTraceServiceRequest) -> ExportedSpans:
    """All spans that can be taken; one that cannot takes no other with it. Raises E0606."""
    scopes = (scope for resource in request.resource_spans for scope in resource.scope_spans)
    check_count(sum(len(scope.spans) for scope in scopes), SPANS_MAX, "spans in one request")
    exported = ExportedSpans()
    for resource in request.resource_spans:
        attributes = attributes_of(resource.resource.attributes)
        service = str(dict(attributes).get("service.name", "")) or UNKNOWN_SERVICE
        others = tuple(pair for pair in attributes if pair[0] != "service.name")
        for scope in resource.scope_spans:
            name = scope.scope.name
            for span in scope.spans:
                taken = _span(span, service, others, name)
                if isinstance(taken, Span):
                    exported.spans.append(taken)
                else:
                    exported.refuse(f"the span `{span.name[:80]}` has {taken}")
    return exported


def _span(span: pb.Span, service: str, resource: Attributes, scope: str) -> Span | str:
    """The span, or what is wrong with it. One that ends before it begins, by two clocks that differ, is kept with no
    duration."""
    trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    if len(trace_id) != _TRACE_BYTES or trace_id == _NO_TRACE:
        return "no trace id of 16 bytes"
    if len(span_id) != _SPAN_BYTES or span_id == _NO_SPAN:
        return "no span id of 8 bytes"
    if parent and len(parent) != _SPAN_BYTES:
        return "a parent whose id is not of 8 bytes"
    if not 0 < start_ns <= TIME_NS_MAX or end_ns > TIME_NS_MAX:
        return "no start and end between 1970 and 2262"
    kind, status = span.kind, span.status
    code = status.code
    events, links = span.events, span.links
    return Span(
        trace_id.hex(),
        span_id.hex(),
        parent.hex() if parent != _NO_SPAN else "",
        service,
        span.name,
        start_ns,
        end_ns - start_ns if end_ns > start_ns else 0,
        _KINDS[kind] if 0 <= kind < len(_KINDS) else SpanKind.INTERNAL,
        _STATUSES[code] if 0 <= code < len(_STATUSES) else SpanStatus.UNSET,
        status.message,
        attributes_of(span.attributes),
        resource,
        scope,
        tuple(_event(event) for event in events[:EVENTS_MAX]) if events else (),
        tuple(_link(link) for link in links[:LINKS_MAX]) if links else (),
    )


def _event(event: pb.Span.Event) -> SpanEvent:
    return SpanEvent(min(event.time_unix_nano, TIME_NS_MAX), event.name, attributes_of(event.attributes))


def _link(link: pb.Span.Link) -> SpanLink:
    return SpanLink(link.trace_id.hex(), link.span_id.hex(), attributes_of(link.attributes))
