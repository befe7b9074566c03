"""How are traces queried?

Grafana's Tempo data source, the public plugin's search, and our own: search, statistics, one trace as a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harch.base.errors import HarchError
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, plain_json, success, to_json
from harch.sentinel.http.routing import HttpRoute, WorkClass
from harch.sentinel.http.tenants import LogTenants, SpanTenants
from harch.sentinel.model.spans import Comparison, Span, SpanField, SpanKind, SpanStatus, TraceSummary
from harch.sentinel.traces.durations import parse_duration_ns
from harch.sentinel.traces.otlp import OTLP, TEMPO, attributes_json, message_of, resource_spans, value_json
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.query import (
    SERVICE_NAME,
    WORDS,
    ConditionSubject,
    NotSupported,
    TraceCondition,
    TraceField,
    TraceQuery,
    attribute_named,
    subject_of,
    trace_id_of,
)
from harch.sentinel.traces.search import (
    LIMIT,
    LIMIT_MAX,
    LINES_MAX,
    TraceSearchResult,
    counted_query,
    fields_of,
    group_view,
    lines_of_trace,
    search,
)
from harch.sentinel.traces.tree import TraceTree, tree_of
from harch.sentinel.traces.view import SPANS_IN_VIEW, SPANS_IN_VIEW_MAX, trace_view

BASE = "/harchos/api/v1/traces"
MS_NS = 1_000_000
AHEAD_NS = 5 * 60 * 10**9  # clocks of other hosts may be ahead of ours
COUNTED_MS = 3_600_000  # statistics look back this far, if nobody says otherwise
GROUPS_MAX = 1000
SPANS_PER_TRACE_MAX = 50_000  # of one trace; beyond it the first ones


class Traces:
    """Reads of spans, for one tenant each."""

    def __init__(self, spans: SpanTenants, logs: LogTenants | None) -> None:
        self._spans, self._logs = spans, logs

    def routes(self) -> list[HttpRoute]:
        both = ("GET", "POST")
        return [
            HttpRoute(both, "/api/traces/search", self.plugin_search),
            HttpRoute(both, BASE, self.search),
            HttpRoute(both, f"{BASE}/statistics", self.statistics),
            HttpRoute(("GET",), f"{BASE}/{{id}}", self.tree),
            HttpRoute(("GET",), f"{BASE}/{{id}}/otlp", self.otlp),
        ]

    def plugin_search(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """The shape that the public data source reads. It sends a query and no time."""
        found = self.found(request, parse_query(request.one("query")))
        return success({"traces": [plugin_summary(trace) for trace in found.traces]}, warnings=found.notes)

    def search(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        found = self.found(request, parse_query(request.one("query")))
        return success({"traces": [search_summary(trace) for trace in found.traces]}, warnings=found.notes)

    def statistics(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """Spans by service, name, status or kind. Quantiles are estimated from buckets of durations."""
        by = fields_of([text for text in request.one("by", "service,name").split(",") if text])
        start_ns = request.time_ms("start", request.now_ms - COUNTED_MS) * MS_NS
        query = counted_query(parse_query(request.one("query")), start_ns=start_ns, end_ns=end_ns_of(request))
        groups = self._spans.spans(request.tenant).statistics(query, by)
        largest = sorted(groups, key=lambda group: (-group.count, group.key))
        cut = [f"only the {GROUPS_MAX} largest of {len(groups)} groups are listed"] if len(groups) > GROUPS_MAX else []
        payload = {
            "by": [field.value for field in by],
            "groups": [group_view(group, by) for group in largest[:GROUPS_MAX]],
            "quantiles": "estimated from buckets with bounds growing by a factor of 1.41",
        }
        return success(payload, warnings=cut)

    def tree(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        """One trace as a tree; `limit` spans of it, and `logs` lines that carry its id."""
        spans = self.spans_of(request, names["id"])
        tree = tree_of(spans[:SPANS_PER_TRACE_MAX])
        spans_max = min(request.count("limit", SPANS_IN_VIEW) or SPANS_IN_VIEW, SPANS_IN_VIEW_MAX)
        view = trace_view(tree, spans_max=spans_max)
        logs, warnings = self._lines(request, tree)
        return success({**view, **logs}, warnings=[*cut_notes(len(spans)), *warnings])

    def otlp(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        """One trace as OTLP's JSON: what `/v1/traces` takes."""
        spans = self.spans_of(request, names["id"])
        payload = {"resourceSpans": resource_spans(spans[:SPANS_PER_TRACE_MAX], OTLP)}
        return success(payload, warnings=cut_notes(len(spans)))

    def found(self, request: TelemetryRequest, query: TraceQuery) -> TraceSearchResult:
        """The newest traces of the request's time; without a start as far back as it must be."""
        start_ns = request.time_ms("start", 0) * MS_NS if request.one("start") else None
        return search(
            self._spans.spans(request.tenant),
            query,
            start_ns=start_ns,
            end_ns=end_ns_of(request),
            limit=min(request.count("limit", LIMIT) or LIMIT, LIMIT_MAX),
            stopped=request.is_gone,
        )

    def spans_of(self, request: TelemetryRequest, text: str) -> Sequence[Span]:
        """Raises E0201 for what is no id, E0692 for a trace that is not here."""
        trace_id = trace_id_of(text)
        if trace_id is None:
            hint = "an id has up to 32 hexadecimal digits"
            raise HarchError("E0201", f"`{text[:40]}` is not a trace id", field="id", hint=hint)
        spans = self._spans.spans(request.tenant).trace(trace_id)
        if not spans:
            raise HarchError("E0692", f"no span of trace {trace_id} is stored here")
        return spans

    def _lines(self, request: TelemetryRequest, tree: TraceTree) -> tuple[dict[str, object], list[str]]:
        limit = request.count("logs")
        if not limit or self._logs is None:
            return {}, []
        try:
            lines = lines_of_trace(
                self._logs.logs(request.tenant),
                tree.trace_id,
                start_ns=tree.start_ns,
                end_ns=tree.end_ns,
                limit=limit,
                stopped=request.is_gone,
            )
        except HarchError as problem:
            return {"logs": []}, [f"log lines are missing: {problem.message}"]
        is_cut = len(lines) >= min(limit, LINES_MAX)
        payload: dict[str, object] = {"logs": [line.json for line in lines]}
        return payload, [f"only the first {len(lines)} log lines of the trace are listed"] if is_cut else []


