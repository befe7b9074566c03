"""What does an export of OpenTelemetry traces say? Spans, and the reason of the first that was not taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harch.sentinel.collect.loki.pushed import TIME_NS_MAX
from harch.sentinel.collect.otlp.any_values import attributes_of
from harch.sentinel.collect.otlp.logs import UNKNOWN_SERVICE
from harch.sentinel.model.spans import Attributes, Span, SpanEvent, SpanKind, SpanLink, SpanStatus

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.trace.v1 import trace_pb2 as pb

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
    """All spans that can be taken; one that cannot takes no other with it."""
    exported = ExportedSpans()
    for resource in request.resource_spans:
        attributes = attributes_of(resource.resource.attributes)
        service = str(dict(attributes).get("service.name", "")) or UNKNOWN_SERVICE
        others = tuple(pair for pair in attributes if pair[0] != "service.name")
        for scope in resource.scope_spans:
            name = scope.scope.name
            for span in scope.spans:
                reason = _refusal(span)
                if reason:
                    exported.refuse(reason)
                else:
                    exported.spans.append(_span(span, service, others, name))
    return exported


def _refusal(span: pb.Span) -> str:
    """Why the span cannot be kept; empty if it can."""
    if len(span.trace_id) != _TRACE_BYTES or span.trace_id == _NO_TRACE:
        return f"the span `{span.name[:80]}` has no trace id of 16 bytes"
    if len(span.span_id) != _SPAN_BYTES or span.span_id == _NO_SPAN:
        return f"the span `{span.name[:80]}` has no span id of 8 bytes"
    if len(span.parent_span_id) not in (0, _SPAN_BYTES):
        return f"the span `{span.name[:80]}` has a parent whose id is not of 8 bytes"
    if not 0 < span.start_time_unix_nano <= TIME_NS_MAX or span.end_time_unix_nano > TIME_NS_MAX:
        return f"the span `{span.name[:80]}` has no start and end between 1970 and 2262"
    return ""


def _span(span: pb.Span, service: str, resource: Attributes, scope: str) -> Span:
    """A span that ends before it begins, by two clocks that differ, is kept with no duration."""
    start_ns = span.start_time_unix_nano
    parent = span.parent_span_id
    status = span.status
    return Span(
        span.trace_id.hex(),
        span.span_id.hex(),
        parent.hex() if parent != _NO_SPAN else "",
        service,
        span.name,
        start_ns,
        max(0, span.end_time_unix_nano - start_ns),
        _KINDS[span.kind] if 0 <= span.kind < len(_KINDS) else SpanKind.INTERNAL,
        _STATUSES[status.code] if 0 <= status.code < len(_STATUSES) else SpanStatus.UNSET,
        status.message,
        attributes_of(span.attributes),
        resource,
        scope,
        tuple(_event(event) for event in span.events[:EVENTS_MAX]) if span.events else (),
        tuple(_link(link) for link in span.links[:LINKS_MAX]) if span.links else (),
    )


def _event(event: pb.Span.Event) -> SpanEvent:
    return SpanEvent(min(event.time_unix_nano, TIME_NS_MAX), event.name, attributes_of(event.attributes))


def _link(link: pb.Span.Link) -> SpanLink:
    return SpanLink(link.trace_id.hex(), link.span_id.hex(), attributes_of(link.attributes))
