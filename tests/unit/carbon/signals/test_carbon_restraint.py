"""Is a source left alone when it fails or when its limit is reached, and asked again in time?"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harch.carbon.signals.circuit_breaker import CircuitBreaker, RequestLimit


@given(st.lists(st.floats(0, 20), max_size=200), st.integers(1, 5), st.floats(1, 60))
@example(gaps=[1.401298464324817e-45, 1.0, 0.0], most=1, window_s=1.0)  # the first time is absorbed: 1e-45 + 1.0 == 1.0
@example(gaps=[0.1, 59.99999999999999], most=1, window_s=60.0)
def test_no_window_ever_holds_more_requests_than_allowed(gaps: list[float], most: int, window_s: float) -> None:
    limit, now_s, sent = RequestLimit(most, window_s), 0.0, []
    for gap_s in gaps:
        now_s += gap_s
        if limit.wait_s(now_s) <= 0:
            limit.count(now_s)
            sent.append(now_s)
    exact = [Fraction(moment) for moment in sent]  # the judge must not round as the judged does
    for start in exact:
        assert sum(start <= moment < start + Fraction(window_s) for moment in exact) <= most


@given(st.floats(0, 1e6), st.floats(0.001, 1e5))
def test_a_full_window_opens_when_its_oldest_request_leaves_it_and_not_before(at_s: float, window_s: float) -> None:
    limit = RequestLimit(1, window_s)
    limit.count(at_s)
    assert limit.wait_s(at_s) == window_s
    opens_s = at_s + window_s
    assert (limit.wait_s(opens_s) <= 0) == (Fraction(opens_s) >= Fraction(at_s) + Fraction(window_s))


def test_a_source_that_keeps_failing_is_asked_less_and_less_often_but_never_given_up() -> None:
    breaker, now_s, tries = CircuitBreaker(), 0.0, 0
    while now_s < 86_400:
        if breaker.wait_s(now_s) <= 0:
            tries += 1
            breaker.failed(now_s)
        now_s += 30
    assert 90 <= tries <= 110  # every 15 minutes, after a quicker start; without the breaker it would be 2,880


def test_one_success_forgets_all_failures() -> None:
    breaker = CircuitBreaker()
    for _ in range(10):
        breaker.failed(0.0)
    assert breaker.wait_s(0.0) > 0
    breaker.succeeded()
    assert breaker.wait_s(0.0) == 0
    breaker.failed(0.0)
    assert breaker.wait_s(0.0) == 0


@given(st.floats(0, 1e9))
def test_a_source_that_says_how_long_to_wait_is_obeyed_within_reason(retry_after_s: float) -> None:
    breaker = CircuitBreaker()
    breaker.failed(100.0, retry_after_s=retry_after_s)
    assert breaker.wait_s(100.0) == pytest.approx(min(retry_after_s, breaker.pause_s_max), abs=1e-9)