def plugin_summary(trace: TraceSummary) -> dict[str, object]:
    return {
        "traceID": trace.trace_id,
        "rootServiceName": trace.root_service,
        "rootTraceName": trace.root_name,
        "startTimeUnixNano": str(trace.start_ns),
        "durationMs": trace.duration_ns / MS_NS,
    }


def search_summary(trace: TraceSummary) -> dict[str, object]:
    return {
        **plugin_summary(trace),
        "durationNs": trace.duration_ns,
        "spanCount": trace.spans,
        "errorCount": trace.errors,
        "matchedSpanIDs": list(trace.matched),
    }


def end_ns_of(request: TelemetryRequest) -> int:
    return request.time_ms("end", request.now_ms + AHEAD_NS // MS_NS) * MS_NS


def cut_notes(count: int) -> list[str]:
    """What an answer says about a trace of so many spans, if it has not all of them."""
    return [f"only the first {SPANS_PER_TRACE_MAX} of {count} spans are listed"] if count > SPANS_PER_TRACE_MAX else []


# What does Grafana ask of Tempo? Search by TraceQL or tags, names and values of tags, traces as OTLP or protobuf.


PROTOBUF = "application/protobuf"
INTRINSIC_TAGS = ("duration", "kind", "name", "rootName", "rootServiceName", "status", "traceDuration")
LOOK_BACK_MS = 24 * 3_600_000  # for names and values of tags, if nobody says otherwise
TAGS_MAX = 5000
VALUES_MAX = 1000
SPAN_SETS_MAX = 20  # traces of one answer whose matching spans are looked up
SPANS_PER_SET = 3
_KEYWORD_VALUES = {SpanField.STATUS: [one.value for one in SpanStatus], SpanField.KIND: [one.value for one in SpanKind]}


class Tempo:
    """The reads of Tempo's HTTP API that its data source in Grafana makes."""

    def __init__(self, spans: SpanTenants, traces: Traces) -> None:
        self._spans, self._traces = spans, traces

    def routes(self) -> list[HttpRoute]:
        get = ("GET",)
        return [
            HttpRoute(get, "/api/echo", lambda *_: HttpReply(200, b"echo", "text/plain"), WorkClass.QUICK),
            HttpRoute(get, "/api/search", self.search),
            HttpRoute(get, "/api/search/tags", self.tags),
            HttpRoute(get, "/api/v2/search/tags", self.scoped_tags),
            HttpRoute(get, "/api/search/tag/{tag}/values", self.values),
            HttpRoute(get, "/api/v2/search/tag/{tag}/values", self.typed_values),
            HttpRoute(get, "/api/traces/{id}", self.trace),
            HttpRoute(get, "/api/v2/traces/{id}", self.wrapped_trace),
        ]

    # Search

    def search(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        traceql = request.one("q")
        query = _with_durations(parse_query(traceql or request.one("tags")), request)
        answer = self._traces.found(request, query)
        found = answer.traces
        per_set = request.count("spss", SPANS_PER_SET) or SPANS_PER_SET
        payload = [_summary(trace) for trace in found]
        for trace, summary in zip(found[: SPAN_SETS_MAX if traceql else 0], payload, strict=False):
            span_set = self._span_set(request.tenant, trace, per_set)
            summary["spanSet"], summary["spanSets"] = span_set, [span_set]
        metrics = {"inspectedTraces": len(found), "completedJobs": 1, "totalJobs": 1}
        body = to_json({"traces": payload, "metrics": metrics})
        return HttpReply(200, body, headers=_note_header("; ".join(answer.notes)))

    def _span_set(self, tenant: str, trace: TraceSummary, limit: int) -> dict[str, object]:
        wanted = set(trace.matched[:limit])
        spans = [span for span in self._spans.spans(tenant).trace(trace.trace_id) if span.span_id in wanted]
        return {"spans": [_matched_span(span) for span in spans], "matched": len(trace.matched)}

    # Names and values

    def tags(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        scopes = self._scopes(request)
        found = dict.fromkeys(name for tags in scopes.values() for name in tags)
        return plain_json({"tagNames": list(found)})

    def scoped_tags(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        return plain_json({"scopes": [{"name": name, "tags": tags} for name, tags in self._scopes(request).items()]})

    def _scopes(self, request: TelemetryRequest) -> dict[str, list[str]]:
        """Conditions look at a span and at its resource alike, so all attributes stand under `span`."""
        start_ns, end_ns = _tag_range(request)
        wanted = request.one("scope")
        scopes = {"resource": [SERVICE_NAME], "span": list[str](), "intrinsic": list(INTRINSIC_TAGS)}
        if wanted in {"", "none", "span"}:
            scopes["span"] = list(self._spans.spans(request.tenant).tag_names(start_ns, end_ns)[:TAGS_MAX])
        return {name: tags for name, tags in scopes.items() if wanted in {"", "none", name}}

    def values(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        tag = names["tag"]
        subject = ConditionSubject(WORDS[tag]) if tag in WORDS else _subject(tag) or attribute_named(tag)
        return plain_json({"tagValues": self._values(request, subject)})

    def typed_values(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        """`type` tells the editor whether a value needs quotes."""
        tag = names["tag"]
        subject = _subject(tag) or (ConditionSubject(WORDS[tag]) if tag in WORDS else attribute_named(tag))
        values = self._values(request, subject)
        payload = [{"type": _value_type(subject, value), "value": value} for value in values]
        return plain_json({"tagValues": payload})

    def _values(self, request: TelemetryRequest, subject: ConditionSubject) -> list[str]:
        match subject.field:
            case TraceField.ROOT_NAME:
                field = SpanField.NAME
            case TraceField.ROOT_SERVICE:
                field = SpanField.SERVICE
            case TraceField.DURATION | TraceField.ID | SpanField.DURATION:
                return []
            case SpanField.STATUS | SpanField.KIND:
                return _KEYWORD_VALUES[subject.field]
            case _:
                field = subject.field
        limit = min(request.count("limit", VALUES_MAX) or VALUES_MAX, VALUES_MAX)
        start_ns, end_ns = _tag_range(request)
        store = self._spans.spans(request.tenant)
        return list(store.tag_values(field, subject.attribute, start_ns, end_ns, limit))

    # One trace

    def trace(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        spans, note = self._limited_spans(request, names["id"])
        if PROTOBUF in request.headers.get("accept", ""):
            return HttpReply(200, message_of(spans).SerializeToString(), PROTOBUF, _note_header(note))
        return HttpReply(200, to_json({"batches": resource_spans(spans, TEMPO)}), headers=_note_header(note))

    def wrapped_trace(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        """The second version of the call says whether the trace is whole."""
        spans, note = self._limited_spans(request, names["id"])
        if PROTOBUF in request.headers.get("accept", ""):
            status = b"\x18\x01" + _field(4, note.encode()) if note else b""
            body = _field(1, message_of(spans).SerializeToString()) + status
            return HttpReply(200, body, PROTOBUF, _note_header(note))
        payload: dict[str, object] = {"trace": {"resourceSpans": resource_spans(spans, TEMPO)}, "metrics": {}}
        if note:
            payload |= {"status": "PARTIAL", "message": note}
        return HttpReply(200, to_json(payload), headers=_note_header(note))

    def _limited_spans(self, request: TelemetryRequest, trace_id: str) -> tuple[Sequence[Span], str]:
        spans = self._traces.spans_of(request, trace_id)
        return spans[:SPANS_PER_TRACE_MAX], "".join(cut_notes(len(spans)))


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
                raise HarchError("E0201", f"`{name}`: `{text[:40]}` is not a duration", field=name, hint=hint)
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
    own_attributes = attributes_json(span.attributes)
    return {
        "spanID": span.span_id,
        "name": span.name,
        "startTimeUnixNano": str(span.start_ns),
        "durationNanos": str(span.duration_ns),
        "attributes": [{"key": SERVICE_NAME, "value": value_json(span.service)}, *own_attributes],
    }


def _tag_range(request: TelemetryRequest) -> tuple[int, int]:
    return request.time_ms("start", request.now_ms - LOOK_BACK_MS) * MS_NS, end_ns_of(request)


def _subject(tag: str) -> ConditionSubject | None:
    try:
        return subject_of(tag)
    except NotSupported as problem:
        raise HarchError("E0691", str(problem)) from None


def _value_type(subject: ConditionSubject, value: str) -> str:
    if subject.field in _KEYWORD_VALUES:
        return "keyword"
    if subject.field is not SpanField.ATTRIBUTE:
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
