"""How are traces asked for? The public plugin's search, and our own: search, statistics, one trace as a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harch.api.telemetry.answer import Answer, success
from harch.api.telemetry.ports import LogTenants, SpanTenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route
from harch.base.errors import HarchError
from harch.sentinel.model.spans import Span, TraceSummary
from harch.sentinel.traces.fields import trace_id_of
from harch.sentinel.traces.lines import LINES_MAX, lines_of_trace
from harch.sentinel.traces.otlp import OTLP, resource_spans
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.query import TraceQuery
from harch.sentinel.traces.searching import LIMIT, LIMIT_MAX, Found, search
from harch.sentinel.traces.statistics import counted_query, fields_of, group_view
from harch.sentinel.traces.tree import TraceTree, tree_of
from harch.sentinel.traces.view import SPANS_SHOWN, SPANS_SHOWN_MAX, trace_view

BASE = "/harchos/api/v1/traces"
MS_NS = 1_000_000
AHEAD_NS = 5 * 60 * 10**9  # clocks of other hosts may be ahead of ours
COUNTED_MS = 3_600_000  # statistics look back this far, if nobody says otherwise
GROUPS_MAX = 1000
SPANS_TOLD_MAX = 50_000  # of one trace; beyond it the first ones


class Traces:
    """Reads of spans, for one tenant each."""

    def __init__(self, spans: SpanTenants, logs: LogTenants | None) -> None:
        self._spans, self._logs = spans, logs

    def routes(self) -> list[Route]:
        both = ("GET", "POST")
        return [
            Route(both, "/api/traces/search", self.plugin_search),
            Route(both, BASE, self.search),
            Route(both, f"{BASE}/statistics", self.statistics),
            Route(("GET",), f"{BASE}/{{id}}", self.tree),
            Route(("GET",), f"{BASE}/{{id}}/otlp", self.otlp),
        ]

    def plugin_search(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        """The shape that the public data source reads. It sends a query and no time."""
        found = self.found(request, parse_query(request.one("query")))
        return success({"traces": [plugin_summary(trace) for trace in found.traces]}, warnings=found.notes)

    def search(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        found = self.found(request, parse_query(request.one("query")))
        return success({"traces": [search_summary(trace) for trace in found.traces]}, warnings=found.notes)

    def statistics(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        """Spans by service, name, status or kind. Quantiles are estimated from buckets of durations."""
        by = fields_of([text for text in request.one("by", "service,name").split(",") if text])
        start_ns = request.time_ms("start", request.now_ms - COUNTED_MS) * MS_NS
        query = counted_query(parse_query(request.one("query")), start_ns=start_ns, end_ns=end_ns_of(request))
        groups = self._spans.spans(request.tenant).statistics(query, by)
        largest = sorted(groups, key=lambda group: (-group.count, group.key))
        cut = [f"only the {GROUPS_MAX} largest of {len(groups)} groups are shown"] if len(groups) > GROUPS_MAX else []
        told = {
            "by": [field.value for field in by],
            "groups": [group_view(group, by) for group in largest[:GROUPS_MAX]],
            "quantiles": "estimated from buckets whose bounds grow by a factor of 1.41",
        }
        return success(told, warnings=cut)

    def tree(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        """One trace as a tree; `limit` spans of it, and `logs` lines that carry its id."""
        spans = self.spans_of(request, names["id"])
        tree = tree_of(spans[:SPANS_TOLD_MAX])
        spans_max = min(request.count("limit", SPANS_SHOWN) or SPANS_SHOWN, SPANS_SHOWN_MAX)
        view = trace_view(tree, spans_max=spans_max)
        logs, warnings = self._lines(request, tree)
        return success({**view, **logs}, warnings=[*cut_notes(len(spans)), *warnings])

    def otlp(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        """One trace as OTLP's JSON: what `/v1/traces` takes."""
        spans = self.spans_of(request, names["id"])
        told = {"resourceSpans": resource_spans(spans[:SPANS_TOLD_MAX], OTLP)}
        return success(told, warnings=cut_notes(len(spans)))

    def found(self, request: TelemetryRequest, query: TraceQuery) -> Found:
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
            raise HarchError("E0201", f"`{text[:40]}` is no trace id", field="id", hint=hint)
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
        told: dict[str, object] = {"logs": [line.json for line in lines]}
        return told, [f"only the first {len(lines)} log lines of the trace are shown"] if is_cut else []


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
    return [f"only the first {SPANS_TOLD_MAX} of {count} spans are here"] if count > SPANS_TOLD_MAX else []
