"""Spans: ids that travel and ids that follow, what is kept, what is written, and what never waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harch.base.clock import epoch_ns
from harch.base.errors import HarchError
from harch.base.tracing import tracer
from harch.base.tracing.exporter import BATCH_MAX, Exporter
from harch.base.tracing.spans import (
    FinishedSpan,
    RecordedEvent,
    Resource,
    TraceContext,
    encode,
    is_in_share,
    read_header,
    span_id_of,
    trace_id_of,
)
from harch.base.tracing.tracer import (
    Sink,
    TraceBudget,
    TraceFilter,
    TraceFormatter,
    Tracing,
    current,
    ids_of,
    inside,
    share_from_env,
)
from harch.testing.clock import SimClock

ROOT = TraceContext(bytes(range(16)), bytes(range(8)))
NOWHERE: Sink = lambda span: None  # noqa: E731
HERE = Resource("harchos-hub", {"hub": "dakhla"})


def span(number: int = 1, **fields: object) -> FinishedSpan:
    given: dict[str, object] = {"name": "n", "start_ns": 10, "end_ns": 20, **fields}
    return FinishedSpan(trace_id=ROOT.trace_id, span_id=number.to_bytes(8, "big"), **given)  # type: ignore[arg-type]


# Context


@given(st.binary(min_size=16, max_size=16).filter(any), st.binary(min_size=8, max_size=8).filter(any), st.booleans())
def test_a_context_survives_its_header(trace_id: bytes, span_id: bytes, sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, sampled)
    assert read_header(context.header) == context


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-0-0-01",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"ff-{'1' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01-more",
        f"00-{'G' * 32}-{'1' * 16}-01",
        "x" * 10_000,
    ],
)
def test_what_is_no_traceparent_begins_a_trace_anew(text: str) -> None:
    assert read_header(text) is None


def test_a_later_version_of_the_header_is_read_as_far_as_it_is_known() -> None:
    found = read_header(f"cc-{'1' * 32}-{'2' * 16}-01-what-the-future-brings")
    assert found is not None
    assert found.sampled


@given(st.text(), st.integers())
def test_ids_that_follow_are_the_same_wherever_they_are_computed(word: str, number: int) -> None:
    trace_id = trace_id_of(word, number)
    assert trace_id == trace_id_of(word, number)
    assert span_id_of(trace_id, "a", word) == span_id_of(trace_id, "a", word)
    assert span_id_of(trace_id, "a", word) != span_id_of(trace_id, "b", word)


def test_a_share_keeps_about_that_share_of_names() -> None:
    kept = sum(is_in_share(trace_id_of("pipeline", number), 0.1) for number in range(20_000))
    assert 1_700 < kept < 2_300


# What is kept


def test_a_budget_gives_room_for_a_burst_and_then_for_a_rate() -> None:
    budget = TraceBudget(per_s=10, burst=5)
    assert sum(budget.takes(ROOT.trace_id, 100.0) for _ in range(50)) == 5
    taken = sum(budget.takes(ROOT.trace_id, 100.0 + step / 1000) for step in range(1, 10_001))
    assert 95 <= taken <= 101


def test_traces_begin_only_where_there_is_room_and_follow_their_caller() -> None:
    tracing = Tracing(NOWHERE, SimClock(), TraceBudget(per_s=1, burst=1))
    begun = tracing.begin(ROOT)
    assert begun == ROOT
    assert tracing.begin(None) is None


def test_settings_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracer.SHARE, "many")
    with pytest.raises(HarchError, match="HARCH_TRACE_SAMPLE"):
        share_from_env()
    monkeypatch.setenv(tracer.SWITCH, "perhaps")
    with pytest.raises(HarchError, match="HARCH_TRACING"):
        tracer.is_on()


# The tracer


async def test_spans_nest_and_nothing_is_recorded_outside_of_a_trace() -> None:
    spans: list[FinishedSpan] = []
    clock = SimClock()
    tracing = Tracing(spans.append, clock)
    with tracing.tracer.start_as_current_span("nobody asked"):
        assert current() is None
    assert spans == []
    with tracing.tracer.start_as_current_span("outer", context=inside(ROOT), attributes={"hub": "dakhla"}):
        with tracing.tracer.start_as_current_span("inner") as inner:
            inner.add_event("bid", {"hub": "dakar", "start_in_s": 0.5})
            await clock.advance(2.0)
        assert current() is not None
    inner_span, outer_span = spans
    assert (outer_span.trace_id, outer_span.parent_id) == (ROOT.trace_id, ROOT.span_id)
    assert inner_span.parent_id == outer_span.span_id
    assert inner_span.end_ns - inner_span.start_ns == 2_000_000_000
    assert inner_span.events[0].attributes == {"hub": "dakar", "start_in_s": 0.5}


def test_an_error_is_told_by_its_code_and_never_by_its_text() -> None:
    spans: list[FinishedSpan] = []
    tracing = Tracing(spans.append, SimClock())

    def fail(error: Exception) -> None:
        with tracing.tracer.start_as_current_span("work", context=inside(ROOT)):
            raise error

    with pytest.raises(HarchError):
        fail(HarchError("E0401", "tenant secret-name is over its quota"))
    with pytest.raises(ValueError, match="hunter2"):
        fail(ValueError("password hunter2"))
    assert [one.error for one in spans] == ["E0401", "ValueError"]
    assert "secret" not in str(spans)
    assert "hunter2" not in str(spans)


# The wire


TEXTS = st.text(max_size=40)
VALUES = st.one_of(
    TEXTS, st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False), st.just("x" * 300)
)
NS = st.integers(0, (1 << 63) - 1)
SPANS = st.builds(
    FinishedSpan,
    trace_id=st.binary(min_size=16, max_size=16),
    span_id=st.binary(min_size=8, max_size=8),
    parent_id=st.sampled_from([b"", b"12345678"]),
    name=TEXTS,
    start_ns=NS,
    end_ns=NS,
    kind=st.integers(1, 5),
    error=st.none() | TEXTS,
    attributes=st.dictionaries(TEXTS, VALUES, max_size=5),
    events=st.lists(st.builds(RecordedEvent, NS, TEXTS, st.dictionaries(TEXTS, VALUES, max_size=3)), max_size=3).map(
        tuple
    ),
    service=st.sampled_from(["", "harchos-sense"]),
)


@given(st.lists(SPANS, max_size=5))
def test_what_is_written_is_what_protobuf_reads(spans: list[FinishedSpan]) -> None:
    request = ExportTraceServiceRequest.FromString(encode(spans, HERE))
    found = []
    for part in request.resource_spans:
        names = {one.key: one.value.string_value for one in part.resource.attributes}
        assert names["hub"] == "dakhla"
        own = names["service.name"] == HERE.service
        for one in part.scope_spans[0].spans:
            status = {0: None, 1: "", 2: one.status.message}[one.status.code]
            read = FinishedSpan(
                trace_id=one.trace_id,
                span_id=one.span_id,
                parent_id=one.parent_span_id,
                name=one.name,
                start_ns=one.start_time_unix_nano,
                end_ns=one.end_time_unix_nano,
                kind=one.kind,
                error=status,
                attributes=_read(one.attributes),
                events=tuple(RecordedEvent(e.time_unix_nano, e.name, _read(e.attributes)) for e in one.events),
                service="" if own else names["service.name"],
            )
            found.append(read)
    assert sorted(map(repr, found)) == sorted(map(repr, spans))


def _read(attributes: Iterable[Any]) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


# The exporter


def test_spans_are_sent_in_batches_and_the_rest_when_it_closes() -> None:
    bodies: list[bytes] = []

    def post(body: bytes) -> int:
        bodies.append(body)
        return 200

    exporter = Exporter(HERE, post)
    exporter.start()
    for number in range(1, BATCH_MAX + 11):
        exporter.give(span(number))
    exporter.close(within_s=20)
    told = sum(
        len(part.scope_spans[0].spans)
        for body in bodies
        for part in ExportTraceServiceRequest.FromString(body).resource_spans
    )
    assert told == exporter.counts["sent"] == BATCH_MAX + 10
    assert exporter.counts["dropped"] == 0


@given(st.integers(0, 300), st.integers(1, 50))
@settings(max_examples=25)
def test_a_sentinel_that_never_answers_blocks_nobody_and_every_lost_span_is_counted(given_: int, room: int) -> None:
    """The exporter's thread hangs in its request; whoever gives spans goes on, up to the limit of the queue."""
    hangs, asked = threading.Event(), threading.Event()

    def hang(body: bytes) -> int:
        asked.set()
        hangs.wait(20)
        raise OSError("gone")

    exporter = Exporter(HERE, hang, queue_max=room, every_s=0.001)
    exporter.start()
    for number in range(given_):
        exporter.give(span(number))
        assert exporter.waiting <= room
    if given_:
        asked.wait(20)
    hangs.set()
    exporter.close(within_s=20)
    assert exporter.counts["dropped"] == given_
    assert exporter.counts["sent"] == 0


