"""A lease only ever grows, until its task was told to stop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.execution.lease import TaskLease

SECONDS = st.floats(min_value=0, max_value=1e6)


def test_term_comes_a_grace_before_the_deadline_and_kill_at_it() -> None:
    lease = TaskLease(100.0, 10.0)
    assert (lease.must_stop(89.9), lease.must_die(89.9)) == (False, False)
    assert (lease.must_stop(90.0), lease.must_die(99.9)) == (True, False)
    assert lease.must_die(100.0)


def test_an_extension_moves_both_and_never_back() -> None:
    lease = TaskLease(100.0, 10.0)
    lease.extend(200.0)
    lease.extend(150.0)
    assert (lease.must_stop(189.0), lease.must_die(199.0)) == (False, False)
    assert lease.must_stop(190.0)


def test_what_was_told_to_stop_is_not_revived() -> None:
    lease = TaskLease(100.0, 10.0)
    assert lease.must_stop(95.0)
    lease.extend(1000.0)
    assert lease.must_stop(95.0)
    assert lease.must_die(100.0)


def test_an_extension_without_end_is_none() -> None:
    lease = TaskLease(100.0, 10.0)
    for nonsense in (float("inf"), float("nan"), -1.0):
        lease.extend(nonsense)
    assert lease.until_s == 100.0


@given(st.lists(st.tuples(st.sampled_from(["look", "extend"]), SECONDS)), SECONDS, SECONDS)
def test_whatever_happens_it_dies_at_the_latest_deadline_that_came_in_time(
    steps: list[tuple[str, float]], until_s: float, grace_s: float
) -> None:
    lease, told = TaskLease(until_s, grace_s), False
    for kind, value in steps:
        before_s = lease.until_s
        if kind == "look":
            stops = lease.must_stop(value)
            assert stops or not told
            told = stops
        else:
            lease.extend(value)
        assert lease.until_s == (before_s if told or kind == "look" else max(before_s, value))
