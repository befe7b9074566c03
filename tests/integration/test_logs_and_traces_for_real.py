"""SENTINEL as a process: logs and spans of unmodified clients are on disk when it answers, and no secret is."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cramjam
import httpx
import pytest
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

GREETING = "SENTINEL listens on "
KEY = "hsk_5ecre7000111222333"
RESOURCE = Resource.create({"service.name": "shop", "deployment.environment": "test", "host.name": "h1"})


@contextmanager
def sentinel(folder: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "harch", "sentinel", "serve", "--data", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        assert greeting.startswith(GREETING), (folder / "log").read_text()
        with httpx.Client(base_url=greeting.removeprefix(GREETING).strip(), timeout=30) as client:
            yield client, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def lines(client: httpx.Client, query: str) -> list[tuple[dict[str, str], str]]:
    now_ns = time.time_ns()
    span = {"start": str(now_ns - 3600 * 10**9), "end": str(now_ns + 60 * 10**9)}
    answer = client.get("/loki/api/v1/query_range", params={"query": query, **span, "limit": "100"})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return [(one["stream"], value[1]) for one in found for value in one["values"]]


def send_logs(client: httpx.Client) -> None:
    exporter = OTLPLogExporter(f"{client.base_url}/v1/logs", compression=Compression.Gzip)
    provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = provider.get_logger("shop.test")
    tracer = send_spans(client)
    with tracer.get_tracer("test").start_as_current_span("buy") as span:
        logger.emit(
            timestamp=time.time_ns(),
            severity_number=SeverityNumber.ERROR,
            severity_text="ERROR",
            body=f"it broke with {KEY}",
            attributes={"order": 7},
        )
        span.set_attribute("api.note", f"key {KEY}")
        with tracer.get_tracer("test").start_as_current_span("pay"):
            pass
    provider.shutdown()
    tracer.shutdown()


def send_spans(client: httpx.Client) -> TracerProvider:
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{client.base_url}/v1/traces")))
    return provider


def promtail(client: httpx.Client, line: bytes) -> httpx.Response:
    """As Promtail sends it: protobuf in a snappy block, with its own headers."""
    seconds = time.time_ns() // 10**9
    labels = b'{filename="/var/log/messages", job="varlogs"}'
    entry = _field(0x0A, b"\x08" + _varint(seconds)) + _field(0x12, line)
    body = _field(0x0A, _field(0x0A, labels) + _field(0x12, entry) + b"\x18\x7b")
    headers = {"content-type": "application/x-protobuf", "user-agent": "promtail/3.0.0", "x-scope-orgid": "default"}
    return client.post("/loki/api/v1/push", content=bytes(cramjam.snappy.compress_raw(body)), headers=headers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sentinel-logs")


def test_what_unmodified_clients_sent_is_found_also_after_a_kill(folder: Path) -> None:
    with sentinel(folder) as (client, process):
        assert promtail(client, f"user used {KEY} today".encode()).status_code == 204
        send_logs(client)
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        assert "pyarrow" in loaded
        assert "/pandas/" not in loaded  # dozens of MB that it does not need, though others install them
        assert "/scipy/" not in loaded
        process.kill()
        process.wait(30)
    on_disk = [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert on_disk == []
    with sentinel(folder) as (client, _):
        assert [text for _, text in lines(client, '{job="varlogs"}')] == ["user used hsk_[redacted] today"]
        ((stream, text),) = lines(client, '{service_name="shop"} | level="error"')
        assert text == "it broke with hsk_[redacted]"
        assert (stream["deployment_environment"], stream["host_name"], stream["order"]) == ("test", "h1", "7")
        trace = client.get(f"/harchos/api/v1/traces/{stream['trace_id']}")
        assert trace.status_code == 200
        assert '"buy"' in trace.text
        assert '"pay"' in trace.text
        assert KEY not in trace.text


def test_a_rule_that_cannot_be_read_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / "sentinel.toml").write_text("[[redaction]]\nname = 'broken'\npattern = '('\n")
    command = [sys.executable, "-m", "harch", "sentinel", "serve", "--data", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0", "--settings", str(tmp_path / "sentinel.toml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "E0683" in ended.stderr
    assert "`broken`" in ended.stderr


def _field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
