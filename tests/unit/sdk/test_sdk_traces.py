"""The client carries a trace to the hub: its own span's, or a new one for what changes something."""

from __future__ import annotations

from opentelemetry import trace

from harch.base.tracing.spans import TraceContext, read_header
from harch.base.tracing.tracer import inside
from harch.sdk.exchange import ApiRequest
from harch.sdk.settings import traced

OWN = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))


def test_what_changes_something_carries_a_new_trace_that_keeps_no_span() -> None:
    first, second = (read_header(traced(ApiRequest("POST", "/workloads"))["traceparent"]) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.trace_id != second.trace_id
    assert not first.sampled


def test_questions_carry_none_and_what_the_caller_says_stands() -> None:
    assert "traceparent" not in traced(ApiRequest("GET", "/workloads"))
    given = traced(ApiRequest("POST", "/workloads", headers={"traceparent": "mine", "idempotency-key": "k"}))
    assert given == {"traceparent": "mine", "idempotency-key": "k"}


def test_a_program_with_a_span_of_its_own_is_the_parent() -> None:
    with trace.use_span(trace.get_current_span(inside(OWN))):
        headers = traced(ApiRequest("POST", "/workloads"))
    assert read_header(headers["traceparent"]) == OWN
