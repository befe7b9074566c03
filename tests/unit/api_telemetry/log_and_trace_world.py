"""A SENTINEL that keeps logs and spans in memory, asked through its real application."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import httpx

from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.collect.redaction.rules import read_rules, with_shipped
from harch.sentinel.http.access import OpenAuthenticator
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.ingest.logs_and_traces import LogWrites, TraceWrites
from harch.sentinel.http.routing import Routes
from harch.sentinel.http.self_metrics import RedactionMetrics
from harch.sentinel.model.labels import Labels, Matcher, MatchKind
from harch.sentinel.model.logs import LineOrder, LinesWritten, LogBatch, LogRequest, LogStore
from harch.sentinel.model.spans import SpanStore
from harch.testing.clock import SimClock
from harch.testing.telemetry_stores import MemoryLogs, MemorySpans

EVERYTHING = (Matcher(MatchKind.REGEX, "no_such_label", ".*"),)


class PickyLogs(MemoryLogs):
    """Refuses lines that say so, as a store with limits would."""

    def append(self, batches: Sequence[LogBatch]) -> LinesWritten:
        refused = sum(text == "refuse me" for batch in batches for text in batch.bodies)
        kept = [_without(batch, "refuse me") for batch in batches]
        written = super().append(kept)
        return LinesWritten(
            written.lines, {"E0681": refused} if refused else {}, "a line is too old" if refused else ""
        )


class World:
    """Tenants begin with their first write."""

    def __init__(self, *, hub_id: str = "") -> None:
        self._logs: dict[str, MemoryLogs] = defaultdict(PickyLogs)
        self._spans: dict[str, MemorySpans] = defaultdict(MemorySpans)
        self.redactor = Redactor(read_rules(with_shipped(())))
        self.readings = RedactionMetrics(self.redactor, SimClock())
        logs, traces = LogWrites(self, self.redactor, hub_id=hub_id), TraceWrites(self, self.redactor)
        routes = [*logs.routes(), *traces.routes(), *self.readings.routes()]
        self.app = TelemetryApp(Routes(routes), OpenAuthenticator(), SimClock())
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://sentinel")

    def logs(self, tenant: str) -> LogStore:
        return self._logs[tenant]

    def spans(self, tenant: str) -> SpanStore:
        return self._spans[tenant]

    def lines(self, tenant: str = "default") -> list[tuple[Labels, int, str, Labels]]:
        request = LogRequest(EVERYTHING, 0, 2**63 - 1, order=LineOrder.OLDEST_FIRST)
        return [
            (chunk.streams[chunk.stream_at[at]], int(chunk.times_ns[at]), chunk.bodies[at], chunk.metadata[at])
            if chunk.metadata
            else (chunk.streams[chunk.stream_at[at]], int(chunk.times_ns[at]), chunk.bodies[at], ())
            for chunk in self._logs[tenant].scan(request, lambda: False)
            for at in range(len(chunk))
        ]

    async def close(self) -> None:
        await self.client.aclose()
        self.app.close()


def _without(batch: LogBatch, unwanted: str) -> LogBatch:
    good = [place for place, text in enumerate(batch.bodies) if text != unwanted]
    metadata = [batch.metadata[place] for place in good] if batch.metadata else ()
    return LogBatch(batch.labels, [batch.times_ns[at] for at in good], [batch.bodies[at] for at in good], metadata)
