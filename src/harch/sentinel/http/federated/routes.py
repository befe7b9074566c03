"""How are PromQL, LogQL and traces answered over several hubs?

As for one, with what is missing in the warnings; lines and spans come from the own country alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.federated.disclosure.answer import TenantReaders
from harch.sentinel.federated.messages import TracePart
from harch.sentinel.federated.query.log_split import plan_lines, plan_logs
from harch.sentinel.federated.query.merge import (
    ERRORS_UNKNOWN,
    groups_together,
    lines_together,
    merge,
    spans_together,
    traces_together,
)
from harch.sentinel.federated.query.plans import QUANTUM_MS, aligned
from harch.sentinel.federated.query.split import plan
from harch.sentinel.http.federated.disclosure import FederatedAnswers, HubOwner
from harch.sentinel.http.federated.fanout import HubCarrier, HubReplies, OverHubs, QueriedHubs
from harch.sentinel.http.loki.messages import (
    HOUR_NS,
    MS_NS,
    duration_of,
    limit_of,
    log_answer,
    now_ns,
    order_of,
    step_of,
    time_ns,
    wants_categories,
    window_of,
)
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, success
from harch.sentinel.http.prometheus.queries import range_parameters
from harch.sentinel.http.prometheus.results import query_answer, result_json
from harch.sentinel.http.routing import Handler, HttpRoute
from harch.sentinel.http.settings import FederatedSettings
from harch.sentinel.http.traces import BASE as TRACES
from harch.sentinel.http.traces import COUNTED_MS, GROUPS_MAX, end_ns_of, plugin_summary, search_summary
from harch.sentinel.logql.evaluate.context import ReadSoFar
from harch.sentinel.logql.evaluate.engine import LogAnswer, LogqlEngine
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.logs import LineOrder
from harch.sentinel.model.spans import SpanField, SpanGroup, TraceSummary
from harch.sentinel.promql.evaluate.context import QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import StepGrid
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.query import trace_id_of
from harch.sentinel.traces.search import LIMIT, LIMIT_MAX, fields_of, group_view
from harch.sentinel.traces.tree import tree_of
from harch.sentinel.traces.view import SPANS_IN_VIEW, SPANS_IN_VIEW_MAX, trace_view


class FederatedMetrics:
    """`/api/v1/query` and `query_range` with `hubs`."""

    def __init__(self, over: OverHubs, engine: QueryEngine) -> None:
        self._over, self._engine = over, engine

    async def instant(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        at_ms = request.time_ms("time", request.time_ms("end", request.now_ms))
        return await self._answered(request, StepGrid.instant(at_ms), ())

    async def range(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        selection = range_parameters(request)
        return await self._answered(
            request, StepGrid.between(selection.start_ms, selection.end_ms, selection.step_ms), selection.warnings
        )

    async def _answered(self, request: TelemetryRequest, grid: StepGrid, warnings: Sequence[str]) -> HttpReply:
        query = request.needed("query")
        selection = await self._over.hubs(request)
        grid, moved = shared_grid(grid, selection, request.now_ms)
        cut = await self._over.in_thread(lambda: plan(query, grid))
        replies = await self._over.query_hubs(request, selection, cut.parts)
        options = QueryOptions(is_cancelled=request.is_gone)

        def joined() -> HttpReply:
            merged = merge(cut, replies.answers, replies.own, engine=self._engine, options=options)
            notes = (*warnings, *replies.notes, *merged.warnings, *merged.result.warnings)
            return query_answer(result_json(merged.result.value), notes, (*moved, *merged.result.infos))

        return await self._over.in_thread(joined)


def shared_grid(
    grid: StepGrid, selection: QueriedHubs, now_ms: int, quantum_ms: int = QUANTUM_MS
) -> tuple[StepGrid, tuple[str, ...]]:
    """All hubs answer at the same times: at whole minutes that are over, if one of them lies in another country."""
    if not selection.is_cross_border:
        return grid, ()
    shared = aligned(grid, now_ms, quantum_ms)
    moved = f"times are past multiples of {quantum_ms // 60_000} min, as required by hubs in other countries"
    return shared, () if shared == grid else (moved,)


# How is LogQL answered over several hubs? Numbers are joined as for metrics; lines come from the own country alone.


LOG_QUANTUM_MS = 300_000  # hubs of other countries count lines of whole five minutes


class FederatedLogs:
    """`/loki/api/v1/query` and `query_range` with `hubs`."""

    def __init__(self, over: OverHubs, engine: QueryEngine) -> None:
        self._over, self._engine, self._logql = over, engine, LogqlEngine()

    async def instant(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        tree = await self._over.in_thread(lambda: self._logql.tree(request.needed("query")))
        at_ns = time_ns(request, "time", time_ns(request, "end", now_ns(request)))
        if isinstance(tree, LogQuery):
            start_ns = time_ns(request, "start", at_ns - duration_of(request, "since", HOUR_NS))
            return await self._lines(request, min(start_ns, at_ns), at_ns + 1)
        return await self._numbers(request, StepGrid.instant(at_ns // MS_NS), ())

    async def range(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        tree = await self._over.in_thread(lambda: self._logql.tree(request.needed("query")))
        start_ns, end_ns = window_of(request)
        if isinstance(tree, LogQuery):
            return await self._lines(request, start_ns, end_ns)
        step_ms, warnings = step_of(request, start_ns, end_ns)
        return await self._numbers(request, StepGrid.between(start_ns // MS_NS, end_ns // MS_NS, step_ms), warnings)

    async def _numbers(self, request: TelemetryRequest, grid: StepGrid, warnings: Sequence[str]) -> HttpReply:
        queried = await self._over.hubs(request)
        grid, moved = shared_grid(grid, queried, request.now_ms, LOG_QUANTUM_MS)
        cut = await self._over.in_thread(lambda: plan_logs(request.needed("query"), grid))
        replies = await self._over.query_hubs(request, queried, cut.parts)
        options = QueryOptions(is_cancelled=request.is_gone)

        def joined() -> HttpReply:
            merged = merge(cut, replies.answers, replies.own, engine=self._engine, options=options)
            notes = (*warnings, *moved, *replies.notes, *merged.warnings, *merged.result.warnings)
            return log_answer(LogAnswer(merged.result.value, ReadSoFar()), 0.0, categorized=False, warnings=notes)

        return await self._over.in_thread(joined)

    async def _lines(self, request: TelemetryRequest, start_ns: int, end_ns: int) -> HttpReply:
        limit = limit_of(request, self._logql.options.limits.entries_default)
        newest_first = order_of(request) is LineOrder.NEWEST_FIRST
        queried = await self._over.hubs(request)
        cut = await self._over.in_thread(
            lambda: plan_lines(
                request.needed("query"), start_ns=start_ns, end_ns=end_ns, limit=limit, newest_first=newest_first
            )
        )
        replies = await self._over.query_hubs(request, queried, (cut.part,), stays_home="lines")

        def joined() -> HttpReply:
            lines = lines_together(replies.everyone, limit=limit, newest_first=newest_first)
            found = LogAnswer(lines, ReadSoFar(lines=len(lines)))
            return log_answer(found, 0.0, categorized=wants_categories(request), warnings=replies.notes)

        return await self._over.in_thread(joined)


# How are traces asked for over several hubs? Whole traces in the own country, statistics of spans everywhere.


LOOK_BACK_MS = 24 * 3_600_000  # of a search that names no start
SPAN_QUANTUM_MS = 900_000  # hubs of other countries count spans of whole quarters of an hour
CLOSED_MS = 60_000  # that ended a minute ago
_NO_LINES = "log lines of a trace are available for one hub at a time only"


class FederatedTraces:
    """Search, statistics and one trace, with `hubs`."""

    def __init__(self, over: OverHubs) -> None:
        self._over = over

    async def plugin_search(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        found, replies = await self._found(request)
        return success({"traces": [plugin_summary(trace) for trace in found]}, warnings=replies.notes)

    async def search(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        found, replies = await self._found(request)
        return success({"traces": [search_summary(trace) for trace in found]}, warnings=replies.notes)

    async def statistics(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        by = fields_of([text for text in request.one("by", "service,name").split(",") if text])
        query = request.one("query")
        parse_query(query)
        queried = await self._over.hubs(request)
        start_ms = request.time_ms("start", request.now_ms - COUNTED_MS)
        end_ms = end_ns_of(request) // MS_NS
        start_ms, end_ms, moved = _shared_times(start_ms, end_ms, queried, request.now_ms)
        names = tuple(field.value for field in by)
        part = TracePart(kind="statistics", query=query, start_ns=start_ms * MS_NS, end_ns=end_ms * MS_NS, by=names)
        replies = await self._over.query_hubs(request, queried, (part,))
        groups = await self._over.in_thread(lambda: groups_together(replies.everyone))
        largest = sorted(groups, key=lambda group: (-group.count, group.key))[:GROUPS_MAX]
        payload = {
            "by": list(names),
            "groups": [_group_view(group, by) for group in largest],
            "quantiles": "estimated from buckets; null where a hub may not disclose them",
        }
        return success(payload, warnings=(*moved, *replies.notes))

    async def tree(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        """One trace with its spans of all hubs that tell them."""
        trace_id = trace_id_of(names["id"])
        if trace_id is None:
            hint = "an id has up to 32 hexadecimal digits"
            raise HarchError("E0201", f"`{names['id'][:40]}` is not a trace id", field="id", hint=hint)
        queried = await self._over.hubs(request)
        part = TracePart(kind="trace", query=trace_id, start_ns=0, end_ns=end_ns_of(request))
        replies = await self._over.query_hubs(request, queried, (part,), stays_home="spans")
        spans_max = min(request.count("limit", SPANS_IN_VIEW) or SPANS_IN_VIEW, SPANS_IN_VIEW_MAX)

        def joined() -> HttpReply:
            spans = spans_together(replies.everyone)
            if not spans:
                missing = f"; {replies.notes[0]}" if replies.notes else ""
                raise HarchError("E0692", f"no hub has a span of trace {trace_id}{missing}")
            lines = (_NO_LINES,) if request.count("logs") else ()
            return success(trace_view(tree_of(spans), spans_max=spans_max), warnings=(*replies.notes, *lines))

        return await self._over.in_thread(joined)

    async def _found(self, request: TelemetryRequest) -> tuple[list[TraceSummary], HubReplies]:
        query = request.one("query")
        parse_query(query)
        queried = await self._over.hubs(request)
        limit = min(request.count("limit", LIMIT) or LIMIT, LIMIT_MAX)
        start_ms = request.time_ms("start", request.now_ms - LOOK_BACK_MS)
        part = TracePart(kind="search", query=query, start_ns=start_ms * MS_NS, end_ns=end_ns_of(request), limit=limit)
        replies = await self._over.query_hubs(request, queried, (part,), stays_home="traces")
        return await self._over.in_thread(lambda: traces_together(replies.everyone, limit=limit)), replies


def _shared_times(start_ms: int, end_ms: int, queried: QueriedHubs, now_ms: int) -> tuple[int, int, tuple[str, ...]]:
    """Whole quarters of an hour that are over, if one of the hubs lies in another country."""
    if not queried.is_cross_border:
        return start_ms, end_ms, ()
    last_ms = min(end_ms, now_ms - CLOSED_MS) // SPAN_QUANTUM_MS * SPAN_QUANTUM_MS
    first_ms = min(start_ms // SPAN_QUANTUM_MS * SPAN_QUANTUM_MS, last_ms - SPAN_QUANTUM_MS)
    return first_ms, last_ms, ("times are past quarter hours, as required by hubs in other countries",)


def _group_view(group: SpanGroup, by: Sequence[SpanField]) -> dict[str, object]:
    payload = group_view(group, by)
    if not group.buckets:
        payload |= {name: None for name in payload if name.startswith("p") and name.endswith("Ns")}
    return {**payload, "errors": None if group.errors == ERRORS_UNKNOWN else group.errors}


# How do questions of other hubs and to other hubs come together in one SENTINEL? Only beside a hub there are any.


MEMORY_FILE = "told_abroad"


class Federated:
    """`routes` are for the own hub; `over_hubs` lets other routes answer requests that name several hubs."""

    def __init__(
        self,
        hub_url: str,
        token: str,
        settings: FederatedSettings,
        readers: Callable[[str], TenantReaders],
        engine: QueryEngine,
        data: Path,
        clock: Clock,
    ) -> None:
        self._owner = HubOwner(settings, readers, engine, data / MEMORY_FILE)
        self._over = OverHubs(HubCarrier(hub_url, token), self._owner, clock)
        metrics, logs, traces = (
            FederatedMetrics(self._over, engine),
            FederatedLogs(self._over, engine),
            FederatedTraces(self._over),
        )
        self._handlers: dict[str, Handler] = {
            "/api/v1/query": metrics.instant,
            "/api/v1/query_range": metrics.range,
            "/loki/api/v1/query": logs.instant,
            "/loki/api/v1/query_range": logs.range,
            "/api/traces/search": traces.plugin_search,
            TRACES: traces.search,
            f"{TRACES}/statistics": traces.statistics,
            f"{TRACES}/{{id}}": traces.tree,
        }

    def routes(self) -> list[HttpRoute]:
        return FederatedAnswers(self._owner).routes()

    def over_hubs(self, routes: Sequence[HttpRoute]) -> list[HttpRoute]:
        """The same routes; those that can ask other hubs know how."""
        return [replace(route, over_hubs=self._handlers.get(route.path)) for route in routes]

    async def close(self) -> None:
        await self._over.close()
        self._owner.close()
