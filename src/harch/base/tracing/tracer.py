"""How do the rooms of HarchOS report what takes how long?

Through an OpenTelemetry tracer, one per process: all traces while they are few, beyond a rate those for which there
is room; lines of the log name their trace.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry import context as api_context
from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from harch.base.clock import Clock, epoch_ns
from harch.base.errors import HarchError
from harch.base.tracing.spans import (
    ATTRIBUTES_MAX,
    EVENTS_MAX,
    TEXT_MAX,
    Attributes,
    FinishedSpan,
    RecordedEvent,
    TraceContext,
    Value,
    is_in_share,
)

# Which traces are kept? All of them while they are few; beyond a rate, those for which there is room.
#
# The limit bounds what tracing costs: a hub that takes thousands of jobs in a second traces some of them, and nobody
# pays for the others.


SWITCH, SHARE, BATCHES = "HARCH_TRACING", "HARCH_TRACE_SAMPLE", "HARCH_TRACE_SAMPLE_BATCHES"
SENTINEL_SWITCH = "HARCH_SENTINEL"
BATCH_SHARE = 0.01
TRACES_PER_S = 10.0
BURST = 100.0


class TraceBudget:
    """New traces per second, with room for a burst. `now_s` is monotonic."""

    def __init__(self, share: float = 1.0, *, per_s: float = TRACES_PER_S, burst: float = BURST) -> None:
        self.share, self._per_s, self._burst = share, per_s, burst
        self._left = burst
        self._at_s = 0.0

    def has_room(self, now_s: float) -> bool:
        """The usual answer under load is no, and costs next to nothing."""
        if self._left >= 1.0:
            return True
        return (now_s - self._at_s) * self._per_s + self._left >= 1.0

    def takes(self, trace_id: bytes, now_s: float) -> bool:
        self._left = min(self._burst, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1.0 or not is_in_share(trace_id, self.share):
            return False
        self._left -= 1.0
        return True


def is_on() -> bool:
    """Not without SENTINEL, which would keep the spans. Raises E0201 for a word that is neither on nor off."""
    word = os.environ.get(SWITCH, "on").lower()
    if word not in ("on", "off"):
        raise HarchError("E0201", f"{SWITCH} is `{word[:40]}`", hint="write on or off")
    return word == "on" and os.environ.get(SENTINEL_SWITCH, "").lower() != "off"


def share_from_env(name: str = SHARE, default: float = 1.0) -> float:
    """Raises E0201 for what is no number from 0 to 1."""
    text = os.environ.get(name, "")
    try:
        share = float(text) if text else default
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise HarchError("E0201", f"{name} is `{text[:40]}`", hint="write a share from 0 to 1, e.g. 0.1")
    return share


def batch_share() -> float:
    """The share of pipelines' windows that are followed; 0 while tracing is off."""
    return share_from_env(BATCHES, BATCH_SHARE) if is_on() else 0.0


# How do the rooms of HarchOS tell what takes how long? Through an OpenTelemetry tracer; each process has one.
#
# The spans are our own, a few slots each: those of the SDK cost twice as much CPU, and some megabytes of every agent.


Sink = Callable[[FinishedSpan], None]
_NOTHING = contextlib.nullcontext()
_KINDS = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3, SpanKind.PRODUCER: 4, SpanKind.CONSUMER: 5}


class Tracing:
    """The tracing of one process. Whoever has none (`None`) traces nothing and pays nothing."""

    def __init__(self, sink: Sink, clock: Clock, budget: TraceBudget | None = None) -> None:
        self.emit, self.clock = sink, clock
        self.budget = budget or TraceBudget()
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
        self._events: list[RecordedEvent] = []
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
            self._events.append(RecordedEvent(at_ns, name, {k: _plain(v) for k, v in (attributes or {}).items()}))

    def update_name(self, name: str) -> None:
        self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        code = status.status_code if isinstance(status, Status) else status
        if code is StatusCode.OK:
            self._error = ""
        elif code is StatusCode.ERROR and not self._error:
            # The API's words for an exception hold its text, which may quote what people wrote: its kind is kept.
            message = status.description if isinstance(status, Status) else description
            self._error = (message or "error").partition(":")[0][:TEXT_MAX]

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


# Which trace does a line of the log belong to? The one that the task or thread was in, or that the line itself names.
#
# `LOG.info("…", extra=ids_of(context))` names one where nothing is current, e.g. when work moves on by itself.


PLAIN_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TraceFilter(logging.Filter):
    """Sets `trace_id` and `span_id` on every record that passes: in hexadecimal, empty outside of a trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "trace_id"):
            known = trace.get_current_span().get_span_context()
            record.trace_id = f"{known.trace_id:032x}" if known.trace_id else ""
            record.span_id = f"{known.span_id:016x}" if known.span_id else ""
        return True


class TraceFormatter(logging.Formatter):
    """The usual line, with `[trace …]` behind it where there is one."""

    def __init__(self, form: str = PLAIN_FORMAT) -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        trace_id = getattr(record, "trace_id", "")
        return f"{line} [trace {trace_id}]" if trace_id else line


def show_traces(handler: logging.Handler, form: str = PLAIN_FORMAT) -> None:
    """Lines of this handler carry trace ids from here on."""
    handler.addFilter(TraceFilter())
    handler.setFormatter(TraceFormatter(form))


def ids_of(context: TraceContext) -> dict[str, str]:
    return {"trace_id": context.trace_id.hex(), "span_id": context.span_id.hex()}
