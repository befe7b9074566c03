"""What was told stays known: the blocks of the memory are never smaller than k, over whatever is told."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy, key_of

COUNT, LEAST = 30, 3
NAMES = [(f"series-{number}".encode(), f"source-{number % 20}".encode()) for number in range(COUNT)]

NO_RECORDS = msgspec.msgpack.encode([])

tellings = st.lists(
    st.tuples(st.sets(st.integers(0, COUNT - 1), min_size=1), st.sets(st.integers(0, 3), min_size=1)), max_size=30
)


def told_in(memory: Memory, asked: list[tuple[set[int], set[int]]]) -> list[tuple[set[int], set[int]]]:
    bits = memory.bits("x", NAMES)
    assert bits is not None
    found = []
    for members, pages in asked:
        mask = sum(1 << bits[one] for one in members)
        if memory.admit("x", dict.fromkeys(pages, mask), least=LEAST, now_s=1.0):
            found.append((members, pages))
    return found


@settings(max_examples=50)
@given(tellings)
def test_series_that_nothing_tells_apart_are_many_in_every_page(asked: list[tuple[set[int], set[int]]]) -> None:
    told = told_in(Memory(), asked)
    for page in range(4):
        here = [members for members, pages in told if page in pages]
        blocks: dict[tuple[bool, ...], set[int]] = {}
        for one in range(COUNT):
            key = tuple(one in members for members in here)
            if any(key):
                blocks.setdefault(key, set()).add(one % 20)
        assert all(len(sources) >= LEAST for sources in blocks.values())


@settings(max_examples=30)
@given(tellings, tellings)
def test_what_is_kept_and_read_again_decides_alike(
    before: list[tuple[set[int], set[int]]], after: list[tuple[set[int], set[int]]]
) -> None:
    first = Memory()
    told_in(first, before)
    replayed, restored = Memory(), Memory()
    replayed.replay(first.take_records() or NO_RECORDS)
    restored.replay(first.dump())
    assert told_in(first, after) == told_in(replayed, after) == told_in(restored, after)


@settings(max_examples=30)
@given(tellings, tellings, tellings, st.booleans())
def test_a_file_that_was_begun_anew_goes_on_with_the_records_that_follow(
    before: list[tuple[set[int], set[int]]],
    between: list[tuple[set[int], set[int]]],
    after: list[tuple[set[int], set[int]]],
    crowded: bool,
) -> None:
    """`crowded`: so many names that those which are in no page are dropped, and the others get other bits."""
    names_max = COUNT + 1 if crowded else 1000
    first, second = Memory(names_max=names_max), Memory(names_max=names_max)
    told_in(first, before)
    first.take_records()
    second.replay(first.dump())
    first.forget(now_s=10_000.0, remembered_s=1e6)
    told_in(first, between)
    second.replay(first.take_records() or NO_RECORDS)
    assert told_in(first, after) == told_in(second, after)


def test_old_pages_and_their_names_are_forgotten() -> None:
    memory = Memory()
    bits = memory.bits("x", NAMES)
    assert bits is not None
    assert memory.admit("x", {1: (1 << 10) - 1}, least=LEAST, now_s=0.0)
    assert memory.admit("x", {2: (1 << 5) - 1}, least=LEAST, now_s=90_000.0)
    assert not memory.admit("x", {1: (1 << 9) - 1}, least=LEAST, now_s=90_000.0)
    memory.forget(now_s=100_000.0, remembered_s=20_000.0)
    again = memory.bits("x", NAMES)
    assert again is not None
    assert memory.admit("x", {1: (1 << 9) - 1}, least=LEAST, now_s=100_000.0)
    assert not memory.admit("x", {2: (1 << 4) - 1}, least=LEAST, now_s=100_000.0), "this page is young"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cross_border_aggregations", frozenset({"max"})),
        ("cross_border_functions", frozenset({"max_over_time"})),
        ("k", 2),
        ("quantum_s", 7),
        ("settling_s", 1),
        ("closing_s", 0),
        ("points_max", 10**9),
        ("remembered_days", 0),
    ],
)
def test_a_policy_that_would_protect_nobody_is_refused(name: str, value: object) -> None:
    with pytest.raises(HarchError, match=key_of(name)) as error:
        TelemetryPolicy(**{name: value})  # type: ignore[arg-type]
    assert error.value.code == "E0696"
