"""What does the public data source for Grafana ask besides PromQL? Energy and sovereignty, in its own shapes."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.ports import Tenants, TenantStore
from harch.api.telemetry.queries import Queries
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.results import VectorResult

_BASE = "/harchos/api/v1"
_EMITTED = "sum by (hub) (last_over_time(carbon_emissions_grams[15m]))"
_COMPLIANCE = "min by (hub, type) (last_over_time(sovereignty_compliance[15m]))"
_UNITS = (("_watts", "W"), ("_kwh", "kWh"), ("_grams", "g"), ("_percent", "%"), ("_gco2_kwh", "gCO2/kWh"))


class PublicPlugin:
    """Prometheus' answers with what the plugin reads beside them."""

    def __init__(self, tenants: Tenants, engine: Engine, queries: Queries) -> None:
        self._tenants, self._engine, self._queries = tenants, engine, queries

    def routes(self) -> list[Route]:
        both = ("GET", "POST")
        return [
            Route(both, f"{_BASE}/energy/query", self.energy),
            Route(both, f"{_BASE}/energy/query_range", self.energy_range),
            Route(both, f"{_BASE}/sovereignty/query", self.sovereignty),
        ]

    def energy(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        return self._with_energy(self._queries.instant(request, names), request)

    def energy_range(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        return self._with_energy(self._queries.range(request, names), request)

    def sovereignty(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        told = orjson.loads(self._queries.instant(request, names).body)
        # A number alone, such as the answer to `1 + 1`, is no list of series.
        series = told["data"]["result"] if told["data"].get("resultType") in {"vector", "matrix"} else []
        asked = {str(one["metric"].get(METRIC_NAME, request.one("query"))) for one in series}
        by_framework = self._vector(request, _COMPLIANCE)
        state = _state([value for _, value in by_framework])
        told["data"]["compliance"] = dict.fromkeys(sorted(asked) or [request.one("query")], state)
        told["data"]["framework"] = ",".join(sorted({labels.get("type", "") for labels, _ in by_framework}))
        return Answer(body=orjson.dumps(told))

    def _with_energy(self, answer: Answer, request: TelemetryRequest) -> Answer:
        told = orjson.loads(answer.body)
        told["data"]["carbonGrams"] = {
            labels.get("hub", ""): value for labels, value in self._vector(request, _EMITTED)
        }
        told["data"]["energyUnit"] = next((unit for ending, unit in _UNITS if ending in request.one("query")), "")
        return Answer(body=orjson.dumps(told))

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
