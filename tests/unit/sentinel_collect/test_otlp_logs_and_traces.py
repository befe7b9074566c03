"""OpenTelemetry's logs and traces become streams as Loki names them, and spans; what cannot be taken is explained."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harch.base.errors import HarchError
from harch.sentinel.collect.otlp.logs_and_traces import ExportedSpans, exported_logs, exported_spans, level_of
from harch.sentinel.collect.otlp.messages import JSON, PROTOBUF, read_message
from harch.sentinel.collect.part_limits import counted
from harch.sentinel.collect.pushed import Pushed
from harch.sentinel.model.spans import Span, SpanEvent, SpanKind, SpanLink, SpanStatus

NS = 1_700_000_000_000_000_000
TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


def attributes(**pairs: object) -> list[dict[str, object]]:
    kinds = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue", list: "arrayValue"}
    return [{"key": name.replace("__", "."), "value": {kinds[type(value)]: value}} for name, value in pairs.items()]


def logs(*records: dict[str, object], resource: list[dict[str, object]] | None = None) -> Pushed:
    scope = {"scope": {"name": "lib", "version": "1"}, "logRecords": list(records)}
    body = {"resourceLogs": [{"resource": {"attributes": resource or []}, "scopeLogs": [scope]}]}
    return exported_logs(read_message(json.dumps(body).encode(), JSON, ExportLogsServiceRequest()), NS + 99)


def spans(*told: dict[str, object], resource: list[dict[str, object]] | None = None) -> ExportedSpans:
    scope = {"scope": {"name": "lib"}, "spans": list(told)}
    body = {"resourceSpans": [{"resource": {"attributes": resource or []}, "scopeSpans": [scope]}]}
    message = read_message(json.dumps(body).encode(), JSON, ExportTraceServiceRequest())
    binary = read_message(message.SerializeToString(), PROTOBUF, ExportTraceServiceRequest())
    assert exported_spans(binary) == exported_spans(message)
    return exported_spans(message)


def span(**fields: object) -> dict[str, object]:
    return {
        "traceId": TRACE,
        "spanId": SPAN,
        "name": "GET /things",
        "startTimeUnixNano": str(NS),
        "endTimeUnixNano": str(NS + 5),
        **fields,
    }


def test_streams_have_the_labels_that_loki_gives_them_and_lines_the_rest() -> None:
    pushed = logs(
        {
            "timeUnixNano": str(NS),
            "severityNumber": 17,
            "severityText": "ERROR",
            "body": {"stringValue": "it broke"},
            "attributes": attributes(http__status_code=500, ok=False),
            "traceId": TRACE,
            "spanId": SPAN,
        },
        resource=attributes(service__name="shop", k8s__pod__name="shop-1", host__name="h1"),
    )
    (batch,) = pushed.batches
    assert batch.labels == (("k8s_pod_name", "shop-1"), ("service_name", "shop"))
    assert (batch.times_ns, batch.bodies) == ([NS], ["it broke"])
    assert dict(batch.metadata[0]) == {
        "host_name": "h1",
        "http_status_code": "500",
        "level": "error",
        "ok": "false",
        "scope_name": "lib",
        "scope_version": "1",
        "severity_number": "17",
        "severity_text": "ERROR",
        "span_id": SPAN,
        "trace_id": TRACE,
    }


def test_bodies_of_any_kind_become_text_and_maps_of_attributes_are_taken_apart() -> None:
    inside = {"kvlistValue": {"values": attributes(a=1, b=True)}}
    listed = {"arrayValue": {"values": [{"stringValue": "x"}, {"doubleValue": 1.5}, inside]}}
    pushed = logs(
        {"timeUnixNano": str(NS), "body": inside, "attributes": [{"key": "http", "value": inside}]},
        {"observedTimeUnixNano": str(NS + 7), "body": listed},
        {"body": {"bytesValue": "AAE="}},
        {},
    )
    (batch,) = pushed.batches
    assert batch.bodies == ['{"a":1,"b":true}', '["x",1.5,{"a":1,"b":true}]', "0001", ""]
    assert batch.times_ns == [NS, NS + 7, NS + 99, NS + 99]  # its own time, when it was seen, and else now
    assert {"http_a": "1", "http_b": "true"}.items() <= dict(batch.metadata[0]).items()
    assert batch.labels == (("service_name", "unknown_service"),)


@pytest.mark.parametrize(
    ("number", "text", "level"),
    [(1, "", "trace"), (8, "", "debug"), (9, "", "info"), (14, "", "warn"), (17, "", "error"), (24, "", "critical"),
     (0, "Warning", "warn"), (9, "FATAL", "critical"), (0, "", ""), (25, "", ""), (9, "odd", "info")],
)  # fmt: skip
def test_levels_come_from_words_or_numbers(number: int, text: str, level: str) -> None:
    assert level_of(number, text) == level


def test_a_span_is_kept_with_all_that_it_says() -> None:
    exported = spans(
        span(
            parentSpanId=PARENT,
            kind=2,
            status={"code": 2, "message": "no room"},
            attributes=attributes(z=1, a="x", ratio=0.5, ok=True),
            events=[{"timeUnixNano": str(NS + 1), "name": "retry", "attributes": attributes(n=1)}],
            links=[{"traceId": TRACE, "spanId": PARENT, "attributes": attributes(why="cause")}],
        ),
        resource=attributes(service__name="shop", host__name="h1"),
    )
    assert exported.spans == [
        Span(
            trace_id=TRACE,
            span_id=SPAN,
            parent_id=PARENT,
            service="shop",
            name="GET /things",
            start_ns=NS,
            duration_ns=5,
            kind=SpanKind.SERVER,
            status=SpanStatus.ERROR,
            status_message="no room",
            attributes=(("a", "x"), ("ok", True), ("ratio", 0.5), ("z", 1)),
            resource=(("host.name", "h1"),),
            scope="lib",
            events=(SpanEvent(NS + 1, "retry", (("n", 1),)),),
            links=(SpanLink(TRACE, PARENT, (("why", "cause"),)),),
        )
    ]


def test_spans_without_ids_or_times_are_refused_alone() -> None:
    exported = spans(
        span(),
        span(traceId="ab"),
        span(traceId="00" * 16),
        span(spanId=""),
        span(parentSpanId="abcd"),
        span(startTimeUnixNano="0"),
        span(endTimeUnixNano=str(2**63)),
        span(spanId=PARENT, endTimeUnixNano="0", kind=99, status={"code": 77}),
    )
    assert (len(exported.spans), exported.refused) == (2, 6)
    assert "trace id of 16 bytes" in exported.reason
    assert (exported.spans[1].duration_ns, exported.spans[1].kind) == (0, SpanKind.INTERNAL)


def test_ids_that_are_not_hexadecimal_are_refused_with_the_whole_body() -> None:
    with pytest.raises(HarchError) as refusal:
        spans(span(traceId="not hexadecimal"))
    assert refusal.value.code == "E0671"


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=4), st.integers(0, 12))
def test_parts_are_counted_as_protobuf_counts_them(shape: list[list[int]], limit: int) -> None:
    request = ExportTraceServiceRequest()
    for scopes in shape:
        resource = request.resource_spans.add()
        resource.resource.attributes.add(key="a").value.string_value = "b"
        for count in scopes:
            scope = resource.scope_spans.add()
            scope.scope.name = "lib"
            for _ in range(count):
                scope.spans.add(name="x" * count, start_time_unix_nano=5).attributes.add(key="k")
    assert counted(request.SerializeToString(), (1, 2, 2), limit) == min(sum(map(sum, shape)), limit + 1)


@given(st.binary(max_size=200))
def test_no_bytes_are_too_odd_to_be_counted(message: bytes) -> None:
    assert 0 <= counted(message, (1, 2), 5) <= 6
