"""What does SENTINEL tell about traces? Traces in short, one trace as a tree, and spans counted by groups."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

Attributes = dict[str, Any]


def _told(name: str) -> str:
    """`parent_span_id` is `parentSpanID` in the answers."""
    first, *rest = name.split("_")
    return first + "".join({"id": "ID", "ids": "IDs"}.get(word, word.capitalize()) for word in rest)


class TraceFound(Struct, frozen=True, rename=_told):
    """A trace that a search found. The root is that of the whole trace, as far as it is stored."""

    trace_id: str
    root_service_name: str
    root_trace_name: str
    start_time_unix_nano: str
    duration_ns: int
    span_count: int
    error_count: int
    matched_span_ids: list[str] = []


class TracesFound(Struct, frozen=True):
    traces: list[TraceFound]
    warnings: list[str] = []


class SpanShown(Struct, frozen=True, rename=_told):
    """A span in the tree, with its depth; `start_ns` counts from the start of the trace.

    `critical_ns` is how long the whole trace waited for this span itself.
    """

    span_id: str
    parent_span_id: str
    depth: int
    service: str
    name: str
    kind: str
    status: str
    start_ns: int
    duration_ns: int
    self_ns: int
    critical_ns: int
    attributes: Attributes = field(default_factory=dict)
    resource: Attributes = field(default_factory=dict)
    status_message: str = ""
    events: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    odd: list[str] = []
    skew_ns: int = 0
    children_not_shown: int = 0


class PathSegment(Struct, frozen=True, rename=_told):
    """A piece of the critical path. `waiting`: the span had ended, and what it led to had not begun."""

    span_id: str
    service: str
    name: str
    start_ns: int
    duration_ns: int
    waiting: bool


class LogLine(Struct, frozen=True, rename=_told):
    time_unix_nano: str
    line: str
    level: str
    labels: dict[str, str]
    trace_id: str = ""
    span_id: str = ""


class TraceShown(Struct, frozen=True, rename=_told):
    """One trace: spans in the order of a walk through its tree, and what the duration hangs on."""

    trace_id: str
    root_service_name: str
    root_trace_name: str
    start_time_unix_nano: str
    duration_ns: int
    span_count: int
    error_count: int
    spans: list[SpanShown]
    critical_path: list[PathSegment]
    services: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    notes: list[str] = []
    logs: list[LogLine] = []
    warnings: list[str] = []


class SpanStatistics(Struct, frozen=True):
    """Groups as dictionaries: the fields of `by`, `count`, `errors`, `meanNs`, and estimated `p50Ns` and others."""

    by: list[str]
    groups: list[dict[str, Any]]
    quantiles: str = ""
    warnings: list[str] = []
