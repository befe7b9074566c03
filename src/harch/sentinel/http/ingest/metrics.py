"""How does telemetry come in over HTTP? Remote-write 1 and 2, OTLP; an answer means that it is on disk."""

from __future__ import annotations

from collections.abc import Mapping

from harch.base.errors import REGISTRY, HarchError
from harch.sentinel.http.access import series_judge
from harch.sentinel.http.ingest.bodies import otlp_body
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, failure
from harch.sentinel.http.routing import WRITE_BYTES_MAX, Handler, HttpRoute, WorkClass
from harch.sentinel.http.tenants import Tenants
from harch.sentinel.model.selection import Written
from harch.sentinel.store.write_request import Receipt, authorize_batches

_V2 = "io.prometheus.write.v2.Request"
_PROTOBUF = "application/x-protobuf"
_HINT = "send fewer samples at once, or drop labels that change with every sample"


class MetricWrites:
    """Samples from Prometheus agents, OpenTelemetry SDKs and HarchOS itself."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def routes(self) -> list[HttpRoute]:
        otlp = ("/api/v1/otlp/v1/metrics", "/v1/metrics")
        return [
            _write("/api/v1/write", self.remote_write),
            *(_write(path, self.otlp_metrics) for path in otlp),
        ]

    def remote_write(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        encoding = request.headers.get("content-encoding", "snappy")
        if encoding != "snappy":
            raise HarchError("E0677", f"remote-write bodies must be compressed with snappy, not `{encoding[:40]}`")
        kind = request.headers.get("content-type", _PROTOBUF)
        if not kind.startswith(_PROTOBUF):
            raise HarchError("E0677", f"remote-write bodies must be `{_PROTOBUF}`, not `{kind[:80]}`")
        store = self._tenants.store(request.tenant)
        is_v2 = _V2 in kind
        judge = series_judge(request.caller, request.tenant)
        written = store.write_v2(request.body, judge) if is_v2 else store.write_v1(request.body, judge)
        headers = [
            ("X-Prometheus-Remote-Write-Samples-Written", str(written.samples)),
            ("X-Prometheus-Remote-Write-Histograms-Written", str(written.histograms)),
            ("X-Prometheus-Remote-Write-Exemplars-Written", str(written.exemplars)),
        ]
        return _answer(written, headers if is_v2 else [])

    def otlp_metrics(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
            ExportMetricsServiceResponse,
        )

        from harch.sentinel.collect.otlp.metrics import exported_metrics

        body = otlp_body(request)
        exported = exported_metrics(body.read(ExportMetricsServiceRequest()))
        store = self._tenants.store(request.tenant)
        judge = series_judge(request.caller, request.tenant)
        batches, forbidden, why = authorize_batches(exported.batches, judge)
        written = store.append(batches)
        store.describe(exported.metadata)
        refused = sum(written.refused.values()) + forbidden
        reason = exported.reason or why or _reasons(written)
        response = ExportMetricsServiceResponse()
        if exported.rejected or refused:
            response.partial_success.rejected_data_points = exported.rejected + refused
            response.partial_success.error_message = reason
        return body.answered(response)


def _write(path: str, handler: Handler) -> HttpRoute:
    return HttpRoute(
        ("POST",),
        path,
        handler,
        WorkClass.WRITE,
        WRITE_BYTES_MAX,
        is_form=False,
    )


def _answer(written: Written, headers: list[tuple[str, str]]) -> HttpReply:
    """400 says to a sender that some samples will never be taken: it must not send them again."""
    if not written.refused:
        return HttpReply(204, headers=headers)
    error = HarchError("E0678", _reasons(written), hint=_HINT)
    refusal = failure(error)
    return HttpReply(refusal.status, refusal.body, refusal.content_type, [*refusal.headers, *headers])


def _reasons(written: Written) -> str:
    """Codes with their titles, the most frequent first, and the first sample that was refused."""
    ordered = sorted(written.refused.items(), key=lambda item: -item[1])
    counted = "; ".join(f"{count} samples: {REGISTRY[code].title.lower()} ({code})" for code, count in ordered)
    first = written.first_refusal.message if isinstance(written, Receipt) and written.first_refusal else ""
    return f"{counted}; the first: {first}" if first else counted
