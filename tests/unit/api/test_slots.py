"""Are few places shared fairly? Whoever holds none gets one, however many somebody else would like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harch.base.http.streams import FEW, NoRoom, Slots


def fill(slots: Slots, who: str) -> int:
    taken = 0
    while slots.take(who) is None:
        taken += 1
    return taken


def test_one_key_gets_three_quarters_and_another_still_some() -> None:
    slots = Slots(64)
    assert fill(slots, "greedy") == 48
    assert slots.take("greedy") is NoRoom.OWN_SHARE
    assert fill(slots, "modest") == FEW
    assert fill(slots, "third") == FEW


@given(st.integers(4, 300), st.integers(0, 400))
def test_a_newcomer_finds_a_place_however_often_another_asks(most: int, asked: int) -> None:
    slots = Slots(most)
    granted = sum(slots.take("greedy") is None for _ in range(asked))
    assert granted <= max(most - most // 4, FEW)
    if granted < most:
        assert slots.take("new") is None


@given(st.integers(0, 20), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=100))
def test_never_more_than_there_are_and_all_come_back(most: int, steps: list[tuple[str, bool]]) -> None:
    slots, held = Slots(most), []
    for who, takes in steps:
        if takes and slots.take(who) is None:
            held.append(who)
        elif not takes and who in held:
            held.remove(who)
            slots.leave(who)
        assert slots.taken == len(held) <= most
    for who in held:
        slots.leave(who)
    assert slots.taken == 0
