"""How is a trace drawn in a terminal? A line for each span: its place in the tree, and a bar where its time was.

In a bar `█` is time that the whole trace waited for this span itself, and `━` is other time of the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harch.sdk.sentinel_traces import PathSegment, SpanShown, TraceShown

CRITICAL, OTHER, MARK = "█", "━", "!"
LEVELS_DRAWN = 12  # deeper spans stand at this level
BAR_WIDTH_MIN = 10
LABEL_SHARE = 0.45


@dataclass(frozen=True, slots=True)
class Bar:
    """A span's line. `branch` draws the tree; `bar` begins with the blanks before it."""

    branch: str
    service: str
    name: str
    bar: str
    duration_ns: int
    is_error: bool
    remarks: Sequence[str]


def bars_of(trace: TraceShown, width: int) -> list[Bar]:
    """The spans of the trace as lines; `width` is that of the bars."""
    total_ns = max(1, trace.duration_ns)
    paths: dict[str, list[PathSegment]] = {}
    for segment in trace.critical_path:
        if not segment.waiting:
            paths.setdefault(segment.span_id, []).append(segment)
    branches = branches_of([span.depth for span in trace.spans])
    return [
        Bar(
            branch,
            span.service,
            span.name,
            _bar(span, paths.get(span.span_id, ()), total_ns, width),
            span.duration_ns,
            span.status == "error",
            _remarks(span),
        )
        for span, branch in zip(trace.spans, branches, strict=True)
    ]


def _bar(span: SpanShown, path: Sequence[PathSegment], total_ns: int, width: int) -> str:
    """At least one character, also for what took no time."""

    def cells(start_ns: int, duration_ns: int) -> range:
        first = min(width - 1, start_ns * width // total_ns)
        last = min(width - 1, max(first, -(-(start_ns + duration_ns) * width // total_ns) - 1))
        return range(first, last + 1)

    drawn = [" "] * width
    for at in cells(span.start_ns, span.duration_ns):
        drawn[at] = OTHER
    for segment in path:
        for at in cells(segment.start_ns, segment.duration_ns):
            drawn[at] = CRITICAL
    return "".join(drawn).rstrip()


def _remarks(span: SpanShown) -> list[str]:
    found = [*span.odd]
    if span.children_not_shown:
        found.append(f"{span.children_not_shown} below not shown")
    if span.status_message:
        found.append(span.status_message)
    return found


def branches_of(depths: Sequence[int]) -> list[str]:
    """What stands before each name: `├ `, `└ ` and the lines of the levels above."""
    found: list[str] = []
    goes_on: list[bool] = []  # per level, whether a later span of that level follows below the same parent
    for depth in reversed([min(depth, LEVELS_DRAWN) for depth in depths]):
        is_last = len(goes_on) <= depth or not goes_on[depth]
        above = "".join("│ " if level < len(goes_on) and goes_on[level] else "  " for level in range(1, depth))
        found.append(above + ("└ " if is_last else "├ ") if depth else "")
        goes_on = [*goes_on[: depth + 1], *[False] * (depth + 1 - len(goes_on))]
        goes_on[depth] = True
    return found[::-1]
