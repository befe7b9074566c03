"""What do spans say inside of a jurisdiction? Traces as they are, and statistics of any of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import ANSWER_BYTES_MAX, Told, TracePart
from harch.sentinel.federated.owning.telling import refused
from harch.sentinel.model.spans import SpanReadable
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.searching import LIMIT_MAX, search
from harch.sentinel.traces.statistics import counted_query, fields_of


def spans_at_home(part: TracePart, spans: SpanReadable) -> Told:
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
        return refused(part.query, "size", f"{len(body)} bytes, {ANSWER_BYTES_MAX} allowed", "ask for fewer traces")
    return Told(body=body, warnings=notes)
