"""What a key may write: agents what is about themselves, users nothing that looks like HarchOS's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import cramjam
import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from whole_sentinel import WholeSentinel

from harch.base.clock import epoch_ms
from harch.sentinel.node.sender import Frame
from harch.sentinel.node.sensors import SensorReading, series

PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[WholeSentinel]:
    made = WholeSentinel(tmp_path)
    yield made
    await made.close()


async def written(world: WholeSentinel, key: str, *readings: SensorReading, **headers: str) -> httpx.Response:
    """Each with a millisecond of its own, so that nothing is there already."""
    await world.clock.advance(0.001)
    body = bytes(cramjam.snappy.compress_raw(bytes(Frame([]).filled(list(readings), epoch_ms(world.clock.now())))))
    async with world.client(key) as client:
        sent = {**PROTOBUF, "content-encoding": "snappy", **headers}
        return await client.post("/api/v1/write", content=body, headers=sent)


async def counted(world: WholeSentinel, query: str, tenant: str = "default") -> int:
    async with world.client("operator") as client:
        at = {"query": query, "time": str(world.clock.now().timestamp())}
        answer = await client.get("/api/v1/query", params=at, headers={"X-Scope-OrgID": tenant})
        return len(answer.json()["data"]["result"])


def figure(name: str, **labels: str) -> SensorReading:
    return SensorReading(series(name, labels), 1.0)


NODE = {"job": "harchos-node", "instance": "dakhla-agent"}


async def test_an_agent_sends_what_is_about_itself(world: WholeSentinel) -> None:
    readings = [figure("node_load1", **NODE), figure("harchos_gpu_throttled", **{**NODE, "job": "harchos-gpu"})]
    assert (await written(world, "agent", *readings)).status_code == 204
    assert await counted(world, '{instance="dakhla-agent"}') == 2


@pytest.mark.parametrize(
    "labels",
    [
        {"job": "harchos-node", "instance": "tangier-agent"},
        {"job": "harchos", "instance": "dakhla-agent"},
        {"job": "harchos-node"},
        {"instance": "dakhla-agent"},
    ],
)
async def test_an_agent_sends_nothing_about_others_and_may_try_again(
    world: WholeSentinel, labels: dict[str, str]
) -> None:
    """403 for all of it: the agent keeps it, because a hub that has just started does not know it yet."""
    answer = await written(world, "agent", figure("node_load1", **NODE), figure("node_load5", **labels))
    assert (answer.status_code, answer.json()["code"]) == (403, "E0103")
    assert await counted(world, '{__name__=~"node_load.*"}') == 0


async def test_an_agent_sends_lines_and_spans_of_itself_alone(world: WholeSentinel) -> None:
    async def push(**stream: str) -> int:
        now = str(epoch_ms(world.clock.now()) * 1_000_000)
        body = {"streams": [{"stream": stream, "values": [[now, "a line"]]}]}
        async with world.client("agent") as client:
            return (await client.post("/loki/api/v1/push", json=body, headers={"X-Scope-OrgID": "acme"})).status_code

    assert await push(job="harchos-task", agent="dakhla-agent", node="n1") == 204
    assert await push(job="harchos-task", agent="tangier-agent", node="n1") == 403
    assert await push(job="harchos-hub", agent="dakhla-agent") == 403

    async def trace(agent: str, service: str) -> int:
        request = ExportTraceServiceRequest()
        spans = request.resource_spans.add()
        for name, value in (("service.name", service), ("agent", agent)):
            spans.resource.attributes.add(key=name).value.string_value = value
        now = epoch_ms(world.clock.now()) * 1_000_000
        spans.scope_spans.add().spans.add(
            trace_id=b"t" * 16, span_id=b"s" * 8, name="x", start_time_unix_nano=now, end_time_unix_nano=now
        )
        async with world.client("agent") as client:
            body = request.SerializeToString()
            return (await client.post("/v1/traces", content=body, headers=PROTOBUF)).status_code

    assert await trace("dakhla-agent", "harchos-agent") == 200
    assert await trace("tangier-agent", "harchos-agent") == 403
    assert await trace("dakhla-agent", "harchos-hub") == 403


@pytest.mark.parametrize(
    "forged",
    [
        figure("up", job="harchos", hub_name="Dakhla"),
        figure("harch_events_total", kind="sovereignty.violation"),
        figure("harchos_hub_status", hub_name="Dakhla"),
        figure("ALERTS", alertname="HubDown", alertstate="firing"),
        figure("sovereignty_compliance", hub="dakhla"),
        figure("carbon_intensity_gco2_kwh", hub="dakhla"),
    ],
    ids=lambda one: dict(one.labels)["__name__"],
)
async def test_a_user_of_the_operators_tenant_forges_no_series_that_rules_rest_on(
    world: WholeSentinel, forged: SensorReading
) -> None:
    """Refused by series, as for every sender that must go on with the others."""
    answer = await written(world, "plain", forged, figure("up", job="node", instance="mine"))
    assert answer.status_code == 400
    assert "E0103" in answer.text
    assert await counted(world, '{__name__!=""}') == 1
    assert (await written(world, "operator", forged)).status_code == 204


async def test_in_a_tenant_of_their_own_users_write_what_they_like(world: WholeSentinel) -> None:
    assert (await written(world, "user", figure("harchos_hub_status", job="harchos"))).status_code == 204
    assert (await counted(world, "harchos_hub_status"), await counted(world, "harchos_hub_status", "acme")) == (0, 1)


async def test_the_same_holds_for_opentelemetry_and_for_lines(world: WholeSentinel) -> None:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics
    for name in ("harch_agents", "orders"):
        one = metric.add(name=name)
        one.gauge.data_points.add(as_double=0.0, time_unix_nano=epoch_ms(world.clock.now()) * 1_000_000)
    async with world.client("plain") as client:
        answer = await client.post("/v1/metrics", content=request.SerializeToString(), headers=PROTOBUF)
        assert (answer.status_code, b"harch_agents" in answer.content) == (200, True)
        now = str(epoch_ms(world.clock.now()) * 1_000_000)
        lines = {"streams": [{"stream": {"job": "harchos-hub"}, "values": [[now, "all is well"]]}]}
        assert (await client.post("/loki/api/v1/push", json=lines)).status_code == 403
    assert (await counted(world, "orders"), await counted(world, "harch_agents")) == (1, 0)
