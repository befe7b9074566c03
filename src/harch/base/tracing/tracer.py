"""How do the rooms of HarchOS tell what takes how long? Through an OpenTelemetry tracer; each process has one.

The spans are our own, a few slots each: those of the SDK cost twice as much CPU, and some megabytes of every agent.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry import context as api_context
from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from harch.base.clock import Clock, epoch_ns
from harch.base.errors import HarchError
from harch.base.tracing.context import TraceContext
from harch.base.tracing.sampling import Budget
from harch.base.tracing.span import ATTRIBUTES_MAX, EVENTS_MAX, TEXT_MAX, Attributes, FinishedSpan, SpanEvent, Value

Sink = Callable[[FinishedSpan], None]
_NOTHING = contextlib.nullcontext()
_KINDS = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3, SpanKind.PRODUCER: 4, SpanKind.CONSUMER: 5}


class Tracing:
    """The tracing of one process. Whoever has none (`None`) traces nothing and pays nothing."""

    def __init__(self, sink: Sink, clock: Clock, budget: Budget | None = None) -> None:
        self.emit, self.clock = sink, clock
        self.budget = budget or Budget()
        self.tracer: trace.Tracer = _Tracer(self)
        self.counts: Counter[str] = Counter()  # what became of spans, by outcome
        self.live = 0  # spans that are open: while there is none, nobody need look for one

    def now_ns(self) -> int:
        return epoch_ns(self.clock.now())

    def begin(self, parent: TraceContext | None) -> TraceContext | None:
        """Where a new trace may begin: in that of the caller, or anew. None if there is no room for another one.

        A caller that does not keep its own span leaves it to us whether we keep ours, which is then the first.
        """
        trace_id = parent.trace_id if parent is not None else secrets.token_bytes(16)
        if not self.budget.takes(trace_id, self.clock.monotonic_s()):
            return None
        return TraceContext(trace_id, parent.span_id if parent is not None and parent.sampled else b"")


def current() -> TraceContext | None:
    """Of the span that this task or thread is in; None outside of every trace, and in one that is not kept."""
    found = trace.get_current_span().get_span_context()
    if not found.trace_flags & TraceFlags.SAMPLED or not found.trace_id:
        return None
    return TraceContext(found.trace_id.to_bytes(16, "big"), found.span_id.to_bytes(8, "big"))


def inside(parent: TraceContext) -> api_context.Context:
    """The OpenTelemetry context of what happens in that span, of this process or another one."""
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    known = SpanContext(
        int.from_bytes(parent.trace_id, "big"), int.from_bytes(parent.span_id, "big"), is_remote=True, trace_flags=flags
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(known))


class _Tracer(trace.Tracer):
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def start_span(
        self,
        name: str,
        context: api_context.Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        """Outside of a trace that is kept nothing is recorded: traces begin where `Tracing.begin` says so."""
        outer = trace.get_current_span(context).get_span_context()
        if not outer.trace_id or not outer.trace_flags & TraceFlags.SAMPLED:
            return trace.NonRecordingSpan(outer)
        begin_ns = start_time if start_time is not None else self._tracing.now_ns()
        return _Span(self._tracing, outer, name, _KINDS[kind], begin_ns, dict(attributes or {}))

    @contextlib.contextmanager
    def start_as_current_span(  # type: ignore[override]  # the API's own decorator is not public
        self,
        name: str,
        context: api_context.Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[trace.Span]:
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with trace.use_span(span, end_on_exit, record_exception, set_status_on_exception):
            yield span


class _Span(trace.Span):
    __slots__ = ("_attributes", "_begin_ns", "_context", "_error", "_events", "_kind", "_name", "_parent", "_tracing")

    def __init__(
        self, tracing: Tracing, outer: SpanContext, name: str, kind: int, begin_ns: int, attributes: Attributes
    ) -> None:
        self._tracing: Tracing | None = tracing
        tracing.live += 1
        self._parent, self._name, self._kind, self._begin_ns = outer.span_id, name, kind, begin_ns
        self._attributes = attributes
        self._events: list[SpanEvent] = []
        self._error: str | None = None
        span_id = int.from_bytes(secrets.token_bytes(8), "big") or 1
        self._context = SpanContext(outer.trace_id, span_id, is_remote=False, trace_flags=outer.trace_flags)

    def get_span_context(self) -> SpanContext:
        return self._context

    def is_recording(self) -> bool:
        return self._tracing is not None

    def set_attribute(self, key: str, value: Any) -> None:
        if len(self._attributes) < ATTRIBUTES_MAX or key in self._attributes:
            self._attributes[key] = _plain(value)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        if self._tracing is not None and len(self._events) < EVENTS_MAX:
            at_ns = timestamp if timestamp is not None else self._tracing.now_ns()
            self._events.append(SpanEvent(at_ns, name, {k: _plain(v) for k, v in (attributes or {}).items()}))

    def update_name(self, name: str) -> None:
        self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        code = status.status_code if isinstance(status, Status) else status
        if code is StatusCode.OK:
            self._error = ""
        elif code is StatusCode.ERROR and not self._error:
            # The API's words for an exception hold its text, which may quote what people wrote: its kind is kept.
            said = status.description if isinstance(status, Status) else description
            self._error = (said or "error").partition(":")[0][:TEXT_MAX]

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        code = exception.code if isinstance(exception, HarchError) else ""
        self._error = code or type(exception).__name__
        self.add_event("exception", {"exception.type": type(exception).__name__, "error.code": code}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        tracing, self._tracing = self._tracing, None
        if tracing is None:
            return
        tracing.live -= 1
        known = self._context
        tracing.emit(
            FinishedSpan(
                trace_id=known.trace_id.to_bytes(16, "big"),
                span_id=known.span_id.to_bytes(8, "big"),
                parent_id=self._parent.to_bytes(8, "big") if self._parent else b"",
                name=self._name,
                start_ns=self._begin_ns,
                end_ns=end_time if end_time is not None else max(self._begin_ns, tracing.now_ns()),
                kind=self._kind,
                error=self._error,
                attributes=self._attributes,
                events=tuple(self._events),
            )
        )


def _plain(value: Any) -> Value:
    if isinstance(value, str):
        return value[:TEXT_MAX]
    return value if isinstance(value, bool | int | float) else str(value)[:TEXT_MAX]


def current_trace(tracing: Tracing | None) -> str:
    """The `traceparent` of what this task does now; empty without tracing and outside of every trace that is kept."""
    found = current() if tracing is not None and tracing.live else None
    return found.header if found is not None else ""


def span_in(
    tracing: Tracing | None, name: str, trace_: str, attributes: Attributes | None = None
) -> contextlib.AbstractContextManager[object]:
    """A span of the trace that this task is in. Where `trace_` is empty it costs nothing and is none."""
    if tracing is None or not trace_:
        return _NOTHING
    return tracing.tracer.start_as_current_span(name, attributes=attributes)
