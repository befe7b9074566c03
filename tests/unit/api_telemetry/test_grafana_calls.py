"""The calls of plain Grafana's Loki and Prometheus data sources, replayed with the answers they need."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from harch.sentinel.http.access import OpenAuthenticator
from harch.sentinel.http.alerting import Alerting
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.loki.routes import Loki
from harch.sentinel.http.prometheus.catalog import MetricCatalog
from harch.sentinel.http.prometheus.queries import Queries
from harch.sentinel.http.prometheus.status import StatusRoutes
from harch.sentinel.http.routing import HttpRoute, Routes
from harch.sentinel.model.labels import MetricMetadata, MetricType, labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.tenants import StoreFolder
from harch.testing.clock import SimClock
from harch.testing.telemetry_stores import MemoryLogs

NOW_S = 1_700_000_000
S = 1_000_000_000
Call = Mapping[str, Any]


def calls_of(name: str) -> list[Any]:
    told = json.loads((Path(__file__).parent / "grafana_calls" / f"{name}.json").read_text("utf-8"))
    return [pytest.param(call, id=call["name"]) for call in told["calls"]]


def asked(routes: Sequence[HttpRoute], call: Call) -> httpx.Response:
    async def ask() -> httpx.Response:
        app = TelemetryApp(Routes(routes), OpenAuthenticator(), SimClock(datetime.fromtimestamp(NOW_S, UTC)))
        transport = httpx.ASGITransport(app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://sentinel") as client:
                return await client.request(
                    call["method"],
                    call["path"],
                    params=call.get("parameters"),
                    data=call.get("form"),
                    headers={"User-Agent": "Grafana/11.3.0", "Accept-Encoding": "gzip", **call.get("headers", {})},
                )
        finally:
            app.close()

    return asyncio.run(ask())


def at(told: Any, path: str) -> Any:
    for part in path.split("."):
        told = told[int(part)] if part.isdecimal() else told[part]
    return told


def check(answer: httpx.Response, call: Call) -> None:
    assert answer.status_code == call.get("status", 200), answer.text
    assert answer.headers["content-type"].startswith("application/json")
    told = answer.json()
    for path, expected in call["answer"].items():
        assert at(told, path) == expected, path


class OneTenant:
    def __init__(self) -> None:
        self._logs = MemoryLogs()
        web, db = labels({"app": "web", "job": "demo"}), labels({"app": "db", "job": "demo"})
        lines = [(30, "info", 10, "t1"), (20, "info", 11, "t1"), (10, "error", 12, "t2")]
        self._logs.append(
            [
                LogBatch(
                    web,
                    [(NOW_S - ago) * S for ago, *_ in lines],
                    [f'{{"level":"{level}","ms":{ms}}}' for _, level, ms, _ in lines],
                    [labels({"trace_id": trace}) for *_, trace in lines],
                ),
                LogBatch(db, [(NOW_S - 30) * S, (NOW_S - 15) * S], ["level=info took=3ms", "level=warn took=7ms"]),
            ]
        )

    def logs(self, tenant: str) -> MemoryLogs:
        return self._logs


@pytest.mark.parametrize("call", calls_of("loki"))
def test_the_loki_data_source_gets_what_it_reads(call: Call) -> None:
    check(asked(Loki(OneTenant(), SimClock()).routes(), call), call)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("prometheus")
    clock = SimClock(datetime.fromtimestamp(NOW_S, UTC))
    stores = StoreFolder(folder, clock, TenantLimits(out_of_order_ms=None), BlockPolicy())
    times = np.arange(NOW_S - 600, NOW_S + 1, 15, dtype=np.int64) * 1000
    batches = [
        SeriesBatch(labels({"__name__": "up", "job": "api"}), times, np.ones(len(times))),
        *(
            SeriesBatch(
                labels({"__name__": "http_requests_total", "job": "api", "code": code}),
                times,
                np.arange(len(times)) * 15.0,
            )
            for code in ("200", "500")
        ),
    ]
    store = stores.store("default")
    store.append(batches)
    store.describe({"up": MetricMetadata(MetricType.GAUGE)})
    engine = QueryEngine(clock=clock)
    yield [
        *Queries(stores, engine).routes(),
        *MetricCatalog(stores).routes(),
        *StatusRoutes(stores, engine, lambda: (), lambda: "", {}).routes(),
        *Alerting(stores, engine, [], None, folder, clock).routes(),
    ]
    stores.close()


@pytest.mark.parametrize("call", calls_of("prometheus"))
def test_the_prometheus_data_source_gets_what_it_reads(call: Call, prometheus: Sequence[HttpRoute]) -> None:
    check(asked(prometheus, call), call)
