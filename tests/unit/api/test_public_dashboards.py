"""Every panel of the public Grafana plugin's four dashboards shows something: its questions, asked as it asks them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from harch.sentinel.collect.exposition import read_page
from harch.sentinel.http.access import OpenAuthenticator
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.prometheus.queries import PublicPlugin, Queries
from harch.sentinel.http.routing import Routes
from harch.sentinel.http.settings import ANY_ORDER
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.node.sensors import RunningTask, TaskUsage
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.tenants import StoreFolder
from harch.testing.clock import SimClock
from unit.api.conftest import Client

NOW_S = 1_790_000_000
PROMQL, ENERGY, SOVEREIGNTY = (
    "/api/v1/query_range",
    "/harchos/api/v1/energy/query_range",
    "/harchos/api/v1/sovereignty/query",
)

# What the panels ask, by dashboard; `job` and `type` are what they choose by.
ASKED = {
    "energy and sustainability": [
        (ENERGY, 'sum(energy_consumption_watts{job="harchos-energy"})'),
        (ENERGY, 'energy_consumption_watts{job="harchos-energy"}'),
        (ENERGY, 'carbon_emissions_grams{job="harchos-energy"}'),
        (ENERGY, 'harchos_workload_energy_kwh{job="harchos-workload"}'),
        (ENERGY, 'energy_renewable_percent{job="harchos-energy"}'),
        (SOVEREIGNTY, 'sovereignty_compliance{job="harchos-sovereignty"}'),
    ],
    "model performance": [
        (PROMQL, 'harchos_gpu_utilization_percent{job="harchos-gpu"}'),
        (PROMQL, 'harchos_gpu_temperature_celsius{job="harchos-gpu"}'),
        (PROMQL, 'harchos_gpu_vram_used_bytes{job="harchos-gpu"}'),
        (PROMQL, 'harchos_gpu_vram_total_bytes{job="harchos-gpu"}'),
        (PROMQL, 'harchos_gpu_power_draw_watts{job="harchos-gpu"}'),
        (PROMQL, 'harchos_workload_cpu_usage_cores{job="harchos-workload",type="inference"}'),
        (PROMQL, 'harchos_workload_memory_used_bytes{job="harchos-workload",type="inference"}'),
        (
            PROMQL,
            'histogram_quantile(0.99, rate(harchos_inference_duration_seconds_bucket{job="harchos-inference"}[5m]))',
        ),
        (PROMQL, 'rate(harchos_inference_requests_total{job="harchos-inference"}[5m])'),
        (
            PROMQL,
            'rate(harchos_inference_errors_total{job="harchos-inference"}[5m])'
            ' / rate(harchos_inference_requests_total{job="harchos-inference"}[5m])',
        ),
    ],
    "operations": [
        (PROMQL, 'harchos_hub_latency_ms{job="harchos-hub"}'),
        (PROMQL, 'harchos_hub_error_rate_percent{job="harchos-hub"}'),
        (PROMQL, 'rate(harchos_hub_requests_total{job="harchos-hub"}[5m])'),
        (PROMQL, 'histogram_quantile(0.99, rate(harchos_hub_request_duration_seconds_bucket{job="harchos-hub"}[5m]))'),
        (PROMQL, 'harchos_hub_error_rate_percent{job="harchos-hub"} / 100'),
        (PROMQL, 'harchos_workload_cpu_usage_cores{job="harchos-workload"}'),
    ],
    "platform": [
        (PROMQL, 'harchos_hub_status{job="harchos-hub"}'),
        (ENERGY, 'carbon_intensity_forecast_gco2_kwh{job="harchos-carbon"}'),
        (ENERGY, 'harchos_gpu_hourly_price{job="harchos-pricing"}'),
        (ENERGY, 'carbon_intensity_gco2_kwh{job="harchos-carbon"}'),
        (ENERGY, 'carbon_savings_grams{job="harchos-carbon"}'),
    ],
}


def fake_proc(folder: Path, cpu_ticks: int) -> None:
    """The files of one process: session 41, so much CPU, 100 pages."""
    task = folder / "41"
    task.mkdir(exist_ok=True)
    behind = ["S", "1", "41", "41", *["0"] * 7, str(cpu_ticks), "0", *["0"] * 8, "100"]
    (task / "stat").write_text(f"41 (model) {' '.join(behind)}")


@pytest.fixture
async def grafana(operator: Client, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """SENTINEL after five minutes of scraping one hub with one node, on which an inference service runs."""
    clock = SimClock(datetime.fromtimestamp(NOW_S, UTC))
    folder = StoreFolder(tmp_path / "data", clock, ANY_ORDER, BlockPolicy())
    store = folder.store("default")
    (tmp_path / "proc").mkdir()
    minute = 0
    usage = TaskUsage(lambda: [RunningTask("wl-1", 41, "inference")], lambda: 60.0 * minute, proc=tmp_path / "proc")
    for minute in range(6):
        at_ms = (NOW_S - 60 * (5 - minute)) * 1000
        fake_proc(tmp_path / "proc", 100 * minute)
        await operator.get("/health")
        page = (await operator.get("/metrics/series")).text
        readings = [SeriesBatch(one.labels, [at_ms], [one.value]) for one in usage.read()]
        store.append([*read_page(page, at_ms).samples, *readings])
    engine = QueryEngine()
    queries = Queries(folder, engine)
    app = TelemetryApp(
        Routes([*queries.routes(), *PublicPlugin(folder, engine, queries).routes()]), OpenAuthenticator(), clock
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sentinel") as client:
        yield client
    app.close()
    folder.close()


@pytest.mark.parametrize("dashboard", ASKED)
async def test_no_panel_is_empty(grafana: httpx.AsyncClient, dashboard: str) -> None:
    empty = []
    for path, query in ASKED[dashboard]:
        asked: dict[str, str | int] = {"query": query, "legendFormat": "{{zone}}"}
        if path != SOVEREIGNTY:
            asked |= {"start": NOW_S - 3600, "end": NOW_S, "step": 15}
        told = (await grafana.get(path, params=asked)).json()
        assert told["status"] == "success"
        if not told["data"]["result"]:
            empty.append(query)
    assert not empty


async def test_small_and_large_instant_queries_answer_alike(grafana: httpx.AsyncClient) -> None:
    """Few series are read at once, many by a thread; what looks back is never taken for small."""
    for query, expected in [
        ("absent(nothing_of_this_name)", 1),
        ("count(harchos_hub_status)", 1),
        ("harchos_hub_status offset 1m", 1),
        ("count(count_over_time(harchos_hub_status[4m]))", 1),
        ("nothing_of_this_name", 0),
    ]:
        told = (await grafana.get("/api/v1/query", params={"query": query, "time": NOW_S})).json()
        assert (query, len(told["data"]["result"])) == (query, expected)
    asked: dict[str, str | int] = {"query": "absent(nothing_of_this_name)", "step": 15}
    asked |= {"start": NOW_S - 60, "end": NOW_S}
    told = (await grafana.get("/api/v1/query_range", params=asked)).json()
    assert [value for _, value in told["data"]["result"][0]["values"]] == ["1"] * 5
    refused = await grafana.get("/api/v1/query", params={"query": "sum(", "time": NOW_S})
    assert refused.status_code == 400
    assert (await grafana.get("/api/v1/query_range", params={**asked, "end": 0})).status_code == 400
