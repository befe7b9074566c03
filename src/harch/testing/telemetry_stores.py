"""Logs and spans in lists: the simplest stores that keep their promises, to test others with and against."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from harch.sentinel.model.labels import Labels, Matcher, whole_text_pattern
from harch.sentinel.model.logs import (
    FilterKind,
    LineChunk,
    LineFilter,
    LineOrder,
    LinesWritten,
    LogBatch,
    LogRequest,
    chunk_of,
)
from harch.sentinel.model.spans import (
    BUCKET_BOUNDS_NS,
    AttributeValue,
    Comparison,
    Span,
    SpanCondition,
    SpanField,
    SpanGroup,
    SpanQuery,
    SpanStatus,
    SpansWritten,
    TraceSummary,
)

MATCHED_MAX = 100
_CHUNK_LINES = 1000

_Line = tuple[Labels, int, str, Labels]


class MemoryLogs:
    """One tenant's lines in a list."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._watchers: list[Callable[[Sequence[LogBatch]], None]] = []

    def append(self, batches: Sequence[LogBatch]) -> LinesWritten:
        count = 0
        for batch in batches:
            metadata = batch.metadata or [()] * len(batch.bodies)
            rows = zip(batch.times_ns, batch.bodies, metadata, strict=True)
            self._lines += [(batch.labels, time_ns, text, more) for time_ns, text, more in rows]
            count += len(batch.bodies)
        for callback in tuple(self._watchers):
            callback(batches)
        return LinesWritten(lines=count)

    def scan(self, request: LogRequest, stopped: Callable[[], bool]) -> Iterator[LineChunk]:
        found = [line for line in self._lines if _is_requested(line, request)]
        found.sort(key=lambda line: line[0])
        found.sort(key=lambda line: line[1], reverse=request.order is LineOrder.NEWEST_FIRST)
        found = found[: request.limit]
        for begin in range(0, len(found), _CHUNK_LINES):
            if stopped():
                return
            yield chunk_of(found[begin : begin + _CHUNK_LINES])

    def streams(self, matchers: Sequence[Matcher], start_ns: int, end_ns: int) -> Sequence[Labels]:
        return sorted(
            {line[0] for line in self._lines if start_ns <= line[1] < end_ns and _all_match(matchers, line[0])}
        )

    def watch(self, callback: Callable[[Sequence[LogBatch]], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def delete(self, matchers: Sequence[Matcher], filters: Sequence[LineFilter], start_ns: int, end_ns: int) -> int:
        request = LogRequest(tuple(matchers), start_ns, end_ns, tuple(filters))
        kept = [line for line in self._lines if not _is_requested(line, request)]
        gone = len(self._lines) - len(kept)
        self._lines = kept
        return gone

    def purge(self) -> None:
        """Nothing is on a disk."""

    def maintain(self) -> None:
        """Nothing is on a disk."""

    def facts(self) -> Mapping[str, object]:
        return {"streams": len({line[0] for line in self._lines}), "lines": len(self._lines)}


def _is_requested(line: _Line, request: LogRequest) -> bool:
    stream, time_ns, text, metadata = line
    return (
        request.start_ns <= time_ns < request.end_ns
        and _all_match(request.matchers, stream)
        and _all_match(request.metadata, metadata)
        and all(_passes(text, one) for one in request.filters)
    )


def _all_match(matchers: Sequence[Matcher], labels: Labels) -> bool:
    values = dict(labels)
    return all(matcher.matches(values.get(matcher.name, "")) for matcher in matchers)


def _passes(text: str, one: LineFilter) -> bool:
    match one.kind:
        case FilterKind.CONTAINS:
            return one.text in text
        case FilterKind.LACKS:
            return one.text not in text
        case FilterKind.MATCHES:
            return whole_text_pattern(one.text).search(text) is not None
        case FilterKind.MATCHES_NOT:
            return whole_text_pattern(one.text).search(text) is None


class MemorySpans:
    """One tenant's spans in a dictionary."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], Span] = {}

    def append(self, spans: Sequence[Span]) -> SpansWritten:
        for span in spans:
            self._spans.setdefault((span.trace_id, span.span_id), span)
        return SpansWritten(spans=len(spans))

    def search(self, query: SpanQuery) -> Sequence[TraceSummary]:
        matched: dict[str, list[str]] = defaultdict(list)
        for span in sorted(self._spans.values(), key=lambda one: (one.start_ns, one.span_id)):
            if satisfies(span, query):
                matched[span.trace_id].append(span.span_id)
        found = [summary_of(self.trace(trace_id), ids) for trace_id, ids in matched.items()]
        return sorted(found, key=lambda one: (-one.start_ns, one.trace_id))[: query.limit]

    def trace(self, trace_id: str) -> Sequence[Span]:
        found = [span for span in self._spans.values() if span.trace_id == trace_id]
        return sorted(found, key=lambda span: (span.start_ns, span.span_id))

    def statistics(self, query: SpanQuery, by: Sequence[SpanField]) -> Sequence[SpanGroup]:
        groups: dict[tuple[str, ...], list[Span]] = defaultdict(list)
        for span in self._spans.values():
            if satisfies(span, query):
                groups[tuple(str(_value_of(span, field, "")) for field in by)].append(span)
        return [_group(key, spans) for key, spans in sorted(groups.items())]

    def tag_names(self, start_ns: int, end_ns: int) -> Sequence[str]:
        spans = self._between(start_ns, end_ns)
        return sorted({name for span in spans for name, _ in (*span.attributes, *span.resource)})

    def tag_values(self, field: SpanField, attribute: str, start_ns: int, end_ns: int, limit: int) -> Sequence[str]:
        values = (_value_of(span, field, attribute) for span in self._between(start_ns, end_ns))
        return sorted({_text(value) for value in values if value is not None})[:limit]

    def delete(self, query: SpanQuery, trace_ids: Sequence[str]) -> int:
        gone = [
            key
            for key, span in self._spans.items()
            if satisfies(span, query) and (not trace_ids or span.trace_id in trace_ids)
        ]
        for key in gone:
            del self._spans[key]
        return len(gone)

    def purge(self) -> None:
        """Nothing is on a disk."""

    def maintain(self) -> None:
        """Nothing is on a disk."""

    def facts(self) -> Mapping[str, object]:
        return {"spans": len(self._spans)}

    def _between(self, start_ns: int, end_ns: int) -> list[Span]:
        return [span for span in self._spans.values() if start_ns <= span.start_ns < end_ns]


def satisfies(span: Span, query: SpanQuery) -> bool:
    return query.start_ns <= span.start_ns < query.end_ns and all(_holds(span, one) for one in query.conditions)


def summary_of(spans: Sequence[Span], matched: Sequence[str]) -> TraceSummary:
    """`spans` are all of one trace, by start."""
    root = next((span for span in spans if not span.parent_id), spans[0])
    start_ns = min(span.start_ns for span in spans)
    return TraceSummary(
        trace_id=root.trace_id,
        root_service=root.service,
        root_name=root.name,
        start_ns=start_ns,
        duration_ns=max(span.end_ns for span in spans) - start_ns,
        spans=len(spans),
        errors=sum(span.status is SpanStatus.ERROR for span in spans),
        matched=tuple(matched[:MATCHED_MAX]),
    )


def _value_of(span: Span, field: SpanField, attribute: str) -> AttributeValue | None:
    match field:
        case SpanField.SERVICE:
            return span.service
        case SpanField.NAME:
            return span.name
        case SpanField.STATUS:
            return span.status.value
        case SpanField.KIND:
            return span.kind.value
        case SpanField.DURATION:
            return span.duration_ns
        case SpanField.ATTRIBUTE:
            return dict((*span.resource, *span.attributes)).get(attribute)


def _holds(span: Span, condition: SpanCondition) -> bool:
    found = _value_of(span, condition.field, condition.attribute)
    wanted, comparison = condition.value, condition.comparison
    if found is None:
        return comparison in {Comparison.NOT_EQUAL, Comparison.NOT_REGEX}
    if comparison in {Comparison.REGEX, Comparison.NOT_REGEX}:
        matches = whole_text_pattern(str(wanted)).fullmatch(_text(found)) is not None
        return matches is (comparison is Comparison.REGEX)
    if not (_is_number(found) and _is_number(wanted)):
        found, wanted = _text(found), _text(wanted)
    match comparison:
        case Comparison.EQUAL:
            return found == wanted
        case Comparison.NOT_EQUAL:
            return found != wanted
        case Comparison.ABOVE:
            return found > wanted  # type: ignore[operator]
        case Comparison.AT_LEAST:
            return found >= wanted  # type: ignore[operator]
        case Comparison.BELOW:
            return found < wanted  # type: ignore[operator]
        case _:
            return found <= wanted  # type: ignore[operator]


def _is_number(value: AttributeValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: AttributeValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _group(key: tuple[str, ...], spans: Sequence[Span]) -> SpanGroup:
    buckets = [0] * (len(BUCKET_BOUNDS_NS) + 1)
    for span in spans:
        buckets[bisect_left(BUCKET_BOUNDS_NS, span.duration_ns)] += 1
    return SpanGroup(
        key=key,
        count=len(spans),
        errors=sum(span.status is SpanStatus.ERROR for span in spans),
        duration_sum_ns=sum(span.duration_ns for span in spans),
        buckets=tuple(buckets),
        traces=len({span.trace_id for span in spans}),
    )
