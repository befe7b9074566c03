"""OpenTelemetry metrics become the series that Prometheus' users know; what cannot be taken is explained."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from harch.base.errors import HarchError
from harch.sentinel.collect.names import label_name, metric_name
from harch.sentinel.collect.otlp.messages import JSON, PROTOBUF, read_message
from harch.sentinel.collect.otlp.metrics import Exported, exported_metrics
from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import METRIC_NAME

NS = 1_700_000_000_000_000_000


def export(*metrics: dict[str, object], resource: dict[str, str] | None = None) -> Exported:
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in (resource or {}).items()]
    body = {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": list(metrics)}]}]}
    return exported_metrics(read_message(json.dumps(body).encode(), JSON, ExportMetricsServiceRequest()))


def point(**fields: object) -> dict[str, object]:
    return {"timeUnixNano": str(NS), "startTimeUnixNano": str(NS - 10**9), **fields}


def values(exported: Exported) -> dict[str, object]:
    """Name and distinguishing labels -> value."""
    told = {}
    for batch in exported.batches:
        pairs = dict(batch.labels)
        name = pairs.pop(METRIC_NAME)
        told[name + "".join(f" {key}={value}" for key, value in sorted(pairs.items()))] = batch.values[0]
    return told


def test_counters_and_gauges_carry_unit_and_kind_in_their_names() -> None:
    attributes = [{"key": "http.method", "value": {"stringValue": "GET"}}]
    exported = export(
        {
            "name": "http.requests",
            "sum": {
                "isMonotonic": True,
                "aggregationTemporality": 2,
                "dataPoints": [point(asInt="7", attributes=attributes)],
            },
        },
        {"name": "room.temperature", "unit": "Cel", "gauge": {"dataPoints": [point(asDouble=21.5)]}},
        {"name": "fill", "unit": "1", "gauge": {"dataPoints": [point(asDouble=0.5)]}},
        resource={"service.name": "shop", "service.namespace": "web", "service.instance.id": "a1", "host.name": "h"},
    )
    origin = "instance=a1 job=web/shop"
    assert values(exported) == {
        f"http_requests_total http_method=GET {origin}": 7.0,
        f"room_temperature_celsius {origin}": 21.5,
        f"fill_ratio {origin}": 0.5,
        f"target_info host_name=h {origin}": 1.0,
    }
    counter = exported.batches[0]
    assert counter.timestamps == (NS // 10**6,)
    assert counter.starts == (NS // 10**6 - 1000,)
    assert not exported.rejected


def test_a_histogram_becomes_cumulative_buckets_with_its_exemplar() -> None:
    exemplar = {"asDouble": 0.3, "timeUnixNano": str(NS), "traceId": "0af7651916cd43dd8448eb211c80319c"}
    exported = export(
        {
            "name": "latency",
            "unit": "s",
            "histogram": {
                "aggregationTemporality": 2,
                "dataPoints": [
                    point(
                        count="6",
                        sum=3.5,
                        explicitBounds=[0.1, 0.5],
                        bucketCounts=["1", "2", "3"],
                        exemplars=[exemplar],
                    )
                ],
            },
        }
    )
    assert values(exported) == {
        "latency_seconds_sum": 3.5,
        "latency_seconds_count": 6.0,
        "latency_seconds_bucket le=0.1": 1.0,
        "latency_seconds_bucket le=0.5": 3.0,
        "latency_seconds_bucket le=+Inf": 6.0,
    }
    with_exemplar = [dict(batch.labels)["le"] for batch in exported.batches if batch.exemplars]
    assert with_exemplar == ["0.5"]


def test_an_exponential_histogram_becomes_a_native_one_at_a_scale_we_have() -> None:
    fine = point(
        count="6", sum=10.0, scale=9, zeroCount="1", positive={"offset": 0, "bucketCounts": ["1", "1", "0", "3"]}
    )
    exported = export(
        {"name": "size", "exponentialHistogram": {"aggregationTemporality": 2, "dataPoints": [fine]}},
    )
    (histogram,) = exported.batches[0].values
    assert isinstance(histogram, NativeHistogram)
    assert histogram.schema == 8
    assert histogram.positive_counts == (2.0, 3.0)  # pairs of the finer buckets, merged
    assert [(span.offset, span.length) for span in histogram.positive_spans] == [(1, 2)]
    assert (histogram.count, histogram.zero_count, histogram.sum) == (6.0, 1.0, 10.0)


def test_deltas_are_rejected_with_the_reason_and_take_nothing_with_them() -> None:
    exported = export(
        {"name": "steps", "sum": {"isMonotonic": True, "aggregationTemporality": 1, "dataPoints": [point(asInt="1")]}},
        {"name": "fine", "gauge": {"dataPoints": [point(asInt="1")]}},
    )
    assert exported.rejected == 1
    assert "cumulative" in exported.reason
    assert values(exported) == {"fine": 1.0}


def test_names_and_labels_are_made_plain() -> None:
    assert metric_name("system.cpu.time", "s", is_counter=True, is_gauge=False) == "system_cpu_time_seconds_total"
    assert metric_name("speed", "km/h", is_counter=False, is_gauge=True) == "speed_km_per_hour"
    assert metric_name("2xx", "{request}", is_counter=False, is_gauge=True) == "_2xx"
    assert label_name("http.status-code") == "http_status_code"
    assert label_name("5xx") == "key_5xx"


@given(st.binary(max_size=200), st.sampled_from([JSON, PROTOBUF]))
def test_any_body_is_read_or_refused(body: bytes, content_type: str) -> None:
    refusals = []
    try:
        exported_metrics(read_message(body, content_type, ExportMetricsServiceRequest()))
    except HarchError as refusal:
        refusals.append(refusal.code)
    assert refusals in ([], ["E0671"])


def test_a_trace_id_that_is_no_hexadecimal_is_refused() -> None:
    with pytest.raises(HarchError, match="not a hexadecimal id"):
        read_message(b'{"resourceMetrics":[],"traceId":"zz"}', JSON, ExportMetricsServiceRequest())
