"""How are queries answered?

`/api/v1/query` and `query_range`, as Grafana and every other client sends them, and the public plugin's shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from harch.base.errors import HarchError
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, parse_step_ms, success
from harch.sentinel.http.prometheus.results import query_answer, result_json
from harch.sentinel.http.routing import HttpRoute
from harch.sentinel.http.tenants import Tenants, TenantStore
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.promql.evaluate.context import QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import VectorResult
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_lines

POINTS_PER_SERIES_MAX = 11_000  # as in Prometheus; a wider step is taken instead of a refusal
TIMEOUT_S_MAX = 600.0
_SMALL_SERIES_MAX, _SMALL_STEPS_MAX, _SMALL_TEXT_MAX = (
    16,
    500,
    256,
)  # of a query that holds up nobody; a thread would take longer than it


@dataclass(frozen=True, slots=True)
class RangeParameters:
    """The times of a range query; `warnings` say what was changed about them."""

    start_ms: int
    end_ms: int
    step_ms: int
    warnings: tuple[str, ...] = ()


def range_parameters(request: TelemetryRequest) -> RangeParameters:
    """Raises E0201 for times that are none."""
    start, end = request.time_ms("start", request.now_ms), request.time_ms("end", request.now_ms)
    step = parse_step_ms(request.needed("step"))
    if end < start:
        raise HarchError("E0201", "`end` is before `start`", field="end")
    if (end - start) // step < POINTS_PER_SERIES_MAX:
        return RangeParameters(start, end, step)
    step = -(-(end - start) // (POINTS_PER_SERIES_MAX - 1))
    widened = f"step widened to {step / 1000:g} s to keep series within 11,000 points"
    return RangeParameters(start, end, step, (widened,))


class Queries:
    """Questions in PromQL."""

    def __init__(self, tenants: Tenants, engine: QueryEngine) -> None:
        self._tenants = tenants
        self._engine = engine

    def routes(self) -> list[HttpRoute]:
        both = ("GET", "POST")
        return [
            HttpRoute(both, "/api/v1/query", self.instant, is_small=self._is_small),
            HttpRoute(both, "/api/v1/query_range", self.range, is_small=self._is_small_range),
            HttpRoute(both, "/api/v1/format_query", self.formatted),
        ]

    def instant(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        at_ms = _at_ms(request)
        store = self._tenants.store(request.tenant)
        result = self._engine.instant(request.needed("query"), at_ms, store, _options(request))
        return query_answer(result_json(result.value), result.warnings, result.infos)

    def range(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        wanted = range_parameters(request)
        store = self._tenants.store(request.tenant)
        result = self._engine.range(
            request.needed("query"), wanted.start_ms, wanted.end_ms, wanted.step_ms, store, _options(request)
        )
        return query_answer(result_json(result.value), (*wanted.warnings, *result.warnings), result.infos)

    def _is_small(self, request: TelemetryRequest) -> bool:
        try:
            return self._reads_little(request, _at_ms(request))
        except HarchError:
            return False  # the query itself tells what is wrong

    def _is_small_range(self, request: TelemetryRequest) -> bool:
        try:
            wanted = range_parameters(request)
            few = wanted.end_ms - wanted.start_ms <= _SMALL_STEPS_MAX * wanted.step_ms
            return few and self._reads_little(request, wanted.start_ms)
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

    def formatted(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        return success(to_lines(parse(request.needed("query"))))


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


# What does the public data source for Grafana ask besides PromQL? Energy and sovereignty, in its own shapes.


_BASE = "/harchos/api/v1"
_EMITTED = "sum by (hub) (last_over_time(carbon_emissions_grams[15m]))"
_COMPLIANCE = "min by (hub, type) (last_over_time(sovereignty_compliance[15m]))"
_UNITS = (("_watts", "W"), ("_kwh", "kWh"), ("_grams", "g"), ("_percent", "%"), ("_gco2_kwh", "gCO2/kWh"))


class PublicPlugin:
    """Prometheus' answers with what the plugin reads beside them."""

    def __init__(self, tenants: Tenants, engine: QueryEngine, queries: Queries) -> None:
        self._tenants, self._engine, self._queries = tenants, engine, queries

    def routes(self) -> list[HttpRoute]:
        both = ("GET", "POST")
        return [
            HttpRoute(both, f"{_BASE}/energy/query", self.energy),
            HttpRoute(both, f"{_BASE}/energy/query_range", self.energy_range),
            HttpRoute(both, f"{_BASE}/sovereignty/query", self.sovereignty),
        ]

    def energy(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        return self._with_energy(self._queries.instant(request, names), request)

    def energy_range(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        return self._with_energy(self._queries.range(request, names), request)

    def sovereignty(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        envelope = orjson.loads(self._queries.instant(request, names).body)
        # A number alone, such as the answer to `1 + 1`, is no list of series.
        series = envelope["data"]["result"] if envelope["data"].get("resultType") in {"vector", "matrix"} else []
        named = {str(one["metric"].get(METRIC_NAME, request.one("query"))) for one in series}
        by_framework = self._vector(request, _COMPLIANCE)
        state = _state([value for _, value in by_framework])
        envelope["data"]["compliance"] = dict.fromkeys(sorted(named) or [request.one("query")], state)
        envelope["data"]["framework"] = ",".join(sorted({labels.get("type", "") for labels, _ in by_framework}))
        return HttpReply(body=orjson.dumps(envelope))

    def _with_energy(self, answer: HttpReply, request: TelemetryRequest) -> HttpReply:
        envelope = orjson.loads(answer.body)
        envelope["data"]["carbonGrams"] = {
            labels.get("hub", ""): value for labels, value in self._vector(request, _EMITTED)
        }
        envelope["data"]["energyUnit"] = next((unit for ending, unit in _UNITS if ending in request.one("query")), "")
        return HttpReply(body=orjson.dumps(envelope))

    def _vector(self, request: TelemetryRequest, query: str) -> list[tuple[dict[str, str], float]]:
        store: TenantStore = self._tenants.store(request.tenant)
        at_ms = request.time_ms("end", request.now_ms)
        value = self._engine.instant(query, at_ms, store).value
        if not isinstance(value, VectorResult):
            return []
        return [
            (dict(value.series.labels_of(place)), float(value.values[place])) for place in range(value.series.count)
        ]


def _state(values: list[float]) -> str:
    """Nothing known is not compliance."""
    if values and all(value == 1.0 for value in values):
        return "compliant"
    return "partial" if any(value > 0.0 for value in values) else "non-compliant"
