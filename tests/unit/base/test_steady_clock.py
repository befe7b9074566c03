"""The wall clock jumps: time goes on, what passed is what really passed, and what stays is believed once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.clock import SETTLE_S, ClockStepKind, SteadyClock
from harch.base.elapsed import Adopted, elapsed
from harch.testing.clock import START, SimClock

HOUR_S = 3600.0


def after(seconds: float) -> object:
    return pytest.approx(seconds, abs=0.01)


def seconds(clock: SteadyClock) -> float:
    return (clock.now() - START).total_seconds()


def test_it_follows_a_wall_clock_that_does_not_jump() -> None:
    wall = SimClock(boot_offset_s=1000, boot_rate=1.0005)  # drifts as much as a time server slews
    clock = SteadyClock(wall)
    for _ in range(100):
        wall.jump(60)
        assert clock.now() == wall.now()
    assert (clock.take_news(), clock.offset_s) == ([], 0.0)


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, 10.0, -86_400.0])
def test_a_jump_that_is_taken_back_changes_nothing(jump_s: float) -> None:
    wall = SimClock()
    clock = SteadyClock(wall)
    wall.jump(10)
    wall.set_wall(jump_s)
    for passed in (10, 20, 58):
        assert seconds(clock) == after(passed)
        assert clock.offset_s == after(jump_s)
        wall.jump({10: 10, 20: 38, 58: 0}[passed])
    wall.set_wall(-jump_s)
    wall.jump(2)
    assert seconds(clock) == after(60)
    assert [(news.kind, news.delta_s) for news in clock.take_news()] == [
        (ClockStepKind.STEPPED, after(jump_s)),
        (ClockStepKind.BACK, after(jump_s)),
    ]
    assert clock.adopted == ()


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_that_stays_is_believed_and_durations_are_still_right(jump_s: float) -> None:
    wall = SimClock()
    clock = SteadyClock(wall)
    before = clock.now()
    wall.set_wall(jump_s)
    clock.now()
    wall.jump(SETTLE_S - 1)
    assert seconds(clock) == after(SETTLE_S - 1)
    during = clock.now()
    wall.jump(1)
    assert clock.now() == wall.now()
    wall.jump(100)
    assert elapsed(before, clock.now(), clock.adopted).total_seconds() == after(SETTLE_S + 100)
    assert elapsed(during, clock.now(), clock.adopted).total_seconds() == after(101)
    assert [news.kind for news in clock.take_news()] == [ClockStepKind.STEPPED, ClockStepKind.ADOPTED]


def test_a_clock_that_keeps_jumping_is_not_believed() -> None:
    wall = SimClock()
    clock = SteadyClock(wall)
    for number in range(20):
        wall.set_wall(HOUR_S if number % 2 else 2 * HOUR_S)
        clock.now()
        wall.jump(SETTLE_S / 2)
    assert seconds(clock) == after(10 * SETTLE_S)
    assert clock.adopted == ()


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_restart_of_the_process_does_not_hide_a_jump(jump_s: float) -> None:
    wall = SimClock()
    first = SteadyClock(wall, boot_id="b1")
    wall.jump(50)
    left = first.anchor()
    wall.set_wall(jump_s)
    wall.jump(10)
    second = SteadyClock(wall, left, boot_id="b1")
    assert seconds(second) == after(60)
    wall.set_wall(-jump_s)
    assert seconds(second) == after(60)


def test_after_a_restart_of_the_machine_only_the_wall_clock_can_tell() -> None:
    wall = SimClock(boot_offset_s=5000)
    left = SteadyClock(wall, boot_id="b1").anchor()
    wall.set_wall(HOUR_S)
    for clock in (
        SteadyClock(wall, left, boot_id="b2"),
        SteadyClock(wall, left),
        SteadyClock(SimClock(wall.now()), left, boot_id="b1"),  # a boot clock that is younger than what was left
    ):
        assert seconds(clock) == after(HOUR_S)


@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(-5000, 5000)), min_size=1, max_size=20))
def test_time_told_while_a_jump_is_bridged_never_runs_backward(moves: list[tuple[float, float]]) -> None:
    wall = SimClock()
    clock = SteadyClock(wall)
    stamps = []
    for passed_s, jump_s in moves:
        before = clock.now()
        wall.set_wall(jump_s)
        assert abs((clock.now() - before).total_seconds()) <= 1.01  # nothing jumps when the wall clock does
        wall.jump(passed_s)
        stamps.append((clock.now(), wall.monotonic_s()))
        for told, at_s in stamps[-2:]:
            really_s = wall.monotonic_s() - at_s
            found_s = elapsed(told, clock.now(), clock.adopted).total_seconds()
            assert found_s <= really_s + 4  # jumps of a second are followed, and count


def test_what_was_told_twice_is_taken_for_the_later_time() -> None:
    one = START + timedelta(hours=1)
    back = Adopted(one, START)
    assert elapsed(START + timedelta(minutes=10), START + timedelta(minutes=30), (back,)) == timedelta(minutes=20)
    assert elapsed(START + timedelta(minutes=45), START + timedelta(minutes=30), (back,)) == timedelta(minutes=45)
    assert elapsed(START + timedelta(hours=3), START, ()) == timedelta(0)
