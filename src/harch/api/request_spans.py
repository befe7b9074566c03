"""Which requests begin a trace? Submissions of work, and whatever comes from a caller that traces.

A caller says so with `traceparent`. Other requests, such as those of dashboards that ask every second, are not traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from starlette.types import Scope

from harch.base.tracing.context import TRACEPARENT, TraceContext, read_header
from harch.base.tracing.tracer import Tracing, inside

_HEADER = TRACEPARENT.encode()
_NOTHING = contextlib.nullcontext(INVALID_SPAN)


class RequestSpans:
    """Of one hub. Without `tracing` it costs nothing."""

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing

    def of(self, scope: Scope, *, begins: bool, now_s: float) -> contextlib.AbstractContextManager[Span]:
        """A span that is current while the request is served. `begins`: also without a caller that traces.

        Under load there mostly is no room for another trace, so this is asked before anything else.
        """
        tracing = self._tracing
        if tracing is None or not tracing.budget.has_room(now_s):
            return _NOTHING
        parent = _parent(scope["headers"])
        if not begins and (parent is None or (not parent.sampled and scope["method"] == "GET")):
            return _NOTHING
        context = tracing.begin(parent)
        if context is None:
            return _NOTHING
        method, route = scope["method"], route_of(scope["path"])
        return tracing.tracer.start_as_current_span(
            f"{method} {route}",
            context=inside(context),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )


def route_of(path: str) -> str:
    """What kind of thing a path is about; what follows may be a name that people chose."""
    words = [word for word in path.split("/") if word]
    kind = words[1:2] if words[:1] == ["v1"] else words[:1]
    return "/".join(["/v1", *kind])


def trace_id_of(span: Span) -> str:
    """In hexadecimal; empty for a request that is not traced."""
    known = span.get_span_context()
    return f"{known.trace_id:032x}" if known.trace_id else ""


def _parent(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    for name, value in headers:
        if name == _HEADER:
            return read_header(value.decode("latin-1"))
    return None
