"""What does an export of OpenTelemetry logs say? Streams named as Loki names them, and records that were not taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harch.sentinel.collect.loki.pushed import TIME_NS_MAX, Pushed, plain_name
from harch.sentinel.collect.otlp.any_values import flat_texts
from harch.sentinel.collect.otlp.attributes import text_of
from harch.sentinel.collect.parts import check_count
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.logs import LEVEL, LEVELS, SPAN_ID, TRACE_ID

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

# These of a resource's attributes name its stream, as in Loki; all others are metadata of its lines.
STREAM_ATTRIBUTES = frozenset(
    {
        "cloud.availability_zone", "cloud.region", "container.name", "deployment.environment",
        "deployment.environment.name", "k8s.cluster.name", "k8s.container.name", "k8s.cronjob.name",
        "k8s.daemonset.name", "k8s.deployment.name", "k8s.job.name", "k8s.namespace.name", "k8s.pod.name",
        "k8s.replicaset.name", "k8s.statefulset.name", "service.instance.id", "service.name", "service.namespace",
    }
)  # fmt: skip
RECORDS_MAX = 200_000
SERVICE_NAME, UNKNOWN_SERVICE = "service_name", "unknown_service"
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_NO_TRACE, _NO_SPAN = bytes(_TRACE_BYTES), bytes(_SPAN_BYTES)
_LEVEL_WORDS = {
    "trace": "trace", "trc": "trace", "debug": "debug", "dbg": "debug", "info": "info", "inf": "info",
    "information": "info", "notice": "info", "warn": "warn", "warning": "warn", "wrn": "warn", "error": "error",
    "err": "error", "eror": "error", "fatal": "critical", "critical": "critical", "crit": "critical",
    "alert": "critical", "emerg": "critical", "emergency": "critical", "panic": "critical",
}  # fmt: skip


def exported_logs(request: ExportLogsServiceRequest, now_ns: int) -> Pushed:
    """All records that can be taken; one without any time is of now. Raises E0606."""
    scopes = (scope for resource in request.resource_logs for scope in resource.scope_logs)
    check_count(sum(len(scope.log_records) for scope in scopes), RECORDS_MAX, "records in one request")
    pushed = Pushed()
    for resource in request.resource_logs:
        stream, shared = _origin(resource.resource.attributes)
        times_ns: list[int] = []
        texts: list[str] = []
        metadata: list[Labels] = []
        for scope in resource.scope_logs:
            around = {**shared, **_scope(scope.scope)}
            for record in scope.log_records:
                time_ns = record.time_unix_nano or record.observed_time_unix_nano or now_ns
                if time_ns > TIME_NS_MAX:
                    pushed.refuse(1, f"{time_ns} is no time in nanoseconds between 1970 and 2262")
                    continue
                times_ns.append(time_ns)
                texts.append(record.body.string_value or text_of(record.body))
                metadata.append(_metadata(record, around))
        pushed.add(stream, times_ns, texts, metadata)
    return pushed


def level_of(number: int, text: str) -> str:
    """One of `LEVELS`, from what the record calls it or its number (1 to 24, four for each level); else empty."""
    if word := _LEVEL_WORDS.get(text.lower()):
        return word
    return LEVELS[(number - 1) // 4] if 1 <= number <= 24 else ""


def _origin(attributes: Sequence[KeyValue]) -> tuple[Labels, dict[str, str]]:
    """The stream of a resource, and what else is known about it."""
    found = dict(flat_texts(attributes))
    named = {plain_name(key): value for key, value in found.items() if key in STREAM_ATTRIBUTES}
    named[SERVICE_NAME] = named.get(SERVICE_NAME) or UNKNOWN_SERVICE
    others = {plain_name(key): value for key, value in found.items() if key and key not in STREAM_ATTRIBUTES}
    return labels(named), others


def _scope(scope: InstrumentationScope) -> dict[str, str]:
    told = {plain_name(key): value for key, value in flat_texts(scope.attributes) if key}
    told |= {"scope_name": scope.name, "scope_version": scope.version}
    return told


def _metadata(record: LogRecord, around: Mapping[str, str]) -> Labels:
    told = dict(around)
    for key, value in flat_texts(record.attributes):
        if key:
            told[plain_name(key)] = value
    number, word = record.severity_number, record.severity_text
    if number:
        told["severity_number"] = str(number)
    if word:
        told["severity_text"] = word
    if level := level_of(number, word):
        told[LEVEL] = level
    trace_id, span_id = record.trace_id, record.span_id
    if len(trace_id) == _TRACE_BYTES and trace_id != _NO_TRACE:
        told[TRACE_ID] = trace_id.hex()
    if len(span_id) == _SPAN_BYTES and span_id != _NO_SPAN:
        told[SPAN_ID] = span_id.hex()
    if event_name := record.event_name:
        told["event_name"] = event_name
    observed_ns = record.observed_time_unix_nano
    if observed_ns and observed_ns != record.time_unix_nano:
        told["observed_timestamp"] = str(observed_ns)
    return labels(told)
