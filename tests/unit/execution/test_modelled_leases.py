"""Thousands of leases, and only those that are over are named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.execution import modelled_engine
from harch.execution.lease import TaskLease
from harch.execution.modelled_engine import LeaseBook
from harch.execution.protocol import TaskKey


def key(number: int) -> TaskKey:
    return TaskKey(f"wl_{number}", 1, 0)


def test_each_is_named_once_in_the_order_of_its_time() -> None:
    book = LeaseBook()
    for number, until_s in ((1, 30.0), (2, 20.0), (3, 20.0)):
        book.add(key(number), TaskLease(until_s, 5.0))
    assert book.wait_s(10.0) == 5.0
    assert book.take_due(15.0) == [key(2), key(3)]
    assert book.take_due(100.0) == [key(1)]
    assert (book.take_due(100.0), book.wait_s(100.0)) == ([], None)


def test_the_extended_and_the_dropped_are_not_named() -> None:
    book = LeaseBook()
    for number in (1, 2):
        book.add(key(number), TaskLease(20.0, 5.0))
    book.extend(key(1), 40.0)
    book.extend(key(9), 40.0)
    book.drop(key(2))
    book.drop(key(9))
    assert book.take_due(20.0) == []
    assert book.wait_s(20.0) == 15.0
    assert book.take_due(35.0) == [key(1)]


def test_what_is_gone_does_not_pile_up() -> None:
    book = LeaseBook()
    book.add(key(0), TaskLease(50.0, 0.0))
    for number in range(1, 5 * modelled_engine.STALE_MAX):
        book.add(key(number), TaskLease(1e6, 0.0))
        book.drop(key(number))
    assert len(book._heap) <= modelled_engine.STALE_MAX + 4
    assert book.take_due(50.0) == [key(0)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 50)),
            st.tuples(st.just("extend"), st.integers(0, 5), st.integers(0, 90)),
            st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("pass"), st.just(0), st.integers(0, 20)),
        )
    )
)
def test_it_agrees_with_looking_at_every_lease(steps: list[tuple[str, int, int]]) -> None:
    book, plain, now_s = LeaseBook(), dict[TaskKey, TaskLease](), 0.0
    for kind, number, value in steps:
        if kind == "add" and key(number) not in plain:
            book.add(key(number), TaskLease(now_s + value, 3.0))
            plain[key(number)] = TaskLease(now_s + value, 3.0)
        elif kind == "extend" and key(number) in plain:
            book.extend(key(number), value)
            plain[key(number)].extend(value)
        elif kind == "drop":
            book.drop(key(number))
            plain.pop(key(number), None)
        now_s += value if kind == "pass" else 0
        due = {name for name, lease in plain.items() if lease.must_stop(now_s)}
        for name in due:
            del plain[name]
        assert set(book.take_due(now_s)) == due
