"""How is telemetry erased?

Series by selector, logs and traces by query, for the law; gone from answers at once, from the disk with `purge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harch.base.errors import HarchError
from harch.sentinel.http.loki.messages import now_ns, time_ns
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, success
from harch.sentinel.http.routing import HttpRoute, WorkClass
from harch.sentinel.http.tenants import LogTenants, SpanTenants, Tenants
from harch.sentinel.logql.stages.requirements import pushed_down
from harch.sentinel.logql.syntax.parser import parse_log_query
from harch.sentinel.model.spans import SpanQuery
from harch.sentinel.promql.syntax.parser import parse_selector
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.query import trace_id_of

_BEGINNING, _END = -(2**53), 2**53


class Administration:
    """Prometheus' `admin/tsdb` calls."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def routes(self) -> list[HttpRoute]:
        both = ("POST", "PUT")
        return [
            HttpRoute(both, "/api/v1/admin/tsdb/delete_series", self.delete, WorkClass.QUERY),
            HttpRoute(both, "/api/v1/admin/tsdb/clean_tombstones", self.purge, WorkClass.QUERY),
        ]

    def delete(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        selectors = [parse_selector(text) for text in request.all("match")]
        if not selectors:
            raise HarchError("E0201", "`match[]` is missing: select what to erase", field="match[]")
        start, end = request.time_ms("start", _BEGINNING), request.time_ms("end", _END)
        store = self._tenants.store(request.tenant)
        for matchers in selectors:
            store.delete(matchers, start, end)
        return HttpReply(204)

    def purge(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        self._tenants.store(request.tenant).purge()
        return HttpReply(204)


# How are logs and traces erased? By query and time, for the law; out of answers at once, off the disk with `purge`.


BASE = "/harchos/api/v1"
TRACE_IDS_MAX = 1000
_BEGINNING_NS, _END_NS = -(1 << 62), 1 << 62


class ArchiveTenants(LogTenants, SpanTenants, Protocol):
    """Lines and spans of all tenants."""


class Erasing:
    """Loki's call for lines, our own for spans, and one that takes both off the disk."""

    def __init__(self, archive: ArchiveTenants) -> None:
        self._archive = archive

    def routes(self) -> list[HttpRoute]:
        both = ("POST", "PUT")
        return [
            HttpRoute(both, "/loki/api/v1/delete", self.delete_lines, WorkClass.QUERY),
            HttpRoute(("DELETE",), f"{BASE}/traces", self.delete_spans, WorkClass.QUERY),
            HttpRoute(both, f"{BASE}/erasures/purge", self.purge, WorkClass.QUERY),
            HttpRoute(("GET",), f"{BASE}/archive", self.facts),
        ]

    def delete_lines(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """204, as Loki answers; the number of lines is in a header."""
        query = parse_log_query(request.needed("query"))
        filters, left = pushed_down(query.stages)
        if left:
            hint = 'write e.g. `{job="x"} |= "jane@example.org"`'
            raise HarchError("E0201", "lines can only be erased by labels and line filters", field="query", hint=hint)
        start_ns = time_ns(request, "start", _BEGINNING_NS)
        end_ns = time_ns(request, "end", now_ns(request))
        if end_ns <= start_ns:
            raise HarchError("E0201", "`end` must be after `start`", field="end")
        store = self._archive.logs(request.tenant)
        gone = store.delete(query.matchers, filters, start_ns, end_ns)
        return HttpReply(204, headers=[("X-Harch-Erased-Lines", str(gone))])

    def delete_spans(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """By `query`, by `trace_id` (several are allowed), or by both; one of the two must be there."""
        ids = _trace_ids(request)
        query = parse_query(request.one("query"))
        if not ids and not request.one("query"):
            raise HarchError("E0201", "select the spans: `query`, `trace_id`, or both", field="query")
        if query.trace_id or any(one.traces for one in query.alternatives):
            raise HarchError(
                "E0201", "conditions on whole traces cannot be used to erase; give `trace_id`", field="query"
            )
        start_ns = time_ns(request, "start", _BEGINNING_NS)
        end_ns = time_ns(request, "end", _END_NS)
        store = self._archive.spans(request.tenant)
        gone = sum(
            store.delete(SpanQuery(start_ns, end_ns, alternative.spans), ids) for alternative in query.alternatives
        )
        return success({"spans": gone})

    def purge(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        self._archive.logs(request.tenant).purge()
        self._archive.spans(request.tenant).purge()
        return HttpReply(204)

    def facts(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        logs, spans = self._archive.logs(request.tenant).facts(), self._archive.spans(request.tenant).facts()
        return success({"logs": dict(logs), "traces": dict(spans)})


def _trace_ids(request: TelemetryRequest) -> list[str]:
    found = []
    for text in request.all("trace_id"):
        trace_id = trace_id_of(text)
        if trace_id is None:
            raise HarchError("E0201", f"`{text[:40]}` is not a trace id", field="trace_id")
        found.append(trace_id)
    if len(found) > TRACE_IDS_MAX:
        raise HarchError("E0201", f"{len(found)} traces at once; {TRACE_IDS_MAX} are allowed", field="trace_id")
    return found
