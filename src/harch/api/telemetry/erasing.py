"""How are logs and traces erased? By query and time, for the law; out of answers at once, off the disk with `purge`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harch.api.telemetry.answer import Answer, success
from harch.api.telemetry.loki_request import now_ns, time_ns
from harch.api.telemetry.ports import LogTenants, SpanTenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route, Work
from harch.base.errors import HarchError
from harch.sentinel.logql.stages.reading import pushed_down
from harch.sentinel.logql.syntax.parser import parse_log_query
from harch.sentinel.model.spans import SpanQuery
from harch.sentinel.traces.fields import trace_id_of
from harch.sentinel.traces.parser import parse_query

BASE = "/harchos/api/v1"
TRACE_IDS_MAX = 1000
_BEGINNING_NS, _END_NS = -(1 << 62), 1 << 62


class ArchiveTenants(LogTenants, SpanTenants, Protocol):
    """Lines and spans of all tenants."""


class Erasing:
    """Loki's call for lines, our own for spans, and one that takes both off the disk."""

    def __init__(self, archive: ArchiveTenants) -> None:
        self._archive = archive

    def routes(self) -> list[Route]:
        both = ("POST", "PUT")
        return [
            Route(both, "/loki/api/v1/delete", self.delete_lines, Work.QUERY),
            Route(("DELETE",), f"{BASE}/traces", self.delete_spans, Work.QUERY),
            Route(both, f"{BASE}/erasures/purge", self.purge, Work.QUERY),
            Route(("GET",), f"{BASE}/archive", self.facts),
        ]

    def delete_lines(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        """204, as Loki answers; the number of lines is in a header."""
        query = parse_log_query(request.needed("query"))
        filters, left = pushed_down(query.stages)
        if left:
            hint = 'write e.g. `{job="x"} |= "jane@example.org"`'
            raise HarchError("E0201", "lines are erased by labels and line filters alone", field="query", hint=hint)
        start_ns = time_ns(request, "start", _BEGINNING_NS)
        end_ns = time_ns(request, "end", now_ns(request))
        if end_ns <= start_ns:
            raise HarchError("E0201", "`end` must be after `start`", field="end")
        store = self._archive.logs(request.tenant)
        gone = store.delete(query.matchers, filters, start_ns, end_ns)
        return Answer(204, headers=[("X-Harch-Erased-Lines", str(gone))])

    def delete_spans(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        """By `query`, by `trace_id` (several are allowed), or by both; one of the two must be there."""
        ids = _trace_ids(request)
        query = parse_query(request.one("query"))
        if not ids and not request.one("query"):
            raise HarchError("E0201", "say which spans: `query`, `trace_id`, or both", field="query")
        if query.trace_id or any(one.traces for one in query.alternatives):
            raise HarchError("E0201", "conditions on whole traces erase nothing; give `trace_id`", field="query")
        start_ns = time_ns(request, "start", _BEGINNING_NS)
        end_ns = time_ns(request, "end", _END_NS)
        store = self._archive.spans(request.tenant)
        gone = sum(
            store.delete(SpanQuery(start_ns, end_ns, alternative.spans), ids) for alternative in query.alternatives
        )
        return success({"spans": gone})

    def purge(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        self._archive.logs(request.tenant).purge()
        self._archive.spans(request.tenant).purge()
        return Answer(204)

    def facts(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        logs, spans = self._archive.logs(request.tenant).facts(), self._archive.spans(request.tenant).facts()
        return success({"logs": dict(logs), "traces": dict(spans)})


def _trace_ids(request: TelemetryRequest) -> list[str]:
    found = []
    for text in request.all("trace_id"):
        trace_id = trace_id_of(text)
        if trace_id is None:
            raise HarchError("E0201", f"`{text[:40]}` is no id of a trace", field="trace_id")
        found.append(trace_id)
    if len(found) > TRACE_IDS_MAX:
        raise HarchError("E0201", f"{len(found)} traces at once; {TRACE_IDS_MAX} are allowed", field="trace_id")
    return found
