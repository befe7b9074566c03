"""Spans for tests, written in few words: times in milliseconds."""

from __future__ import annotations

from harch.sentinel.model.spans import AttributeValue, Span, SpanKind, SpanStatus

TRACE = "0af7651916cd43dd8448eb211c80319c"
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def span(
    name: str,
    start_ms: float,
    duration_ms: float,
    parent: str = "",
    *,
    service: str = "hub",
    hub: str = "",
    trace: str = TRACE,
    error: bool = False,
    kind: SpanKind = SpanKind.INTERNAL,
    **attributes: AttributeValue,
) -> Span:
    """A span whose id follows from its name, so that `parent` can be told by name."""
    return Span(
        trace_id=trace,
        span_id=id_of(name),
        parent_id=id_of(parent) if parent else "",
        service=service,
        name=name,
        start_ns=START_NS + round(start_ms * MS),
        duration_ns=round(duration_ms * MS),
        kind=kind,
        status=SpanStatus.ERROR if error else SpanStatus.UNSET,
        attributes=tuple(sorted(attributes.items())),
        resource=(("hub", hub),) if hub else (),
    )


def id_of(name: str) -> str:
    return name.encode().hex().zfill(16)[-16:]
