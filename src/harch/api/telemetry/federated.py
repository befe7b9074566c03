"""How do questions of other hubs and to other hubs come together in one SENTINEL? Only beside a hub there are any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harch.api.telemetry.federated_answers import FederatedAnswers
from harch.api.telemetry.federated_logs import FederatedLogs
from harch.api.telemetry.federated_metrics import FederatedMetrics
from harch.api.telemetry.federated_owner import HubOwner
from harch.api.telemetry.federated_settings import FederatedSettings
from harch.api.telemetry.federated_traces import FederatedTraces
from harch.api.telemetry.hubs import HubCarrier
from harch.api.telemetry.over_hubs import OverHubs
from harch.api.telemetry.routing import Handler, Route
from harch.api.telemetry.traces import BASE as TRACES
from harch.base.clock import Clock
from harch.sentinel.federated.owning.answering import Readers
from harch.sentinel.promql.evaluate.engine import Engine

MEMORY_FILE = "told_abroad"


class Federated:
    """`routes` are for the own hub; `over_hubs` lets other routes answer requests that name several hubs."""

    def __init__(
        self,
        hub_url: str,
        token: str,
        settings: FederatedSettings,
        readers: Callable[[str], Readers],
        engine: Engine,
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

    def routes(self) -> list[Route]:
        return FederatedAnswers(self._owner).routes()

    def over_hubs(self, routes: Sequence[Route]) -> list[Route]:
        """The same routes; those that can ask other hubs know how."""
        return [replace(route, over_hubs=self._handlers.get(route.path)) for route in routes]

    async def close(self) -> None:
        await self._over.close()
        self._owner.close()
