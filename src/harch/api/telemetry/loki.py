"""Who answers what Loki would be asked? Queries, catalog and tail around one engine."""

from __future__ import annotations

from dataclasses import replace

from harch.api.telemetry.loki_catalog import LokiCatalog
from harch.api.telemetry.loki_queries import LokiQueries
from harch.api.telemetry.loki_tail import LokiTail
from harch.api.telemetry.ports import LogTenants
from harch.api.telemetry.routing import Route
from harch.api.telemetry.sockets import SocketRoute
from harch.base.clock import Clock
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.options import LogLimits, LogqlOptions
from harch.sentinel.promql.evaluate.options import Limits

POINTS_MAX = 10_000_000  # of any one value on the way: its JSON takes some 250 MB


class Loki:
    """Loki's read API over the logs of all tenants."""

    def __init__(self, tenants: LogTenants, clock: Clock, limits: Limits | None = None) -> None:
        values = limits or Limits()
        values = replace(values, points_max=min(values.points_max, POINTS_MAX))
        engine = LogqlEngine(LogqlOptions(LogLimits(values=values)), clock)
        self._queries = LokiQueries(tenants, engine, clock)
        self._catalog = LokiCatalog(tenants, engine)
        self._tail = LokiTail(tenants, engine, clock)

    def routes(self) -> list[Route]:
        return [*self._queries.routes(), *self._catalog.routes(), *self._tail.routes()]

    def sockets(self) -> list[SocketRoute]:
        return self._tail.sockets()
