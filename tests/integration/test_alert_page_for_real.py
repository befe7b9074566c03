"""A process, an OpenTelemetry SDK and a rule: traces are found and drawn, and the alert has its page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from harch.sentinel.node.sender import Frame
from harch.sentinel.node.sensors import SensorReading, series

PATIENCE_S = 60.0
GREETING = "SENTINEL listens on "
RULES = """
groups:
- name: queues
  interval: 1s
  rules:
  - alert: QueueTooLong
    expr: demo_queue_length > 100
    labels: {severity: warning}
    annotations: {summary: "the queue at {{ $labels.hub }} is too long"}
"""


@pytest.fixture(scope="module")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("alert-page")
    (folder / "rules.yml").write_text(RULES)
    (folder / "prometheus.yml").write_text("rule_files: [rules.yml]\n")
    command = [sys.executable, "-m", "harch", "sentinel", "serve", "--data", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0", "--config", str(folder / "prometheus.yml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        assert greeting.startswith(GREETING), (folder / "log").read_text()
        with httpx.Client(base_url=greeting.removeprefix(GREETING).strip(), timeout=30) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def trace_id(sentinel: httpx.Client) -> str:
    """A request that failed, as an SDK tells it, with a log line that names it."""
    provider = TracerProvider(resource=Resource.create({"service.name": "shop", "hub": "dakar"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{sentinel.base_url}/v1/traces")))
    tracer = provider.get_tracer("test")
    with (
        tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER, attributes={"gpus": 8}) as root,
        tracer.start_as_current_span("place") as place,
    ):
        place.set_status(Status(StatusCode.ERROR, "no room"))
    provider.shutdown()
    found = f"{root.get_span_context().trace_id:032x}"
    line = [str(time.time_ns()), "no room for order 7", {"level": "error", "trace_id": found}]
    pushed = {"streams": [{"stream": {"job": "shop", "hub": "dakar"}, "values": [line]}]}
    assert sentinel.post("/loki/api/v1/push", json=pushed).status_code == 204
    return found


def harch(sentinel: httpx.Client, *words: str) -> str:
    there = {"HARCH_SENTINEL_URL": str(sentinel.base_url), "NO_COLOR": "1", "COLUMNS": "120"}
    command = [sys.executable, "-m", "harch", "sentinel", *words]
    told = subprocess.run(command, env={**os.environ, **there}, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_a_trace_of_an_sdk_is_found_by_every_client(sentinel: httpx.Client, trace_id: str) -> None:
    query = '{ resource.service.name = "shop" && status = error }'
    plugin = sentinel.get("/api/traces/search", params={"query": query}).json()
    assert [one["traceID"] for one in plugin["data"]["traces"]] == [trace_id]
    tempo = sentinel.get("/api/search", params={"q": "{ .gpus >= 8 }", "limit": 5}).json()
    assert [one["traceID"] for one in tempo["traces"]] == [trace_id]
    tags = sentinel.get("/api/search", params={"tags": "service.name=shop gpus=8"}).json()
    assert [one["traceID"] for one in tags["traces"]] == [trace_id]
    listed = json.loads(harch(sentinel, "traces", "search", "service=shop", "error=true", "--json"))
    assert [one["traceID"] for one in listed["items"]] == [trace_id]


def test_the_trace_is_drawn_with_its_log_line(sentinel: httpx.Client, trace_id: str) -> None:
    drawn = harch(sentinel, "traces", "show", trace_id)
    assert "└ place" in drawn
    assert "no room for order 7" in drawn


def test_an_alert_of_the_same_hub_has_the_trace_and_the_line_on_its_page(sentinel: httpx.Client, trace_id: str) -> None:
    found: list[dict[str, Any]] = []
    end = time.monotonic() + PATIENCE_S
    while not found:
        assert time.monotonic() < end, "the alert does not fire"
        body = Frame([]).filled(
            [SensorReading(series("demo_queue_length", {"hub": "dakar"}), 250.0)], round(time.time() * 1000)
        )
        headers = {"content-type": "application/x-protobuf", "content-encoding": "snappy"}
        written = sentinel.post(
            "/api/v1/write", content=bytes(cramjam.snappy.compress_raw(bytes(body))), headers=headers
        )
        assert written.status_code == 204, written.text
        found = sentinel.get("/api/v2/alerts", params={"filter": "alertname=QueueTooLong"}).json()
        time.sleep(0.2)
    page = json.loads(harch(sentinel, "alerts", "show", found[0]["fingerprint"], "--json"))
    assert page["missing"] == []
    assert page["metrics"][0]["threshold"] == {"comparison": ">", "value": "100"}
    assert page["metrics"][0]["series"][0]["metric"]["hub"] == "dakar"
    assert page["logs"]["groups"][0]["example"]["line"] == "no room for order 7"
    assert [(one["traceID"], one["why"][0]) for one in page["traces"]["traces"]] == [(trace_id, "log")]
    assert "QueueTooLong" in harch(sentinel, "alerts", "show", found[0]["fingerprint"])
