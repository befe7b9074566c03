"""How do spans come in over HTTP? OTLP; an answer means that they are on disk, without secrets."""

from __future__ import annotations

from collections.abc import Mapping

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.otlp import ARCHIVED_BYTES_MAX, in_turn, otlp_body
from harch.api.telemetry.ports import SpanTenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route, Work
from harch.api.telemetry.write_scope import check_span
from harch.base.errors import REGISTRY
from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.model.spans import SpansWritten


class TraceWrites:
    """Spans from OpenTelemetry SDKs and HarchOS itself."""

    def __init__(self, tenants: SpanTenants, redactor: Redactor) -> None:
        self._tenants = tenants
        self._redactor = redactor

    def routes(self) -> list[Route]:
        return [
            Route(("POST",), path, self.otlp_traces, Work.WRITE, ARCHIVED_BYTES_MAX, is_form=False)
            for path in ("/v1/traces", "/otlp/v1/traces")
        ]

    def otlp_traces(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
            ExportTraceServiceResponse,
        )

        from harch.sentinel.collect.otlp.traces import exported_spans

        body = otlp_body(request, ARCHIVED_BYTES_MAX)
        with in_turn(len(body.plain)):
            exported = exported_spans(body.read(ExportTraceServiceRequest(), "spans"))
            for span in exported.spans:
                check_span(request.caller, request.tenant, span)
            written = SpansWritten()
            if exported.spans:
                written = self._tenants.spans(request.tenant).append(self._redactor.spans(exported.spans))
        response = ExportTraceServiceResponse()
        if refused := exported.refused + sum(written.refused.values()):
            response.partial_success.rejected_spans = refused
            response.partial_success.error_message = exported.reason or _reasons(written)
        return body.answered(response)


def _reasons(written: SpansWritten) -> str:
    ordered = sorted(written.refused.items(), key=lambda item: -item[1])
    told = "; ".join(f"{count} spans: {REGISTRY[code].title.lower()} ({code})" for code, count in ordered)
    return f"{told}; the first: {written.first_refusal}" if written.first_refusal else told
