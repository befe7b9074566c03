"""How is LogQL answered over several hubs? Numbers are joined as for metrics; lines come from the own country alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.federated_metrics import shared_grid
from harch.api.telemetry.loki_request import (
    HOUR_NS,
    MS_NS,
    duration_of,
    limit_of,
    now_ns,
    order_of,
    step_of,
    time_ns,
    wants_categories,
    window_of,
)
from harch.api.telemetry.loki_results import log_answer
from harch.api.telemetry.over_hubs import OverHubs
from harch.api.telemetry.request import TelemetryRequest
from harch.sentinel.federated.asking.bodies import lines_together
from harch.sentinel.federated.asking.log_cutting import plan_lines, plan_logs
from harch.sentinel.federated.asking.merging import merge
from harch.sentinel.logql.evaluate.engine import LogAnswer, LogqlEngine
from harch.sentinel.logql.evaluate.work import ReadSoFar
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.logs import Order
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.options import QueryOptions

QUANTUM_MS = 300_000  # hubs of other countries count lines of whole five minutes


class FederatedLogs:
    """`/loki/api/v1/query` and `query_range` with `hubs`."""

    def __init__(self, over: OverHubs, engine: Engine) -> None:
        self._over, self._engine, self._logql = over, engine, LogqlEngine()

    async def instant(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        tree = await self._over.in_thread(lambda: self._logql.tree(request.needed("query")))
        at_ns = time_ns(request, "time", time_ns(request, "end", now_ns(request)))
        if isinstance(tree, LogQuery):
            start_ns = time_ns(request, "start", at_ns - duration_of(request, "since", HOUR_NS))
            return await self._lines(request, min(start_ns, at_ns), at_ns + 1)
        return await self._numbers(request, Grid.instant(at_ns // MS_NS), ())

    async def range(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        tree = await self._over.in_thread(lambda: self._logql.tree(request.needed("query")))
        start_ns, end_ns = window_of(request)
        if isinstance(tree, LogQuery):
            return await self._lines(request, start_ns, end_ns)
        step_ms, warnings = step_of(request, start_ns, end_ns)
        return await self._numbers(request, Grid.between(start_ns // MS_NS, end_ns // MS_NS, step_ms), warnings)

    async def _numbers(self, request: TelemetryRequest, grid: Grid, warnings: Sequence[str]) -> Answer:
        asked = await self._over.hubs(request)
        grid, moved = shared_grid(grid, asked, request.now_ms, QUANTUM_MS)
        cut = await self._over.in_thread(lambda: plan_logs(request.needed("query"), grid))
        heard = await self._over.ask(request, asked, cut.parts)
        options = QueryOptions(is_cancelled=request.is_gone)

        def joined() -> Answer:
            merged = merge(cut, heard.answers, heard.own, engine=self._engine, options=options)
            notes = (*warnings, *moved, *heard.notes, *merged.warnings, *merged.result.warnings)
            return log_answer(LogAnswer(merged.result.value, ReadSoFar()), 0.0, categorized=False, warnings=notes)

        return await self._over.in_thread(joined)

    async def _lines(self, request: TelemetryRequest, start_ns: int, end_ns: int) -> Answer:
        limit = limit_of(request, self._logql.options.limits.entries_default)
        newest_first = order_of(request) is Order.NEWEST_FIRST
        asked = await self._over.hubs(request)
        cut = await self._over.in_thread(
            lambda: plan_lines(
                request.needed("query"), start_ns=start_ns, end_ns=end_ns, limit=limit, newest_first=newest_first
            )
        )
        heard = await self._over.ask(request, asked, (cut.part,), stays_home="lines")

        def joined() -> Answer:
            lines = lines_together(heard.everyone, limit=limit, newest_first=newest_first)
            found = LogAnswer(lines, ReadSoFar(lines=len(lines)))
            return log_answer(found, 0.0, categorized=wants_categories(request), warnings=heard.notes)

        return await self._over.in_thread(joined)
