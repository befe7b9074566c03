"""What does an export of OpenTelemetry logs or traces say?

Streams named as Loki names them, spans, and the reason of the first record that was not taken.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harch.sentinel.collect.otlp.attributes import attributes_of, flat_strings, text_of
from harch.sentinel.collect.part_limits import check_count
from harch.sentinel.collect.pushed import TIME_NS_MAX, Pushed, plain_name
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.logs import LEVEL, LEVELS, SPAN_ID, TRACE_ID
from harch.sentinel.model.spans import Attributes, Span, SpanEvent, SpanKind, SpanLink, SpanStatus

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.proto.trace.v1 import trace_pb2 as pb


# These of a resource's attributes name its stream, as in Loki; all others are metadata of its lines.
STREAM_ATTRIBUTES = frozenset(
    {
        "cloud.availability_zone", "cloud.region", "container.name", "deployment.environment",
        "deployment.environment.name", "k8s.cluster.name", "k8s.container.name", "k8s.cronjob.name",
        "k8s.daemonset.name", "k8s.deployment.name", "k8s.job.name", "k8s.namespace.name", "k8s.pod.name",
        "k8s.replicaset.name", "k8s.statefulset.name", "service.instance.id", "service.name", "service.namespace",
    }
)  # fmt: skip
RECORDS_MAX = 200_000
SERVICE_NAME, UNKNOWN_SERVICE = "service_name", "unknown_service"
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_NO_TRACE, _NO_SPAN = bytes(_TRACE_BYTES), bytes(_SPAN_BYTES)
_LEVEL_WORDS = {
    "trace": "trace", "trc": "trace", "debug": "debug", "dbg": "debug", "info": "info", "inf": "info",
    "information": "info", "notice": "info", "warn": "warn", "warning": "warn", "wrn": "warn", "error": "error",
    "err": "error", "eror": "error", "fatal": "critical", "critical": "critical", "crit": "critical",
    "alert": "critical", "emerg": "critical", "emergency": "critical", "panic": "critical",
}  # fmt: skip


def exported_logs(request: ExportLogsServiceRequest, now_ns: int) -> Pushed:
    """All records that can be taken; one without any time is of now. Raises E0606."""
    scopes = (scope for resource in request.resource_logs for scope in resource.scope_logs)
    check_count(sum(len(scope.log_records) for scope in scopes), RECORDS_MAX, "records in one request")
    pushed = Pushed()
    for resource in request.resource_logs:
        stream, shared = _origin(resource.resource.attributes)
        times_ns: list[int] = []
        lines: list[str] = []
        metadata: list[Labels] = []
        for scope in resource.scope_logs:
            around = {**shared, **_scope(scope.scope)}
            for record in scope.log_records:
                time_ns = record.time_unix_nano or record.observed_time_unix_nano or now_ns
                if time_ns > TIME_NS_MAX:
                    pushed.refuse(1, f"{time_ns} is not a time in nanoseconds between 1970 and 2262")
                    continue
                times_ns.append(time_ns)
                lines.append(record.body.string_value or text_of(record.body))
                metadata.append(_metadata(record, around))
        pushed.add(stream, times_ns, lines, metadata)
    return pushed


def level_of(number: int, text: str) -> str:
    """One of `LEVELS`, from what the record calls it or its number (1 to 24, four for each level); else empty."""
    if word := _LEVEL_WORDS.get(text.lower()):
        return word
    return LEVELS[(number - 1) // 4] if 1 <= number <= 24 else ""


def _origin(attributes: Sequence[KeyValue]) -> tuple[Labels, dict[str, str]]:
    """The stream of a resource, and what else is known about it."""
    found = dict(flat_strings(attributes))
    named = {plain_name(key): value for key, value in found.items() if key in STREAM_ATTRIBUTES}
    named[SERVICE_NAME] = named.get(SERVICE_NAME) or UNKNOWN_SERVICE
    others = {plain_name(key): value for key, value in found.items() if key and key not in STREAM_ATTRIBUTES}
    return labels(named), others


def _scope(scope: InstrumentationScope) -> dict[str, str]:
    pairs = {plain_name(key): value for key, value in flat_strings(scope.attributes) if key}
    pairs |= {"scope_name": scope.name, "scope_version": scope.version}
    return pairs


def _metadata(record: LogRecord, around: Mapping[str, str]) -> Labels:
    pairs = dict(around)
    for key, value in flat_strings(record.attributes):
        if key:
            pairs[plain_name(key)] = value
    number, word = record.severity_number, record.severity_text
    if number:
        pairs["severity_number"] = str(number)
    if word:
        pairs["severity_text"] = word
    if level := level_of(number, word):
        pairs[LEVEL] = level
    trace_id, span_id = record.trace_id, record.span_id
    if len(trace_id) == _TRACE_BYTES and trace_id != _NO_TRACE:
        pairs[TRACE_ID] = trace_id.hex()
    if len(span_id) == _SPAN_BYTES and span_id != _NO_SPAN:
        pairs[SPAN_ID] = span_id.hex()
    if event_name := record.event_name:
        pairs["event_name"] = event_name
    observed_ns = record.observed_time_unix_nano
    if observed_ns and observed_ns != record.time_unix_nano:
        pairs["observed_timestamp"] = str(observed_ns)
    return labels(pairs)


# What does an export of OpenTelemetry traces say? Spans, and the reason of the first that was not taken.


SPANS_MAX = 200_000
EVENTS_MAX, LINKS_MAX = 1000, 1000  # of one span; more are left out
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8
_ZERO_TRACE_ID, _ZERO_SPAN_ID = bytes(_TRACE_ID_BYTES), bytes(_SPAN_ID_BYTES)
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
    if len(trace_id) != _TRACE_ID_BYTES or trace_id == _ZERO_TRACE_ID:
        return "no trace id of 16 bytes"
    if len(span_id) != _SPAN_ID_BYTES or span_id == _ZERO_SPAN_ID:
        return "no span id of 8 bytes"
    if parent and len(parent) != _SPAN_ID_BYTES:
        return "a parent id that is not 8 bytes"
    if not 0 < start_ns <= TIME_NS_MAX or end_ns > TIME_NS_MAX:
        return "no start and end between 1970 and 2262"
    kind, status = span.kind, span.status
    code = status.code
    events, links = span.events, span.links
    return Span(
        trace_id.hex(),
        span_id.hex(),
        parent.hex() if parent != _ZERO_SPAN_ID else "",
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
