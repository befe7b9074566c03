"""How much time really passed between two moments, if the clock was set meanwhile? `steady` knows the jumps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct


class Adopted(Struct, frozen=True):
    """A jump that stayed: what the time was, and what it was taken to be from that moment on."""

    before: datetime
    after: datetime


def elapsed(since: datetime, now: datetime, adopted: Sequence[Adopted]) -> timedelta:
    """What really passed since a time that this clock once showed; never less than nothing.

    A time that was shown twice, because the clock was set back, is taken for the later one.
    """
    passed = timedelta(0)
    for jump in reversed(adopted):
        if jump.after <= since <= now:
            break
        passed += max(timedelta(0), now - jump.after)
        now = jump.before
    return max(timedelta(0), passed + now - since)
