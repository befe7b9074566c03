"""The machine's own clocks."""

from __future__ import annotations

import time

from harch.base.clock import SystemClock


def test_the_boot_clock_goes_on_and_is_never_behind_the_monotonic_one() -> None:
    clock = SystemClock()
    monotonic_s = clock.monotonic_s()
    first_s = clock.boot_s()
    assert first_s >= monotonic_s, "it also counts the time in which the machine slept"
    assert first_s <= clock.boot_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
