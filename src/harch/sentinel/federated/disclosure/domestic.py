"""What does a part say inside of a jurisdiction? Values, lines and traces as they are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.federated.disclosure.encode import encode_series, refused
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.federated.messages import ANSWER_BYTES_MAX, LogPart, MetricPart, PartResult, TracePart
from harch.sentinel.logql.evaluate.context import LogQueryOptions
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.lines import LineWindow, LogEntry
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.logs import LineOrder, LogReadable
from harch.sentinel.model.selection import Queryable
from harch.sentinel.model.spans import SpanReadable
from harch.sentinel.promql.evaluate.context import QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import MatrixResult
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.search import LIMIT_MAX, counted_query, fields_of, search


def domestic_metrics(
    part: MetricPart, store: Queryable, policy: TelemetryPolicy, engine: QueryEngine, options: QueryOptions
) -> PartResult:
    """The series of a part, single ones too. An error of the query is a refusal with its words."""
    settled = QueryOptions(part.lookback_ms, options.timeout_s, options.is_cancelled)
    try:
        result = engine.range(part.expression, part.start_ms, part.end_ms, part.step_ms or 1, store, settled)
    except HarchError as error:
        return refused(part.expression, error.code, error.message, error.hint or "")
    value = result.value
    if not isinstance(value, MatrixResult):
        return refused(part.expression, "type", "a part must be a vector or a number", "query an instant vector")
    if int(value.present.sum()) > policy.points_max:
        points = f"{int(value.present.sum())} points, {policy.points_max} allowed"
        return refused(part.expression, "size", points, "aggregate, widen the step or shorten the range")
    return PartResult(series=encode_series(value), warnings=(*result.warnings, *result.infos))


# What do logs say inside of a jurisdiction? Lines as they are, and numbers of whatever query.


MS = 1_000_000


def domestic_logs(
    part: LogPart,
    logs: LogReadable,
    policy: TelemetryPolicy,
    engine: LogqlEngine,
    *,
    now_s: float,
    options: QueryOptions,
) -> PartResult:
    """Lines in `body`, or series. An error of the query is a refusal with its words."""
    chosen = LogQueryOptions(options.timeout_s, options.is_cancelled)
    now_ns = int(now_s * 1e9)
    try:
        query = engine.tree(part.expression)
        if isinstance(query, LogQuery):
            order = LineOrder.NEWEST_FIRST if part.newest_first else LineOrder.OLDEST_FIRST
            window = LineWindow(part.start_ns, part.end_ns, order, max(part.limit, 1))
            found = engine.lines(query, window, logs, now_ns, chosen).value
            return _encode_lines(part, found if isinstance(found, list) else [])
        start_ms, end_ms = part.start_ns // MS, part.end_ns // MS
        answer = engine.range(query, start_ms, end_ms, part.step_ns // MS or 1, logs, now_ns, chosen)
    except HarchError as error:
        return refused(part.expression, error.code, error.message, error.hint)
    value = answer.value
    if not isinstance(value, MatrixResult):
        return refused(part.expression, "type", "a part must be a vector or a number", "query lines or numbers")
    if int(value.present.sum()) > policy.points_max:
        points = f"{int(value.present.sum())} points, {policy.points_max} allowed"
        return refused(part.expression, "size", points, "aggregate, widen the step or shorten the range")
    return PartResult(series=encode_series(value), warnings=answer.warnings)


def _encode_lines(part: LogPart, entries: list[LogEntry]) -> PartResult:
    body = msgspec.json.encode(entries)
    if len(body) > ANSWER_BYTES_MAX:
        detail = f"the lines take {len(body)} bytes, {ANSWER_BYTES_MAX} allowed"
        return refused(part.expression, "size", detail, "query fewer lines")
    return PartResult(body=body)


# What do spans say inside of a jurisdiction? Traces as they are, and statistics of any of them.


def domestic_spans(part: TracePart, spans: SpanReadable) -> PartResult:
    """A body of summaries, spans or groups, by the kind of the part."""
    notes: tuple[str, ...] = ()
    found: Sequence[object]
    try:
        query = parse_query(part.query)
        if part.kind == "trace":
            found = spans.trace(query.trace_id)
        elif part.kind == "search":
            limit = min(max(part.limit, 1), LIMIT_MAX)
            result = search(spans, query, start_ns=part.start_ns, end_ns=part.end_ns, limit=limit)
            found, notes = result.traces, result.notes
        else:
            counted = counted_query(query, start_ns=part.start_ns, end_ns=part.end_ns)
            found = spans.statistics(counted, fields_of(part.by))
    except HarchError as error:
        return refused(part.query, error.code, error.message, error.hint)
    body = msgspec.json.encode(found)
    if len(body) > ANSWER_BYTES_MAX:
        return refused(part.query, "size", f"{len(body)} bytes, {ANSWER_BYTES_MAX} allowed", "query fewer traces")
    return PartResult(body=body, warnings=notes)
