"""How do log lines and spans come in over HTTP?

Loki's push and OTLP; an answer means that they are on disk, without secrets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from harch.base.clock import Clock
from harch.base.errors import REGISTRY, HarchError
from harch.sentinel.collect.loki import read_json, read_protobuf, unpacked
from harch.sentinel.collect.pushed import Pushed
from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.collect.redaction.rules import RedactionRule
from harch.sentinel.collect.scrape.config import SentinelConfig
from harch.sentinel.http.access import check_span, check_stream
from harch.sentinel.http.ingest.bodies import ARCHIVED_BYTES_MAX, decompressed, in_turn, otlp_body
from harch.sentinel.http.messages import HttpReply, TelemetryRequest
from harch.sentinel.http.routing import Handler, HttpRoute, WorkClass
from harch.sentinel.http.self_metrics import RedactionMetrics
from harch.sentinel.http.tenants import LogTenants, SpanTenants
from harch.sentinel.log_shipper.attach import keep_sentinel_logs
from harch.sentinel.log_shipper.shipper import Shipper
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LinesWritten, LogBatch
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.model.spans import SpansWritten

JOB, HUB, OWN_JOBS = "job", "hub", "harchos-"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class LogWrites:
    """Lines from Promtail, Alloy, OpenTelemetry SDKs and HarchOS itself."""

    def __init__(self, tenants: LogTenants, redactor: Redactor, *, hub_id: str = "") -> None:
        """`hub_id`: whose SENTINEL this is, a label of lines of HarchOS itself: node agents do not know it."""
        self._tenants = tenants
        self._redactor = redactor
        self._hub_id = hub_id

    def routes(self) -> list[HttpRoute]:
        return [
            *(_write(path, self.push) for path in ("/loki/api/v1/push", "/api/prom/push")),
            *(_write(path, self.otlp_logs) for path in ("/v1/logs", "/otlp/v1/logs")),
        ]

    def push(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
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
        return HttpReply(204)

    def otlp_logs(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
            ExportLogsServiceRequest,
            ExportLogsServiceResponse,
        )

        from harch.sentinel.collect.otlp.logs_and_traces import exported_logs

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


def _write(path: str, handler: Handler) -> HttpRoute:
    return HttpRoute(("POST",), path, handler, WorkClass.WRITE, ARCHIVED_BYTES_MAX, is_form=False)


def _reasons(pushed: Pushed, written: LinesWritten) -> str:
    """Counts by code, the most frequent first, and the first sentence about a line."""
    counts = dict(written.refused)
    if pushed.refused:
        counts["E0681"] = counts.get("E0681", 0) + pushed.refused
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    reasons = "; ".join(f"{count} lines: {REGISTRY[code].title.lower()} ({code})" for code, count in ordered if count)
    first = pushed.reason or written.first_refusal
    return f"{reasons}; the first: {first}" if reasons and first else reasons


def _refusal(error: HarchError) -> HttpReply:
    headers = [("Retry-After", str(error.retry_after_s))] if error.retry_after_s else []
    hint = f"\nhint: {error.hint}" if error.hint else ""
    body = f"{error.message} ({error.code}){hint}\n"
    return HttpReply(error.kind.status, body.encode("utf-8", "replace"), _TEXT, headers)


# How do spans come in over HTTP? OTLP; an answer means that they are on disk, without secrets.


class TraceWrites:
    """Spans from OpenTelemetry SDKs and HarchOS itself."""

    def __init__(self, tenants: SpanTenants, redactor: Redactor) -> None:
        self._tenants = tenants
        self._redactor = redactor

    def routes(self) -> list[HttpRoute]:
        return [
            HttpRoute(("POST",), path, self.otlp_traces, WorkClass.WRITE, ARCHIVED_BYTES_MAX, is_form=False)
            for path in ("/v1/traces", "/otlp/v1/traces")
        ]

    def otlp_traces(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
            ExportTraceServiceResponse,
        )

        from harch.sentinel.collect.otlp.logs_and_traces import exported_spans

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
            response.partial_success.error_message = exported.reason or _span_reasons(written)
        return body.answered(response)


def _span_reasons(written: SpansWritten) -> str:
    ordered = sorted(written.refused.items(), key=lambda item: -item[1])
    reasons = "; ".join(f"{count} spans: {REGISTRY[code].title.lower()} ({code})" for code, count in ordered)
    return f"{reasons}; the first: {written.first_refusal}" if written.first_refusal else reasons


# What comes into SENTINEL beside samples? Logs and spans, without secrets; and what it says itself, beside a hub.


_log = logging.getLogger("harch.sentinel")


class ArchiveWriter(LogTenants, SpanTenants, Protocol):
    """Lines and spans of all tenants."""


class Incoming:
    """The writing side of logs and spans. `hub_id` is empty for a SENTINEL that runs alone."""

    def __init__(self, archive: ArchiveWriter, rules: Sequence[RedactionRule], hub_id: str, clock: Clock) -> None:
        self._hub_id, self._clock = hub_id, clock
        redactor = Redactor(rules)
        self._logs = LogWrites(archive, redactor, hub_id=hub_id)
        self._traces = TraceWrites(archive, redactor)
        self._redaction_metrics = RedactionMetrics(redactor, clock)
        self._shipper: Shipper | None = None

    def routes(self) -> list[HttpRoute]:
        return [*self._logs.routes(), *self._traces.routes(), *self._redaction_metrics.routes()]

    async def run(self, keep: Callable[[Sequence[SeriesBatch]], Awaitable[None]]) -> None:
        """Counts of redaction become series, until cancelled."""
        while True:
            try:
                await keep(self._redaction_metrics.series())
            except (HarchError, OSError) as problem:
                _log.warning("could not save redaction counts: %s", problem)
            await self._clock.sleep(RedactionMetrics.EVERY_S)

    def keep_own_lines(self, data: Path) -> None:
        """Beside a hub, what this process logs is kept as well."""
        if self._hub_id:
            self._shipper = keep_sentinel_logs(data, self._logs.keep_own, labels({HUB: self._hub_id}))

    async def close(self) -> None:
        if self._shipper is not None:
            await asyncio.to_thread(self._shipper.close)


def hub_of(configs: Sequence[tuple[SentinelConfig, Path]]) -> str:
    """The hub that the configuration of a hub's own SENTINEL names."""
    named = (config.global_.external_labels.get(HUB, "") for config, _ in configs)
    return next((hub for hub in named if hub), "")
