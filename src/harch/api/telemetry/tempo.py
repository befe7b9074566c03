"""What does Grafana ask of Tempo? Search by TraceQL or tags, names and values of tags, traces as OTLP or protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harch.api.telemetry.answer import Answer, plain_json, to_json
from harch.api.telemetry.ports import SpanTenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route, Work
from harch.api.telemetry.traces import MS_NS, SPANS_TOLD_MAX, Traces, cut_notes, end_ns_of
from harch.base.errors import HarchError
from harch.sentinel.model.spans import Comparison, Field, Span, SpanKind, SpanStatus, TraceSummary
from harch.sentinel.traces.durations import parse_duration_ns
from harch.sentinel.traces.fields import SERVICE_NAME, WORDS, NotSupported, Subject, attribute_named, subject_of
from harch.sentinel.traces.otlp import TEMPO, attributes_json, message_of, resource_spans, value_json
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.query import TraceCondition, TraceField, TraceQuery

PROTOBUF = "application/protobuf"
INTRINSIC_TAGS = ("duration", "kind", "name", "rootName", "rootServiceName", "status", "traceDuration")
LOOK_BACK_MS = 24 * 3_600_000  # for names and values of tags, if nobody says otherwise
TAGS_MAX = 5000
VALUES_MAX = 1000
SPAN_SETS_MAX = 20  # traces of one answer whose matching spans are looked up
SPANS_PER_SET = 3
_KEYWORD_VALUES = {Field.STATUS: [one.value for one in SpanStatus], Field.KIND: [one.value for one in SpanKind]}


class Tempo:
    """The reads of Tempo's HTTP API that its data source in Grafana makes."""

    def __init__(self, spans: SpanTenants, traces: Traces) -> None:
        self._spans, self._traces = spans, traces

    def routes(self) -> list[Route]:
        get = ("GET",)
        return [
            Route(get, "/api/echo", lambda *_: Answer(200, b"echo", "text/plain"), Work.QUICK),
            Route(get, "/api/search", self.search),
            Route(get, "/api/search/tags", self.tags),
            Route(get, "/api/v2/search/tags", self.scoped_tags),
            Route(get, "/api/search/tag/{tag}/values", self.values),
            Route(get, "/api/v2/search/tag/{tag}/values", self.typed_values),
            Route(get, "/api/traces/{id}", self.trace),
            Route(get, "/api/v2/traces/{id}", self.wrapped_trace),
        ]

    # Search

    def search(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        traceql = request.one("q")
        query = _with_durations(parse_query(traceql or request.one("tags")), request)
        answer = self._traces.found(request, query)
        found = answer.traces
        per_set = request.count("spss", SPANS_PER_SET) or SPANS_PER_SET
        told = [_summary(trace) for trace in found]
        for trace, summary in zip(found[: SPAN_SETS_MAX if traceql else 0], told, strict=False):
            span_set = self._span_set(request.tenant, trace, per_set)
            summary["spanSet"], summary["spanSets"] = span_set, [span_set]
        metrics = {"inspectedTraces": len(found), "completedJobs": 1, "totalJobs": 1}
        body = to_json({"traces": told, "metrics": metrics})
        return Answer(200, body, headers=_note_header("; ".join(answer.notes)))

    def _span_set(self, tenant: str, trace: TraceSummary, limit: int) -> dict[str, object]:
        wanted = set(trace.matched[:limit])
        spans = [span for span in self._spans.spans(tenant).trace(trace.trace_id) if span.span_id in wanted]
        return {"spans": [_matched_span(span) for span in spans], "matched": len(trace.matched)}

    # Names and values

    def tags(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        scopes = self._scopes(request)
        found = dict.fromkeys(name for tags in scopes.values() for name in tags)
        return plain_json({"tagNames": list(found)})

    def scoped_tags(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        return plain_json({"scopes": [{"name": name, "tags": tags} for name, tags in self._scopes(request).items()]})

    def _scopes(self, request: TelemetryRequest) -> dict[str, list[str]]:
        """Conditions look at a span and at its resource alike, so all attributes stand under `span`."""
        start_ns, end_ns = _tag_range(request)
        asked = request.one("scope")
        scopes = {"resource": [SERVICE_NAME], "span": list[str](), "intrinsic": list(INTRINSIC_TAGS)}
        if asked in {"", "none", "span"}:
            scopes["span"] = list(self._spans.spans(request.tenant).tag_names(start_ns, end_ns)[:TAGS_MAX])
        return {name: tags for name, tags in scopes.items() if asked in {"", "none", name}}

    def values(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        tag = names["tag"]
        subject = Subject(WORDS[tag]) if tag in WORDS else _subject(tag) or attribute_named(tag)
        return plain_json({"tagValues": self._values(request, subject)})

    def typed_values(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        """`type` tells the editor whether a value needs quotes."""
        tag = names["tag"]
        subject = _subject(tag) or (Subject(WORDS[tag]) if tag in WORDS else attribute_named(tag))
        values = self._values(request, subject)
        told = [{"type": _value_type(subject, value), "value": value} for value in values]
        return plain_json({"tagValues": told})

    def _values(self, request: TelemetryRequest, subject: Subject) -> list[str]:
        match subject.field:
            case TraceField.ROOT_NAME:
                field = Field.NAME
            case TraceField.ROOT_SERVICE:
                field = Field.SERVICE
            case TraceField.DURATION | TraceField.ID | Field.DURATION:
                return []
            case Field.STATUS | Field.KIND:
                return _KEYWORD_VALUES[subject.field]
            case _:
                field = subject.field
        limit = min(request.count("limit", VALUES_MAX) or VALUES_MAX, VALUES_MAX)
        start_ns, end_ns = _tag_range(request)
        store = self._spans.spans(request.tenant)
        return list(store.tag_values(field, subject.attribute, start_ns, end_ns, limit))

    # One trace

    def trace(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        spans, note = self._told(request, names["id"])
        if PROTOBUF in request.headers.get("accept", ""):
            return Answer(200, message_of(spans).SerializeToString(), PROTOBUF, _note_header(note))
        return Answer(200, to_json({"batches": resource_spans(spans, TEMPO)}), headers=_note_header(note))

    def wrapped_trace(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        """The second version of the call says whether the trace is whole."""
        spans, note = self._told(request, names["id"])
        if PROTOBUF in request.headers.get("accept", ""):
            status = b"\x18\x01" + _field(4, note.encode()) if note else b""
            body = _field(1, message_of(spans).SerializeToString()) + status
            return Answer(200, body, PROTOBUF, _note_header(note))
        told: dict[str, object] = {"trace": {"resourceSpans": resource_spans(spans, TEMPO)}, "metrics": {}}
        if note:
            told |= {"status": "PARTIAL", "message": note}
        return Answer(200, to_json(told), headers=_note_header(note))

    def _told(self, request: TelemetryRequest, trace_id: str) -> tuple[Sequence[Span], str]:
        spans = self._traces.spans_of(request, trace_id)
        return spans[:SPANS_TOLD_MAX], "".join(cut_notes(len(spans)))


def _note_header(note: str) -> list[tuple[str, str]]:
    return [("X-Harch-Note", note)] if note else []


def _with_durations(query: TraceQuery, request: TelemetryRequest) -> TraceQuery:
    more: list[TraceCondition] = []
    for name, comparison in (("minDuration", Comparison.AT_LEAST), ("maxDuration", Comparison.AT_MOST)):
        text = request.one(name)
        if text:
            duration_ns = parse_duration_ns(text)
            if duration_ns is None:
                hint = "write e.g. `100ms` or `1.5s`"
                raise HarchError("E0201", f"`{name}`: `{text[:40]}` is no duration", field=name, hint=hint)
            more.append(TraceCondition(TraceField.DURATION, comparison, duration_ns))
    return TraceQuery(tuple(replace(one, traces=(*one.traces, *more)) for one in query.alternatives))


def _summary(trace: TraceSummary) -> dict[str, object]:
    return {
        "traceID": trace.trace_id,
        "rootServiceName": trace.root_service,
        "rootTraceName": trace.root_name,
        "startTimeUnixNano": str(trace.start_ns),
        "durationMs": trace.duration_ns // MS_NS,
    }


def _matched_span(span: Span) -> dict[str, object]:
    shown = attributes_json(span.attributes)
    return {
        "spanID": span.span_id,
        "name": span.name,
        "startTimeUnixNano": str(span.start_ns),
        "durationNanos": str(span.duration_ns),
        "attributes": [{"key": SERVICE_NAME, "value": value_json(span.service)}, *shown],
    }


def _tag_range(request: TelemetryRequest) -> tuple[int, int]:
    return request.time_ms("start", request.now_ms - LOOK_BACK_MS) * MS_NS, end_ns_of(request)


def _subject(tag: str) -> Subject | None:
    try:
        return subject_of(tag)
    except NotSupported as problem:
        raise HarchError("E0691", str(problem)) from None


def _value_type(subject: Subject, value: str) -> str:
    if subject.field in _KEYWORD_VALUES:
        return "keyword"
    if subject.field is not Field.ATTRIBUTE:
        return "string"
    if value in {"true", "false"}:
        return "bool"
    return "int" if value.removeprefix("-").isdecimal() and value.isascii() and len(value) < 19 else "string"


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""
    length, size = len(content), bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + content
