"""How are questions in LogQL answered? `/loki/api/v1/query` and `query_range`, as Grafana and the public plugin ask."""

from __future__ import annotations

from collections.abc import Mapping

from harch.api.telemetry.answer import Answer, success
from harch.api.telemetry.loki_request import (
    HOUR_NS,
    MS_NS,
    duration_of,
    grid_of,
    limit_of,
    now_ns,
    order_of,
    time_ns,
    wants_categories,
    window_of,
)
from harch.api.telemetry.loki_results import log_answer
from harch.api.telemetry.ports import LogTenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route
from harch.base.clock import Clock
from harch.sentinel.logql.evaluate.engine import LogAnswer, LogqlEngine
from harch.sentinel.logql.evaluate.lines import Window
from harch.sentinel.logql.evaluate.options import LogQueryOptions
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.logql.syntax.printer import to_text

TIMEOUT_S_MAX = 600.0


class LokiQueries:
    """Questions about logs."""

    def __init__(self, tenants: LogTenants, engine: LogqlEngine, clock: Clock) -> None:
        self._tenants = tenants
        self._engine = engine
        self._clock = clock

    def routes(self) -> list[Route]:
        both = ("GET", "POST")
        return [
            Route(both, "/loki/api/v1/query", self.instant),
            Route(both, "/loki/api/v1/query_range", self.range),
            Route(both, "/loki/api/v1/format_query", self.formatted),
        ]

    def instant(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        began_s = self._clock.monotonic_s()
        tree = self._engine.tree(request.needed("query"))
        # The public plugin sends `start` and `end` and no `time` with instant queries, for lines too.
        at_ns = time_ns(request, "time", time_ns(request, "end", now_ns(request)))
        if isinstance(tree, LogQuery):
            start_ns = time_ns(request, "start", at_ns - duration_of(request, "since", HOUR_NS))
            return self._lines(tree, request, min(start_ns, at_ns), at_ns + 1, began_s)
        store = self._tenants.logs(request.tenant)
        answer = self._engine.instant(tree, at_ns // MS_NS, store, now_ns(request), query_options(request))
        return self._told(answer, request, began_s)

    def range(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        began_s = self._clock.monotonic_s()
        tree = self._engine.tree(request.needed("query"))
        start_ns, end_ns = window_of(request)
        if isinstance(tree, LogQuery):
            return self._lines(tree, request, start_ns, end_ns, began_s)
        grid, warnings = grid_of(request, start_ns, end_ns)
        store = self._tenants.logs(request.tenant)
        answer = self._engine.range(
            tree, grid.start_ms, grid.end_ms, grid.step_ms, store, now_ns(request), query_options(request)
        )
        return self._told(answer, request, began_s, warnings)

    def _lines(self, query: LogQuery, request: TelemetryRequest, start_ns: int, end_ns: int, began_s: float) -> Answer:
        window = Window(
            start_ns,
            end_ns,
            order_of(request),
            limit_of(request, self._engine.options.limits.entries_default),
            duration_of(request, "interval", 0),
        )
        store = self._tenants.logs(request.tenant)
        answer = self._engine.lines(query, window, store, now_ns(request), query_options(request))
        return self._told(answer, request, began_s)

    def _told(
        self, answer: LogAnswer, request: TelemetryRequest, began_s: float, warnings: tuple[str, ...] = ()
    ) -> Answer:
        took_s = self._clock.monotonic_s() - began_s
        return log_answer(answer, took_s, categorized=wants_categories(request), warnings=warnings)

    def formatted(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        return success(to_text(self._engine.tree(request.needed("query"))))


def query_options(request: TelemetryRequest) -> LogQueryOptions:
    asked_ns = duration_of(request, "timeout", 0)
    return LogQueryOptions(
        timeout_s=min(asked_ns / 1e9, TIMEOUT_S_MAX) if asked_ns else None,
        is_cancelled=request.is_gone,
    )
