"""How does a trace look in a terminal?

A heading, a line with a bar for each span, what the duration hangs on, and its log lines.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from harch.cli.output import clean
from harch.sdk.sentinel import PathSegment, SpanView, TraceLogLine, TraceView
from harch.sentinel.traces.durations import short_duration

# How is a trace drawn in a terminal? A line for each span: its place in the tree, and a bar where its time was.
#
# In a bar `█` is time that the whole trace waited for this span itself, and `━` is other time of the span.


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


def bars_of(trace: TraceView, width: int) -> list[Bar]:
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


def _bar(span: SpanView, path: Sequence[PathSegment], total_ns: int, width: int) -> str:
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


def _remarks(span: SpanView) -> list[str]:
    found = [*span.odd]
    if span.children_omitted:
        found.append(f"{span.children_omitted} below not shown")
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


# How does a trace look in a terminal? A heading, the waterfall, what the duration hangs on, and its log lines.


PATH_LINES = 5
SHARE_MIN = 0.005  # of the duration; what is less says nothing
_DURATION_WIDTH = 10
_SERVICE_COLOURS = ("cyan", "green", "magenta", "blue", "yellow")
LEVEL_COLOURS = {"error": "red", "critical": "red", "warn": "yellow", "debug": "bright_black", "trace": "bright_black"}


def draw_trace(trace: TraceView) -> None:
    width = max(60, min(shutil.get_terminal_size().columns, 200))
    console = Console(highlight=False, width=width, soft_wrap=True)
    for line in trace_text(trace, width):
        console.print(line)


def trace_text(trace: TraceView, width: int) -> list[Text]:
    """All that is drawn of a trace, line by line."""
    notes = [Text(clean(f"note: {note}"), "yellow") for note in (*trace.notes, *trace.warnings)]
    logs = [Text(), *lines_text(trace.logs)] if trace.logs else []
    return [_heading(trace), Text(), *waterfall_text(trace, width), *path_text(trace), *notes, *logs]


def _heading(trace: TraceView) -> Text:
    text = Text()
    text.append(clean(f"{trace.root_service_name} {trace.root_trace_name}"), "bold")
    text.append(f"  {moment_text(int(trace.start_time_unix_nano))}  {short_duration(trace.duration_ns)}")
    text.append(f"\ntrace {trace.trace_id}, {trace.span_count} spans, ")
    text.append(f"{trace.error_count} with errors", "red" if trace.error_count else "")
    return text


def waterfall_text(trace: TraceView, width: int) -> list[Text]:
    """The lines of the waterfall, in at most `width` cells."""
    services = sorted({span.service for span in trace.spans})
    colours = {name: _SERVICE_COLOURS[at % len(_SERVICE_COLOURS)] for at, name in enumerate(services)}
    service_width = min(16, max((cell_len(clean(name)) for name in services), default=0))
    sizing = bars_of(trace, BAR_WIDTH_MIN)
    longest = max((cell_len(bar.branch + clean(bar.name)) for bar in sizing), default=0)
    label_width = min(longest, max(12, int(width * LABEL_SHARE) - service_width))
    bar_width = max(BAR_WIDTH_MIN, width - service_width - label_width - _DURATION_WIDTH - 5)
    lines = []
    for bar in bars_of(trace, bar_width):
        text = Text(no_wrap=True)
        text.append(set_cell_size(clean(bar.service), service_width) + " ", colours[bar.service])
        text.append(bar.branch, "dim")
        label = set_cell_size(clean(bar.name), max(1, label_width - cell_len(bar.branch)))
        text.append(label, "red" if bar.is_error else "")
        text.append(f" {MARK} " if bar.is_error else "   ", "red bold")
        text.append(f"{bar.bar:<{bar_width}}", "red" if bar.is_error else colours[bar.service])
        text.append(f"{short_duration(bar.duration_ns):>{_DURATION_WIDTH}}")
        for remark in bar.remarks:
            text.append(f"  {clean(remark)}", "yellow")
        lines.append(text)
    return lines


def path_text(trace: TraceView) -> list[Text]:
    """Which spans the trace waited for longest."""
    waited_ns = sum(segment.duration_ns for segment in trace.critical_path if segment.waiting)
    slowest = sorted(trace.spans, key=lambda span: -span.critical_ns)[:PATH_LINES]
    parts = [(f"{span.service} {span.name}", span.critical_ns) for span in slowest if span.critical_ns]
    parts.append(("waiting for what came next", waited_ns))
    total_ns = max(1, trace.duration_ns)
    lines = [
        Text(f"  {duration_ns / total_ns:>4.0%}  {short_duration(duration_ns):>{_DURATION_WIDTH}}  {clean(name)}")
        for name, duration_ns in parts
        if duration_ns / total_ns >= SHARE_MIN
    ]
    return [Text(), Text("critical path"), *lines] if lines else []


def lines_text(lines: Sequence[TraceLogLine]) -> list[Text]:
    found = []
    for line in lines:
        text = Text()
        text.append(f"{moment_text(int(line.time_unix_nano))} ", "dim")
        text.append(f"{line.level or '-':<8} ", LEVEL_COLOURS.get(line.level, ""))
        text.append(clean(line.line))
        found.append(text)
    return found


def moment_text(time_ns: int) -> str:
    """A time in UTC with milliseconds."""
    moment = datetime.fromtimestamp(time_ns / 1e9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
