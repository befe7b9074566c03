"""Whatever is sent to the paths of logs and traces is taken or refused; the next request is served as ever."""

from __future__ import annotations

import asyncio
import gzip
import json

import cramjam
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_and_trace_world import World
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harch.sentinel.collect.loki import push_type

NS = 1_700_000_000_000_000_000
PATHS = ("/loki/api/v1/push", "/api/prom/push", "/v1/logs", "/otlp/v1/logs", "/v1/traces")
KINDS = ("application/x-protobuf", "application/json", "text/plain", "application/json; charset=", "")
ENCODINGS = ("", "gzip", "deflate", "zstd", "snappy", "br")


def _push() -> bytes:
    push = push_type()()
    stream = push.streams.add(labels=b'{job="a"}')
    for line in (b"x", b"Bearer 0123456789"):
        entry = stream.entries.add(line=line)
        entry.timestamp.seconds = NS // 10**9
        entry.metadata.add(name=b"trace_id", value=b"ab")
    message: bytes = push.SerializeToString()
    return message


def _otlp_logs() -> bytes:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    record = resource.scope_logs.add().log_records.add(time_unix_nano=NS, severity_text="INFO", trace_id=b"a" * 16)
    record.body.kvlist_value.values.add(key="k").value.array_value.values.add().double_value = 1.5
    message: bytes = request.SerializeToString()
    return message


def _otlp_traces() -> bytes:
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="GET", start_time_unix_nano=NS, end_time_unix_nano=NS + 5)
    )
    span.attributes.add(key="n").value.int_value = 7
    span.events.add(name="retry", time_unix_nano=NS)
    span.links.add(trace_id=b"t" * 16)
    message: bytes = request.SerializeToString()
    return message


SEEDS = (
    _push(),
    _otlp_logs(),
    _otlp_traces(),
    json.dumps({"streams": [{"stream": {"job": "a"}, "values": [[str(NS), "x", {"a": "b"}], [1, "y"]]}]}).encode(),
    json.dumps({"streams": [{"labels": "{a='b'}", "entries": [{"ts": "2023-01-01T00:00:00Z", "line": ""}]}]}).encode(),
    json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"intValue": "7"}}]}]}]}).encode(),
    json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "ab" * 16, "spanId": "cd" * 8}]}]}]}).encode(),
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good body with some bytes changed, cut out, or put in."""
    body = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(body) - 1)))
        match draw(st.sampled_from(("change", "cut", "insert", "repeat", "end"))):
            case "change" if body:
                body[at] = draw(st.integers(0, 255))
            case "cut":
                del body[at : at + draw(st.integers(1, 20))]
            case "insert":
                body[at:at] = draw(st.binary(max_size=20))
            case "repeat":
                body[at:at] = body[: draw(st.integers(1, 50))] * draw(st.integers(1, 20))
            case _:
                del body[at:]
    return bytes(body)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    body = draw(st.one_of(mutated(), mutated(), st.binary(max_size=300)))
    encoding = draw(st.sampled_from(ENCODINGS))
    if draw(st.integers(0, 9)):  # mostly packed as announced
        if encoding == "gzip":
            body = gzip.compress(body, 1)
        elif encoding == "zstd":
            body = bytes(cramjam.zstd.compress(body))
        elif draw(st.booleans()):
            body = bytes(cramjam.snappy.compress_raw(body))
    headers = {"content-type": draw(st.sampled_from(KINDS)), "content-encoding": encoding}
    return draw(st.sampled_from(PATHS)), body, {name: value for name, value in headers.items() if value}


async def _sent(path: str, body: bytes, headers: dict[str, str]) -> tuple[int, int]:
    world = World()
    try:
        answer = await world.client.post(path, content=body, headers=headers)
        good = await world.client.post(PATHS[0], content=SEEDS[3], headers={"content-type": KINDS[1]})
        for line in world.lines():
            repr(line).encode()  # what was taken is text that can be shown
        return answer.status_code, good.status_code
    finally:
        await world.close()


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(requests())
def test_noise_is_taken_or_refused(request: tuple[str, bytes, dict[str, str]]) -> None:
    status, after = asyncio.run(_sent(*request))
    assert status in {200, 204, 400, 413, 415}
    assert after == 204
