"""How is the page around an alert gathered? Asked of the stores in turn, within a time; what fails is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harch.base.errors import HarchError
from harch.sentinel.alert_context.log_groups import LineGroup, grouped, select_groups
from harch.sentinel.alert_context.queries import (
    AlertWindow,
    ExpressionCurve,
    Identity,
    MetricQueries,
    belongs,
    identity_of,
    log_selectors,
    metric_queries,
)
from harch.sentinel.alert_context.related_traces import TraceReasons, related_traces
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.model.logs import LEVEL, LineOrder, LogReadable, LogRequest
from harch.sentinel.model.selection import Queryable
from harch.sentinel.model.spans import SpanReadable
from harch.sentinel.promql.evaluate.context import QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import MatrixResult
from harch.sentinel.rules.templates.values import show_float
from harch.sentinel.traces.search import TraceLine, scanned

SERIES_MAX = 10  # of one curve
LOG_SELECTORS_MAX = 6
LOG_GROUPS_MAX = 20
LINES_BEFORE, LINES_AFTER, LINES_SEVERE = 2_000, 5_000, 1_000  # that are read for one selector
SCANNED_BYTES_MAX = 1 << 30
EXEMPLARS_MAX = 20
GATHER_S_MAX = 30.0
QUERY_S_MAX = 10.0
_MS_NS = 1_000_000
_TRACE_LABELS = ("trace_id", "traceID", "traceId")

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class ContextSources:
    """Where to ask. Without logs or spans the page lacks them, and says so."""

    engine: QueryEngine
    series: Queryable
    logs: LogReadable | None
    spans: SpanReadable | None
    elapsed_s: Callable[[], float]


@dataclass(slots=True)
class _Page:
    """The page while it grows. `missing` says in sentences what could not be gathered, and why."""

    deadline_s: float
    missing: list[str] = field(default_factory=list)

    def miss(self, what: str) -> None:
        if what not in self.missing:
            self.missing.append(what)


def gathered(alert: Alert, expression: str, window: AlertWindow, sources: ContextSources) -> Json:
    """Metrics, log lines and traces around the alert. Never raises HarchError: a part that fails is listed as
    missing."""
    page = _Page(sources.elapsed_s() + GATHER_S_MAX)
    queries = metric_queries(expression)
    for note in queries.notes:
        page.miss(note)
    own = dict(alert.labels)
    identity = identity_of(own)
    curves = [view for curve in queries.curves if (view := _curve(curve, own, window, sources, page)) is not None]
    groups, logs = _logs(identity, window, sources, page)
    reasons = TraceReasons(_exemplars(queries, own, window, sources, page), _logged(groups))
    return {
        "identity": {what: sorted(values) for what, values in identity.items()},
        "metrics": curves,
        "logs": logs,
        "traces": _traces(identity, reasons, window, sources, page),
        "missing": page.missing,
    }


def _in_time(sources: ContextSources, page: _Page, what: str) -> bool:
    if sources.elapsed_s() < page.deadline_s:
        return True
    page.miss(f"{what} omitted: the page took longer than {GATHER_S_MAX:.0f} s")
    return False


# Metrics


def _curve(
    curve: ExpressionCurve, own: Mapping[str, str], window: AlertWindow, sources: ContextSources, page: _Page
) -> Json | None:
    if not _in_time(sources, page, "some metrics"):
        return None
    options = QueryOptions(timeout_s=QUERY_S_MAX)
    try:
        value = sources.engine.range(
            curve.expression, window.start_ms, window.end_ms, window.step_ms, sources.series, options
        ).value
    except HarchError as problem:
        page.miss(f"`{curve.expression}`: {problem.message}")
        return None
    if not isinstance(value, MatrixResult):
        return None
    places = [place for place in range(value.series.count) if belongs(value.series.labels_of(place), own)]
    view: Json = {
        "title": curve.title,
        "query": curve.expression,
        "series": [_series(value, place) for place in places[:SERIES_MAX]],
        "seriesNotShown": max(0, len(places) - SERIES_MAX),
    }
    if curve.threshold is not None:
        view["threshold"] = {"comparison": curve.comparison, "value": show_float(curve.threshold, "g")}
    return view


def _series(value: MatrixResult, place: int) -> Json:
    present = value.present[place]
    points = zip(value.times[present], value.values[place][present], strict=True)
    return {
        "metric": dict(value.series.labels_of(place)),
        "values": [[int(time) / 1000, show_float(float(number), "g")] for time, number in points],
    }


def _exemplars(
    queries: MetricQueries, own: Mapping[str, str], window: AlertWindow, sources: ContextSources, page: _Page
) -> dict[str, None]:
    """Ids of traces that stand behind the series of the alert."""
    found: dict[str, None] = {}
    for matchers in queries.selectors:
        try:
            series = sources.series.exemplars(matchers, window.start_ms, window.end_ms)
        except HarchError as problem:
            page.miss(f"exemplars: {problem.message}")
            continue
        for one in series:
            if belongs(one.series, own):
                labels = [dict(exemplar.labels) for exemplar in one.exemplars]
                found |= dict.fromkeys(each[name] for each in labels for name in _TRACE_LABELS if each.get(name))
    return dict(list(found.items())[-EXEMPLARS_MAX:])


# Logs


def _logs(
    identity: Identity, window: AlertWindow, sources: ContextSources, page: _Page
) -> tuple[list[LineGroup], Json]:
    empty: Json = {"selectors": [], "lines": 0, "groups": []}
    if sources.logs is None:
        page.miss("no logs are stored here")
        return [], empty
    if not _in_time(sources, page, "log lines"):
        return [], empty
    try:
        streams = sources.logs.streams((), window.start_ms * _MS_NS, window.end_ms * _MS_NS)
    except HarchError as problem:
        page.miss(f"log lines: {problem.message}")
        return [], empty
    selectors = log_selectors(identity, streams, LOG_SELECTORS_MAX)
    if not selectors:
        page.miss("no log stream in this period shares a label with the alert")
    lines = [line for matchers in selectors for line in _lines(matchers, window, sources, page)]
    chosen = select_groups(grouped(lines, began_ns=window.began_ms * _MS_NS), LOG_GROUPS_MAX)
    written = ["{" + ", ".join(str(one) for one in matchers) + "}" for matchers in selectors]
    return chosen, {"selectors": written, "lines": len(lines), "groups": [group.json for group in chosen]}


def _lines(matchers: tuple[Matcher, ...], window: AlertWindow, sources: ContextSources, page: _Page) -> list[TraceLine]:
    """Lines before and after the trouble began, and all that are warnings or worse, each within a limit."""
    start_ns, began_ns, end_ns = window.start_ms * _MS_NS, window.began_ms * _MS_NS, window.end_ms * _MS_NS
    severe = (Matcher(MatchKind.REGEX, LEVEL, "(?i)warn|warning|err|error|crit|critical|fatal|panic"),)
    wanted = (
        ("before", start_ns, began_ns, (), LineOrder.NEWEST_FIRST, LINES_BEFORE),
        ("after", began_ns, end_ns, (), LineOrder.OLDEST_FIRST, LINES_AFTER),
        ("warnings", start_ns, end_ns, severe, LineOrder.OLDEST_FIRST, LINES_SEVERE),
    )
    found: list[TraceLine] = []
    for what, begin, end, metadata, order, limit in wanted:
        if begin >= end or not _in_time(sources, page, "some log lines"):
            continue
        request = LogRequest(
            matchers, begin, end, metadata=metadata, order=order, limit=limit, scanned_bytes_max=SCANNED_BYTES_MAX
        )
        try:
            lines = (
                scanned(sources.logs, request, lambda: sources.elapsed_s() > page.deadline_s) if sources.logs else []
            )
        except HarchError as problem:
            page.miss(f"log lines ({what}): {problem.message}")
            continue
        if len(lines) >= limit and what != "before":
            page.miss(f"only {limit} log lines ({what}) of {{{', '.join(map(str, matchers))}}} were read")
        found += lines
    return found


def _logged(groups: list[LineGroup]) -> dict[str, None]:
    return dict.fromkeys(trace_id for group in groups for trace_id in group.trace_ids)


# Traces


def _traces(
    identity: Identity, reasons: TraceReasons, window: AlertWindow, sources: ContextSources, page: _Page
) -> Json:
    if sources.spans is None:
        page.miss("no traces are stored here")
        return {"query": "", "traces": []}
    if not _in_time(sources, page, "traces"):
        return {"query": "", "traces": []}
    try:
        found = related_traces(
            sources.spans, identity, reasons, start_ns=window.start_ms * _MS_NS, end_ns=window.end_ms * _MS_NS
        )
    except HarchError as problem:
        page.miss(f"traces: {problem.message}")
        return {"query": "", "traces": []}
    for note in found.notes:
        page.miss(note)
    return {"query": found.query, "traces": [one.json for one in found.traces]}
