"""Does simulated time pass only when told to, and wake sleepers in order?"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from harch.base.clock import Clock
from harch.testing.clock import START, SimClock


async def _note(clock: Clock, delay_s: float, name: str, log: list[tuple[str, float]]) -> None:
    await clock.sleep(delay_s)
    log.append((name, clock.monotonic_s()))


def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = SimClock()
    assert clock.now() == clock.now() == START
    assert clock.monotonic_s() == 0


def test_jump_moves_both_clocks_without_a_loop() -> None:
    clock = SimClock(datetime(2026, 5, 1, 12, tzinfo=UTC))
    clock.jump(90.5)
    assert clock.now() == datetime(2026, 5, 1, 12, 1, 30, 500_000, tzinfo=UTC)
    assert clock.monotonic_s() == 90.5


async def test_sleepers_wake_by_time_then_by_order_of_sleep() -> None:
    clock, log = SimClock(), list[tuple[str, float]]()
    async with asyncio.TaskGroup() as group:
        for delay_s, name in ((3, "late"), (1, "first"), (2, "b"), (2, "c")):
            group.create_task(_note(clock, delay_s, name, log))
        await clock.advance(2.5)
        assert log == [("first", 1), ("b", 2), ("c", 2)]
        assert clock.sleeper_count == 1
        await clock.advance(0.5)
    assert log[-1] == ("late", 3)
    assert clock.now() == START + timedelta(seconds=3)


async def test_a_loop_that_sleeps_runs_once_per_interval() -> None:
    clock, log = SimClock(), list[tuple[str, float]]()

    async def beat() -> None:
        while True:
            await _note(clock, 1, "beat", log)

    task = asyncio.create_task(beat())
    await clock.advance(10)
    assert log == [("beat", second) for second in range(1, 11)]
    task.cancel()


async def test_a_jump_wakes_all_that_are_due_at_the_new_time() -> None:
    clock, log = SimClock(), list[tuple[str, float]]()
    async with asyncio.TaskGroup() as group:
        group.create_task(_note(clock, 2, "b", log))
        group.create_task(_note(clock, 1, "a", log))
        await clock.advance(0)
        clock.jump(60)
    assert log == [("a", 60), ("b", 60)]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = SimClock()
    task = asyncio.create_task(clock.sleep(1))
    await clock.advance(0)
    assert clock.sleeper_count == 1
    task.cancel()
    await clock.advance(5)
    assert task.cancelled()
    assert clock.sleeper_count == 0


async def test_sleeping_for_no_time_only_gives_others_a_turn() -> None:
    clock = SimClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.monotonic_s() == 0


@pytest.mark.parametrize("delay_s", [-1, float("nan"), float("inf")])
def test_time_never_moves_backwards_or_forever(delay_s: float) -> None:
    with pytest.raises(ValueError, match="time moves forward"):
        SimClock().jump(delay_s)


async def test_sleeping_for_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        await SimClock().sleep(float("nan"))


def test_a_start_without_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        SimClock(START.replace(tzinfo=None))


def test_the_boot_clock_has_its_own_zero_and_speed() -> None:
    clock = SimClock(boot_offset_s=1000.0, boot_rate=1.001)
    clock.jump(100.0)
    assert clock.boot_s() == pytest.approx(1100.1)
    assert clock.monotonic_s() == 100.0
