"""How are queries answered? `/api/v1/query` and `query_range`, as Grafana and every other client ask them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harch.api.telemetry.answer import Answer, success
from harch.api.telemetry.ports import Tenants
from harch.api.telemetry.request import TelemetryRequest, parse_step_ms
from harch.api.telemetry.results import query_answer, result_json
from harch.api.telemetry.routing import Route
from harch.base.errors import HarchError
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.options import QueryOptions
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_text

POINTS_PER_SERIES_MAX = 11_000  # as in Prometheus; a wider step is taken instead of a refusal
TIMEOUT_S_MAX = 600.0
_SMALL_SERIES_MAX, _SMALL_STEPS_MAX, _SMALL_TEXT_MAX = (
    16,
    500,
    256,
)  # of a query that holds up nobody; a thread would take longer than it


@dataclass(frozen=True, slots=True)
class RangeAsked:
    """The times of a range query; `warnings` say what was changed about them."""

    start_ms: int
    end_ms: int
    step_ms: int
    warnings: tuple[str, ...] = ()


def range_asked(request: TelemetryRequest) -> RangeAsked:
    """Raises E0201 for times that are none."""
    start, end = request.time_ms("start", request.now_ms), request.time_ms("end", request.now_ms)
    step = parse_step_ms(request.needed("step"))
    if end < start:
        raise HarchError("E0201", "`end` lies before `start`", field="end")
    if (end - start) // step < POINTS_PER_SERIES_MAX:
        return RangeAsked(start, end, step)
    step = -(-(end - start) // (POINTS_PER_SERIES_MAX - 1))
    widened = f"the step was widened to {step / 1000:g} s, so that a series has at most 11,000 points"
    return RangeAsked(start, end, step, (widened,))


class Queries:
    """Questions in PromQL."""

    def __init__(self, tenants: Tenants, engine: Engine) -> None:
        self._tenants = tenants
        self._engine = engine

    def routes(self) -> list[Route]:
        both = ("GET", "POST")
        return [
            Route(both, "/api/v1/query", self.instant, is_small=self._is_small),
            Route(both, "/api/v1/query_range", self.range, is_small=self._is_small_range),
            Route(both, "/api/v1/format_query", self.formatted),
        ]

    def instant(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        at_ms = _at_ms(request)
        store = self._tenants.store(request.tenant)
        result = self._engine.instant(request.needed("query"), at_ms, store, _options(request))
        return query_answer(result_json(result.value), result.warnings, result.infos)

    def range(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        asked = range_asked(request)
        store = self._tenants.store(request.tenant)
        result = self._engine.range(
            request.needed("query"), asked.start_ms, asked.end_ms, asked.step_ms, store, _options(request)
        )
        return query_answer(result_json(result.value), (*asked.warnings, *result.warnings), result.infos)

    def _is_small(self, request: TelemetryRequest) -> bool:
        try:
            return self._reads_little(request, _at_ms(request))
        except HarchError:
            return False  # the query itself tells what is wrong

    def _is_small_range(self, request: TelemetryRequest) -> bool:
        try:
            asked = range_asked(request)
            few = asked.end_ms - asked.start_ms <= _SMALL_STEPS_MAX * asked.step_ms
            return few and self._reads_little(request, asked.start_ms)
        except HarchError:
            return False

    def _reads_little(self, request: TelemetryRequest, start_ms: int) -> bool:
        """Whether a query looks at so few series, and not back, that it is answered at once."""
        query = request.one("query")
        if len(query) > _SMALL_TEXT_MAX or request.tenant not in self._tenants:
            return False
        selectors = self._engine.momentary(query)
        if selectors is None:
            return False
        store = self._tenants.store(request.tenant)
        since_ms = start_ms - self._engine.options.lookback_ms
        return all(store.is_small(one.matchers, since_ms, _SMALL_SERIES_MAX) for one in selectors)

    def formatted(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        return success(to_text(parse(request.needed("query"))))


def _options(request: TelemetryRequest) -> QueryOptions:
    timeout, lookback = request.one("timeout"), request.one("lookback_delta")
    return QueryOptions(
        lookback_ms=parse_step_ms(lookback, "lookback_delta") if lookback else None,
        timeout_s=min(parse_step_ms(timeout, "timeout") / 1000, TIMEOUT_S_MAX) if timeout else None,
        is_cancelled=request.is_gone,
    )


def _at_ms(request: TelemetryRequest) -> int:
    """The public plugin sends `end` and no `time` with instant queries."""
    return request.time_ms("time", request.time_ms("end", request.now_ms))
