"""What was logged while a trace ran? The lines that carry its id, whatever wrote them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LEVEL, SPAN_ID, TRACE_ID, LogReadable, LogRequest, Order
from harch.sentinel.model.matchers import Matcher, MatchKind

LINES_MAX = 1000
MARGIN_NS = 60 * 10**9  # before the first and after the last span; clocks differ, and lines come late
SCANNED_BYTES_MAX = 4 << 30


@dataclass(frozen=True, slots=True)
class Line:
    time_ns: int
    text: str
    labels: Labels
    level: str
    trace_id: str
    span_id: str

    @property
    def json(self) -> dict[str, object]:
        return {
            "timeUnixNano": str(self.time_ns),
            "line": self.text,
            "level": self.level,
            "labels": dict(self.labels),
            "traceID": self.trace_id,
            "spanID": self.span_id,
        }


def lines_of_trace(
    store: LogReadable, trace_id: str, *, start_ns: int, end_ns: int, limit: int, stopped: Callable[[], bool]
) -> list[Line]:
    """The first lines of the trace, in order of time. Raises E0624 if there is too much to look at."""
    request = LogRequest(
        matchers=(),
        start_ns=max(0, start_ns - MARGIN_NS),
        end_ns=end_ns + MARGIN_NS,
        metadata=(Matcher(MatchKind.EQUAL, TRACE_ID, trace_id),),
        order=Order.OLDEST_FIRST,
        limit=min(limit, LINES_MAX),
        scanned_bytes_max=SCANNED_BYTES_MAX,
    )
    return scanned(store, request, stopped)


def scanned(store: LogReadable, request: LogRequest, stopped: Callable[[], bool]) -> list[Line]:
    """The answer to a request with a limit, line by line."""
    found: list[Line] = []
    for chunk in store.scan(request, stopped):
        for place, text in enumerate(chunk.texts):
            stream = chunk.streams[int(chunk.stream_at[place])]
            own = dict(chunk.metadata[place]) if chunk.metadata else {}
            level = own.get(LEVEL) or dict(stream).get(LEVEL, "")
            time_ns = int(chunk.times_ns[place])
            found.append(Line(time_ns, text, stream, level, own.get(TRACE_ID, ""), own.get(SPAN_ID, "")))
    return found