def test_spans_wait_for_a_sentinel_that_comes_late() -> None:
    answers = iter([0, 503, 200])

    def post(body: bytes) -> int:
        status = next(answers)
        if not status:
            raise ConnectionRefusedError("not yet")
        return status

    exporter = Exporter(HERE, post)
    assert [exporter._sent([span(1)]) for _ in range(3)] == [False, False, True]
    assert exporter.counts["sent"] == 1


def test_what_sentinel_refuses_for_good_is_counted_and_not_sent_again() -> None:
    exporter = Exporter(HERE, lambda body: 400)
    assert exporter._sent([span(1), span(2)]) is True
    assert exporter.counts["refused"] == 2


# Logs


def _record(**extra: str) -> logging.LogRecord:
    record = logging.LogRecord("harch.hub", logging.INFO, "", 0, "it runs", (), None)
    record.__dict__.update(extra)
    return record


def test_lines_of_the_log_carry_the_trace_that_they_were_written_in() -> None:
    tracing = Tracing(NOWHERE, SimClock())
    marks, shows = TraceFilter(), TraceFormatter("%(message)s")
    with tracing.tracer.start_as_current_span("outer", context=inside(ROOT)):
        record = _record()
        assert marks.filter(record)
        span_id = trace.get_current_span().get_span_context().span_id
    assert (record.trace_id, record.span_id) == (ROOT.trace_id.hex(), f"{span_id:016x}")  # type: ignore[attr-defined]
    assert shows.format(record) == f"it runs [trace {ROOT.trace_id.hex()}]"
    outside = _record()
    marks.filter(outside)
    assert shows.format(outside) == "it runs"
    named = _record(**ids_of(ROOT))
    marks.filter(named)
    assert named.span_id == ROOT.span_id.hex()  # type: ignore[attr-defined]


def test_nanoseconds_are_exact_to_the_microsecond() -> None:
    assert epoch_ns(datetime(2026, 1, 1, 0, 0, 0, 123_457, tzinfo=UTC)) == 1_767_225_600_123_457_000
