"""What do workers tell of windows that are followed? Spans for the hub's SENTINEL, and traces behind its latencies.

Workers run code of users and are not believed: what is no span of a stage, too large or too much is dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar

from harch.base.metrics import buckets_of
from harch.base.tracing.spans import ATTRIBUTES_MAX, EVENTS_MAX, TEXT_MAX, FinishedSpan, Value
from harch.base.tracing.tracer import TraceBudget, Tracing

if TYPE_CHECKING:
    from harch.pipelines.workers.telemetry import WorkerStatus

MESSAGE_BYTES_MAX = 256 << 10
SPANS_PER_S, SPANS_BURST = 200.0, 1000.0
SERIES_MAX = 1000
WINDOW = ".window"  # how spans end whose time is a stage's latency; an action may take longer than its window
_STAGES = {"harchos-sense": "sense", "harchos-think": "think", "harchos-act": "act"}


class WindowTraces:
    """`hear` takes a message as it came; as a collector it shows latencies with the newest trace in each bucket."""

    def __init__(
        self, tracing: Tracing | None, statuses: Callable[[], Mapping[str, tuple[WorkerStatus, ...]]] = dict
    ) -> None:
        self._tracing, self._statuses = tracing, statuses
        self._budget = TraceBudget(per_s=SPANS_PER_S, burst=SPANS_BURST)
        self._traces: dict[tuple[str, str], dict[float, Exemplar]] = {}
        self.refused = 0

    def follow(self, statuses: Callable[[], Mapping[str, tuple[WorkerStatus, ...]]]) -> None:
        """The workers whose latencies are shown; they are started with this as the one to tell."""
        self._statuses = statuses

    def hear(self, payload: bytes) -> None:
        tracing = self._tracing
        if tracing is None:
            return
        try:
            spans = _decode(payload) if len(payload) <= MESSAGE_BYTES_MAX else []
        except msgspec.MsgspecError:
            spans = []
        self.refused += not spans
        for span in spans:
            if _is_sound(span) and self._budget.takes(b"", tracing.clock.monotonic_s()):
                tracing.emit(span)
                if span.name.endswith(WINDOW):
                    self._remember(span)
            else:
                self.refused += 1

    def collect(self) -> Iterable[Metric]:
        from harch.pipelines.think.counters import LATENCY_BOUNDS_MS

        bounds_s = [bound / 1000 for bound in LATENCY_BOUNDS_MS]
        found = HistogramMetricFamily(
            "harch_pipeline_latency_seconds",
            "Time that a stage takes for a window or message, as measured by its running workers.",
            labels=("pipeline", "stage"),
        )
        for labels, counts in self._latencies().items():
            traces = {bisect_left(bounds_s, s): one for s, one in self._traces.get(labels, {}).items()}
            found.add_metric(labels, buckets_of(bounds_s, counts, traces), None)
        yield found

    def _latencies(self) -> dict[tuple[str, str], list[int]]:
        """By pipeline and stage: how many answers by latency, as running workers count since they started."""
        found: dict[tuple[str, str], list[int]] = {}
        for pipeline, statuses in self._statuses().items():
            for status in statuses:
                if status.latency_counts:
                    sums = found.setdefault((pipeline, status.stage), [0] * len(status.latency_counts))
                    for place, count in enumerate(status.latency_counts[: len(sums)]):
                        sums[place] += count
        return found

    def _remember(self, span: FinishedSpan) -> None:
        """The newest few of each stage; which bucket they belong to is known when somebody asks."""
        key = (str(span.attributes.get("pipeline", "")), _STAGES[span.service])
        if key not in self._traces and len(self._traces) >= SERIES_MAX:
            return
        kept = self._traces.setdefault(key, {})
        took_s = (span.end_ns - span.start_ns) / 1e9
        kept.pop(took_s, None)
        kept[took_s] = Exemplar({"trace_id": span.trace_id.hex()}, took_s, span.end_ns / 1e9)
        if len(kept) > EVENTS_MAX:
            del kept[next(iter(kept))]


_decode = msgspec.msgpack.Decoder(list[FinishedSpan]).decode


def _is_sound(span: FinishedSpan) -> bool:
    values: list[Value] = [span.name, span.error or "", *span.attributes, *span.attributes.values()]
    return (
        span.service in _STAGES
        and len(span.trace_id) == 16
        and len(span.span_id) == 8
        and len(span.parent_id) in (0, 8)
        and 0 < span.start_ns <= span.end_ns < 1 << 63
        and len(span.attributes) <= ATTRIBUTES_MAX
        and not span.events
        and all(not isinstance(text, str) or len(text) <= TEXT_MAX for text in values)
    )
