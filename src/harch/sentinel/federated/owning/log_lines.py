"""What do logs say inside of a jurisdiction? Lines as they are, and numbers of whatever query."""

from __future__ import annotations

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import ANSWER_BYTES_MAX, LogPart, Told
from harch.sentinel.federated.owning.policy import TelemetryPolicy
from harch.sentinel.federated.owning.telling import refused, series_told
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.lines import Entry, Window
from harch.sentinel.logql.evaluate.options import LogQueryOptions
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.logs import LogReadable, Order
from harch.sentinel.promql.evaluate.options import QueryOptions
from harch.sentinel.promql.evaluate.results import MatrixResult

MS = 1_000_000


def logs_at_home(
    part: LogPart,
    logs: LogReadable,
    policy: TelemetryPolicy,
    engine: LogqlEngine,
    *,
    now_s: float,
    options: QueryOptions,
) -> Told:
    """Lines in `body`, or series. An error of the query is a refusal with its words."""
    chosen = LogQueryOptions(options.timeout_s, options.is_cancelled)
    now_ns = int(now_s * 1e9)
    try:
        query = engine.tree(part.expression)
        if isinstance(query, LogQuery):
            order = Order.NEWEST_FIRST if part.newest_first else Order.OLDEST_FIRST
            window = Window(part.start_ns, part.end_ns, order, max(part.limit, 1))
            found = engine.lines(query, window, logs, now_ns, chosen).value
            return _lines_told(part, found if isinstance(found, list) else [])
        start_ms, end_ms = part.start_ns // MS, part.end_ns // MS
        answer = engine.range(query, start_ms, end_ms, part.step_ns // MS or 1, logs, now_ns, chosen)
    except HarchError as error:
        return refused(part.expression, error.code, error.message, error.hint)
    value = answer.value
    if not isinstance(value, MatrixResult):
        return refused(part.expression, "type", "a part is a vector or a number", "ask for lines or numbers")
    if int(value.present.sum()) > policy.points_max:
        points = f"{int(value.present.sum())} points, {policy.points_max} allowed"
        return refused(part.expression, "size", points, "aggregate, widen the step or shorten the range")
    return Told(series=series_told(value), warnings=answer.warnings)


def _lines_told(part: LogPart, entries: list[Entry]) -> Told:
    body = msgspec.json.encode(entries)
    if len(body) > ANSWER_BYTES_MAX:
        detail = f"the lines take {len(body)} bytes, {ANSWER_BYTES_MAX} allowed"
        return refused(part.expression, "size", detail, "ask for fewer lines")
    return Told(body=body)
