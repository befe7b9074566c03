"""How is PromQL answered over several hubs? As for one; with what is missing in the warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.hubs import HubsAsked
from harch.api.telemetry.over_hubs import OverHubs
from harch.api.telemetry.queries import range_asked
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.results import query_answer, result_json
from harch.sentinel.federated.asking.cutting import plan
from harch.sentinel.federated.asking.merging import merge
from harch.sentinel.federated.asking.plans import QUANTUM_MS, aligned
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.options import QueryOptions


class FederatedMetrics:
    """`/api/v1/query` and `query_range` with `hubs`."""

    def __init__(self, over: OverHubs, engine: Engine) -> None:
        self._over, self._engine = over, engine

    async def instant(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        at_ms = request.time_ms("time", request.time_ms("end", request.now_ms))
        return await self._answered(request, Grid.instant(at_ms), ())

    async def range(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        asked = range_asked(request)
        return await self._answered(request, Grid.between(asked.start_ms, asked.end_ms, asked.step_ms), asked.warnings)

    async def _answered(self, request: TelemetryRequest, grid: Grid, warnings: Sequence[str]) -> Answer:
        query = request.needed("query")
        asked = await self._over.hubs(request)
        grid, moved = shared_grid(grid, asked, request.now_ms)
        cut = await self._over.in_thread(lambda: plan(query, grid))
        heard = await self._over.ask(request, asked, cut.parts)
        options = QueryOptions(is_cancelled=request.is_gone)

        def joined() -> Answer:
            merged = merge(cut, heard.answers, heard.own, engine=self._engine, options=options)
            notes = (*warnings, *heard.notes, *merged.warnings, *merged.result.warnings)
            return query_answer(result_json(merged.result.value), notes, (*moved, *merged.result.infos))

        return await self._over.in_thread(joined)


def shared_grid(
    grid: Grid, asked: HubsAsked, now_ms: int, quantum_ms: int = QUANTUM_MS
) -> tuple[Grid, tuple[str, ...]]:
    """All hubs answer at the same times: at whole minutes that are over, if one of them lies in another country."""
    if not asked.is_abroad:
        return grid, ()
    shared = aligned(grid, now_ms, quantum_ms)
    moved = f"hubs of other countries answer at multiples of {quantum_ms // 60_000} min that are over: so does this"
    return shared, () if shared == grid else (moved,)
