"""The stores that other stores are judged by: orders, limits, filters and groups as the contract says."""

from __future__ import annotations

from harch.sentinel.model.labels import Labels, Matcher, MatchKind, labels
from harch.sentinel.model.logs import FilterKind, LineFilter, LineOrder, LogBatch, LogRequest, LogStore
from harch.sentinel.model.spans import Comparison, Span, SpanCondition, SpanField, SpanQuery, SpanStatus, SpanStore
from harch.testing.telemetry_stores import MemoryLogs, MemorySpans

API, AGENT = labels({"job": "api"}), labels({"job": "agent"})


def some_logs() -> LogStore:
    logs = MemoryLogs()
    traced: Labels = labels({"trace_id": "ab"})
    logs.append([LogBatch(API, [1, 3, 3], ["start", "error: disk", "stop"], [(), traced, ()])])
    logs.append([LogBatch(AGENT, [3, 2], ["error: fan", "idle"])])
    return logs


def bodies(logs: LogStore, request: LogRequest) -> list[str]:
    return [text for chunk in logs.scan(request, lambda: False) for text in chunk.bodies]


def test_lines_of_one_time_stand_by_stream_and_then_as_they_came() -> None:
    logs = some_logs()
    assert bodies(logs, LogRequest((), 0, 10, order=LineOrder.NEWEST_FIRST)) == [
        "error: fan",
        "error: disk",
        "stop",
        "idle",
        "start",
    ]
    assert bodies(logs, LogRequest((), 0, 10, order=LineOrder.OLDEST_FIRST, limit=2)) == ["start", "idle"]


def test_the_end_is_not_included_and_every_filter_must_hold() -> None:
    logs = some_logs()
    assert bodies(logs, LogRequest((), 1, 3)) == ["idle", "start"]
    only_api = (Matcher(MatchKind.EQUAL, "job", "api"),)
    filters = (LineFilter(FilterKind.MATCHES, "^err"), LineFilter(FilterKind.LACKS, "fan"))
    assert bodies(logs, LogRequest(only_api, 0, 10, filters)) == ["error: disk"]
    by_trace = (Matcher(MatchKind.EQUAL, "trace_id", "ab"),)
    assert bodies(logs, LogRequest((), 0, 10, metadata=by_trace)) == ["error: disk"]


def test_erased_lines_are_gone_and_counted() -> None:
    logs = some_logs()
    assert logs.delete((), (LineFilter(FilterKind.CONTAINS, "error"),), 0, 10) == 2
    assert bodies(logs, LogRequest((), 0, 10)) == ["stop", "idle", "start"]


def some_spans() -> SpanStore:
    spans = MemorySpans()
    spans.append(
        [
            Span("a1", "1", "", "hub", "submit", 100, 50, attributes=(("gpus", 8),)),
            Span("a1", "2", "1", "agent", "start", 110, 90, status=SpanStatus.ERROR),
            Span("b1", "3", "9", "hub", "submit", 200, 10, attributes=(("gpus", 16),)),
        ]
    )
    return spans


def test_a_trace_is_found_by_one_span_and_described_as_a_whole() -> None:
    found = some_spans().search(SpanQuery(0, 1000, (SpanCondition(SpanField.ATTRIBUTE, Comparison.BELOW, 10, "gpus"),)))
    assert [(one.trace_id, one.root_name, one.duration_ns, one.spans, one.errors) for one in found] == [
        ("a1", "submit", 100, 2, 1)
    ]
    assert found[0].matched == ("1",)


def test_groups_count_spans_errors_and_durations() -> None:
    groups = some_spans().statistics(SpanQuery(0, 1000), (SpanField.SERVICE,))
    assert [(group.key, group.count, group.errors, group.duration_sum_ns) for group in groups] == [
        (("agent",), 1, 1, 90),
        (("hub",), 2, 0, 60),
    ]
    assert all(sum(group.buckets) == group.count for group in groups)
