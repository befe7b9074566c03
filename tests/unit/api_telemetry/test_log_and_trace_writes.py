"""Logs and traces come in as the clients of Loki and OpenTelemetry send them; refusals are told, no secret stays."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator

import cramjam
import pytest
from log_and_trace_world import World
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from harch.base.errors import HarchError

NS = 1_700_000_000_000_000_000
PUSH, PROTOBUF, JSON = "/loki/api/v1/push", "application/x-protobuf", "application/json"
ONE = {"streams": [{"stream": {"job": "api"}, "values": [[str(NS), "hello"]]}]}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


def push_of(*lines: str) -> bytes:
    values = [[str(NS + place), line] for place, line in enumerate(lines)]
    return json.dumps({"streams": [{"stream": {"job": "api"}, "values": values}]}).encode()


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [("application/json", ""), ("application/json; charset=utf-8", "gzip"), ("application/json", "deflate"),
     ("application/json", "snappy"), ("application/json", "zstd")],
)  # fmt: skip
async def test_a_push_in_json_is_taken_however_it_is_packed(world: World, kind: str, encoding: str) -> None:
    plain = json.dumps(ONE).encode()
    body = {
        "": plain,
        "gzip": gzip.compress(plain),
        "deflate": zlib.compress(plain),
        "snappy": bytes(cramjam.snappy.compress_raw(plain)),
        "zstd": bytes(cramjam.zstd.compress(plain)),
    }[encoding]
    headers = {"content-type": kind, "content-encoding": encoding, "x-scope-orgid": "tenant-a"}
    answer = await world.client.post(PUSH, content=body, headers=headers)
    assert (answer.status_code, answer.content) == (204, b"")
    assert world.lines("tenant-a") == [((("job", "api"),), NS, "hello", ())]
    assert world.lines() == []


async def test_a_protobuf_push_needs_no_headers_and_the_old_path_works(world: World) -> None:
    labels, line = b'{job="api"}', b"hello"
    entry = bytes((0x0A, 6, 0x08)) + _varint(NS // 10**9) + bytes((0x12, len(line))) + line
    stream = bytes((0x0A, len(labels))) + labels + bytes((0x12, len(entry))) + entry
    body = bytes(cramjam.snappy.compress_raw(bytes((0x0A, len(stream))) + stream))
    answer = await world.client.post("/api/prom/push", content=body)
    assert answer.status_code == 204
    assert world.lines() == [((("job", "api"),), NS, "hello", ())]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (  # Fluent Bit
            {"User-Agent": "Fluent-Bit", "Content-Type": "application/json", "X-Scope-OrgID": "default"},
            b'{"streams":[{"stream":{"job":"api"},"values":[["1700000000000000000","hello"]]}]}',
        ),
        (  # Vector, JSON, packed
            {"User-Agent": "Vector/0.39", "Content-Type": "application/json", "Content-Encoding": "gzip"},
            gzip.compress(b'{"streams":[{"stream":{"job":"api"},"values":[["1700000000000000000","hello",{}]]}]}'),
        ),
        (  # python-logging-loki
            {"User-Agent": "python-requests/2.32", "Content-Type": "application/json"},
            b'{"streams": [{"stream": {"job": "api"}, "values": [["1700000000000000000", "hello"]]}]}',
        ),
        (  # curl, as in Loki's documentation, with numbers for times
            {"User-Agent": "curl/8", "Content-Type": "application/json; charset=utf-8"},
            b'{"streams": [{"stream": {"job": "api"}, "values": [[1700000000000000000, "hello"]]}]}',
        ),
    ],
)
async def test_the_usual_senders_of_json_are_understood(world: World, headers: dict[str, str], body: bytes) -> None:
    answer = await world.client.post(PUSH, content=body, headers=headers)
    assert answer.status_code == 204
    assert world.lines() == [((("job", "api"),), NS, "hello", ())]


async def test_a_tenant_that_sends_too_fast_is_told_when_to_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_fast(_: object) -> None:
        raise HarchError("E0609", "more than 5 lines in a second", retry_after_s=3)

    monkeypatch.setattr(world.logs("default"), "append", too_fast)
    answer = await world.client.post(PUSH, json=ONE)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert answer.text.startswith("more than 5 lines in a second (E0609)")
    answer = await world.client.post("/v1/logs", json={"resourceLogs": [{"scopeLogs": [{"logRecords": [{}]}]}]})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


async def test_lines_that_are_refused_are_counted_in_plain_text_and_all_others_kept(world: World) -> None:
    body = json.loads(push_of("good", "refuse me"))
    body["streams"].append({"stream": {}, "values": [[str(NS), "nobody's"]]})
    answer = await world.client.post(PUSH, json=body)
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("2 lines: log stream or line not valid (E0681); the first: a stream needs at least")
    assert [line[2] for line in world.lines()] == ["good"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"not snappy at all", {"content-type": PROTOBUF}, 400),
        (b"{", {"content-type": JSON}, 400),
        (b"{}", {"content-type": JSON, "content-encoding": "br"}, 400),
        (gzip.compress(bytes(40 << 20)), {"content-type": JSON, "content-encoding": "gzip"}, 413),
        (bytes(cramjam.snappy.compress_raw(bytes(40 << 20))), {"content-type": PROTOBUF}, 413),
        (gzip.compress(b"{}")[:-4], {"content-type": JSON, "content-encoding": "gzip"}, 415),
    ],
)
async def test_what_cannot_be_read_or_unpacks_to_too_much_is_refused(
    world: World, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = await world.client.post(PUSH, content=body, headers=headers)
    assert (answer.status_code, world.lines()) == (status, [])


@pytest.mark.parametrize(
    ("path", "around"), [("/v1/traces", b"\x12\x0a"), ("/v1/logs", b"\x12\x0a"), ("/loki/api/v1/push", b"\x0a")]
)
@pytest.mark.parametrize("count", [600_000, 3_000_000])
async def test_empty_parts_without_number_are_refused_and_very_many_before_they_take_memory(
    world: World, path: str, around: bytes, count: int
) -> None:
    body = b"\x12\x00" * count
    for tag in around:
        body = bytes((tag,)) + _varint(len(body)) + body
    packed = bytes(cramjam.snappy.compress_raw(body)) if path == PUSH else body
    answer = await world.client.post(path, content=packed, headers={"content-type": PROTOBUF})
    assert answer.status_code == 413
    assert "E0606" in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/logs", {"resourceLogs": [{"scopeLogs": [{"logRecords": [{}] * 600_000}]}]}),
        ("/v1/logs", {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"attributes": [{}] * 10_001}]}]}]}),
        ("/v1/logs", {"resourceLogs": [{"resource": {"attributes": [{}] * 10_001}}]}),
        ("/v1/traces", {"resourceSpans": [{"resource": {"attributes": [{}] * 10_001}}]}),
        (
            "/v1/logs",
            {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"arrayValue": {"values": [{}] * 10_001}}}]}]}]},
        ),
        (
            PUSH,
            {
                "streams": [
                    {"stream": {"a": "b"}, "values": [[str(NS), "x", dict.fromkeys(map(str, range(1001)), "y")]]}
                ]
            },
        ),
    ],
)
async def test_what_nobody_means_is_refused_before_it_takes_time(world: World, path: str, body: object) -> None:
    answer = await world.client.post(path, json=body)
    assert answer.status_code == 413
    assert world.lines() == []


async def test_no_secret_reaches_the_store_by_any_way(world: World) -> None:
    key = "hsk_0123456789abcdef"
    await world.client.post(PUSH, content=push_of(f"key {key}"), headers={"content-type": JSON})
    record = {"body": {"stringValue": key}, "attributes": [{"key": "k", "value": {"stringValue": key}}]}
    await world.client.post("/v1/logs", json={"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    span = {"traceId": "ab" * 16, "spanId": "cd" * 8, "name": key, "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    await world.client.post("/v1/traces", json={"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    assert len(world.lines()) == 2
    assert key not in repr(world.lines())
    assert [span.name for span in world.spans("default").trace("ab" * 16)] == ["hsk_[redacted]"]
    assert world.redactor.hits["harch-key"] == 4


async def test_hits_of_rules_are_shown_and_kept_as_series(world: World) -> None:
    await world.client.post(
        PUSH, content=push_of("hsk_0123456789abcdef", "Bearer 0123456789"), headers={"content-type": JSON}
    )
    shown = (await world.client.get("/api/v1/status/redaction")).json()["data"]["rules"]
    assert {one["name"]: one["hits"] for one in shown if one["hits"]} == {"harch-key": 1, "bearer-token": 1}
    series = {dict(one.labels)["rule"]: one.values[0] for one in world.readings.series()}
    assert series["harch-key"] == 1.0
    assert series["password"] == 0.0


async def test_lines_of_harchos_itself_are_told_where_they_were_written() -> None:
    world = World(hub_id="dakhla")
    jobs = [{"job": "harchos-task", "workload": "w"}, {"job": "harchos-hub", "hub": "tangier"}, {"job": "mine"}]
    streams = [{"stream": one, "values": [[str(NS), "x"]]} for one in jobs]
    assert (await world.client.post(PUSH, json={"streams": streams})).status_code == 204
    assert {dict(line[0])["job"]: dict(line[0]).get("hub") for line in world.lines()} == {
        "harchos-task": "dakhla",
        "harchos-hub": "tangier",
        "mine": None,
    }
    await world.close()


async def test_otlp_tells_what_it_did_not_take_in_the_format_it_was_asked_in(world: World) -> None:
    good = {"timeUnixNano": str(NS), "body": {"stringValue": "ok"}}
    records = [good, {**good, "timeUnixNano": str(2**63)}, {**good, "body": {"stringValue": "refuse me"}}]
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}
    answer = await world.client.post("/otlp/v1/logs", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (200, JSON)
    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "2"
    assert len(world.lines()) == 1
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(name="without ids")
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}
    answer = await world.client.post("/v1/traces", content=gzip.compress(request.SerializeToString()), headers=headers)
    told = ExportTraceServiceResponse.FromString(answer.content)
    assert (answer.status_code, told.partial_success.rejected_spans) == (200, 1)
    assert "trace id" in told.partial_success.error_message
    answer = await world.client.post("/v1/logs", content=b"", headers={"content-type": PROTOBUF})
    assert answer.status_code == 200
    assert not ExportLogsServiceResponse.FromString(answer.content).HasField("partial_success")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
