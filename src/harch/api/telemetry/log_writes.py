"""How do log lines come in over HTTP? Loki's push and OTLP; an answer means that they are on disk, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.compression import decompressed
from harch.api.telemetry.otlp import ARCHIVED_BYTES_MAX, in_turn, otlp_body
from harch.api.telemetry.ports import LogTenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Handler, Route, Work
from harch.api.telemetry.write_scope import check_stream
from harch.base.errors import REGISTRY, HarchError
from harch.sentinel.collect.loki.push_json import read_json
from harch.sentinel.collect.loki.push_protobuf import read_protobuf, unpacked
from harch.sentinel.collect.loki.pushed import Pushed
from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LinesWritten, LogBatch

JOB, HUB, OWN_JOBS = "job", "hub", "harchos-"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class LogWrites:
    """Lines from Promtail, Alloy, OpenTelemetry SDKs and HarchOS itself."""

    def __init__(self, tenants: LogTenants, redactor: Redactor, *, hub_id: str = "") -> None:
        """`hub_id`: whose SENTINEL this is, told of lines of HarchOS itself: node agents do not know it."""
        self._tenants = tenants
        self._redactor = redactor
        self._hub_id = hub_id

    def routes(self) -> list[Route]:
        return [
            *(_write(path, self.push) for path in ("/loki/api/v1/push", "/api/prom/push")),
            *(_write(path, self.otlp_logs) for path in ("/v1/logs", "/otlp/v1/logs")),
        ]

    def push(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        """204, or a refusal as plain text, which is what Loki's clients log. Lines that can be kept are kept anyway."""
        try:
            kind, plain = _plain_push(request)
            with in_turn(len(plain)):
                pushed = read_json(plain) if kind == _JSON else read_protobuf(plain)
                _check(request, pushed)
                refused = _reasons(pushed, self._kept(pushed, request.tenant))
            if refused:
                raise HarchError("E0682", refused)
        except HarchError as error:
            return _refusal(error)
        return Answer(204)

    def otlp_logs(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
            ExportLogsServiceRequest,
            ExportLogsServiceResponse,
        )

        from harch.sentinel.collect.otlp.logs import exported_logs

        body = otlp_body(request, ARCHIVED_BYTES_MAX)
        with in_turn(len(body.plain)):
            exported = exported_logs(body.read(ExportLogsServiceRequest(), "records"), request.now_ms * 1_000_000)
            _check(request, exported)
            written = self._kept(exported, request.tenant)
        response = ExportLogsServiceResponse()
        if refused := exported.refused + sum(written.refused.values()):
            response.partial_success.rejected_log_records = refused
            response.partial_success.error_message = _reasons(exported, written)
        return body.answered(response)

    def keep_own(self, body: bytes, tenant: str) -> None:
        """A push of SENTINEL's own lines. Raises HarchError."""
        self._kept(read_protobuf(unpacked(body, ARCHIVED_BYTES_MAX)), tenant)

    def _kept(self, pushed: Pushed, tenant: str) -> LinesWritten:
        if not pushed.batches:
            return LinesWritten()
        named = [_at_hub(batch, self._hub_id) for batch in pushed.batches] if self._hub_id else pushed.batches
        return self._tenants.logs(tenant).append(self._redactor.batches(named))


def _check(request: TelemetryRequest, pushed: Pushed) -> None:
    """Raises E0103: nothing of a push is kept if some of it is not the caller's to send."""
    for batch in pushed.batches:
        check_stream(request.caller, request.tenant, batch.labels)


def _at_hub(batch: LogBatch, hub_id: str) -> LogBatch:
    named = dict(batch.labels)
    if HUB in named or not named.get(JOB, "").startswith(OWN_JOBS):
        return batch
    return replace(batch, labels=labels({**named, HUB: hub_id}))


def _plain_push(request: TelemetryRequest) -> tuple[str, bytes]:
    """Kind and content, as Loki reads them: JSON where the content type says so, else protobuf in snappy."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in {"", "identity", "snappy", "gzip", "deflate", "zstd"}:
        raise HarchError("E0680", f"Content-Encoding `{encoding[:40]}` is not supported")
    is_packed_otherwise = encoding not in {"", "identity", "snappy"}
    body = decompressed(request.body, encoding, ARCHIVED_BYTES_MAX) if is_packed_otherwise else request.body
    if kind != _JSON or encoding == "snappy":
        body = unpacked(body, ARCHIVED_BYTES_MAX)
    return kind, body


def _write(path: str, handler: Handler) -> Route:
    return Route(("POST",), path, handler, Work.WRITE, ARCHIVED_BYTES_MAX, is_form=False)


def _reasons(pushed: Pushed, written: LinesWritten) -> str:
    """Counts by code, the most frequent first, and the first sentence about a line."""
    counts = dict(written.refused)
    if pushed.refused:
        counts["E0681"] = counts.get("E0681", 0) + pushed.refused
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    told = "; ".join(f"{count} lines: {REGISTRY[code].title.lower()} ({code})" for code, count in ordered if count)
    first = pushed.reason or written.first_refusal
    return f"{told}; the first: {first}" if told and first else told


def _refusal(error: HarchError) -> Answer:
    headers = [("Retry-After", str(error.retry_after_s))] if error.retry_after_s else []
    hint = f"\nhint: {error.hint}" if error.hint else ""
    body = f"{error.message} ({error.code}){hint}\n"
    return Answer(error.kind.status, body.encode("utf-8", "replace"), _TEXT, headers)
