"""When is a group due? At a place of its own in the interval, so that groups do not all query at once."""

from __future__ import annotations

from msgspec import Struct

from harch.sentinel.rules.definitions import RuleGroup
from harch.sentinel.rules.fingerprints import fnv1a


class Turn(Struct, frozen=True):
    """An evaluation: the time that it is for, and how many were left out before it."""

    at_ms: int
    missed: int = 0


def slot_at_or_before(group: RuleGroup, now_ms: int) -> int:
    """The last time that the group was due. The offset depends on its name and file only, so it survives restarts."""
    offset_ms = fnv1a(group.key.encode()) % group.interval_ms
    return (now_ms - offset_ms) // group.interval_ms * group.interval_ms + offset_ms


def first_turn_ms(group: RuleGroup, now_ms: int) -> int:
    """The next slot: a group waits for its place instead of starting with all others."""
    last_ms = slot_at_or_before(group, now_ms)
    return last_ms if last_ms == now_ms else last_ms + group.interval_ms


def next_turn(group: RuleGroup, last_ms: int, now_ms: int) -> Turn | None:
    """The turn that is due by now, None if it is not yet time. Turns that nobody can make up for are counted.

    A clock that was set back makes the group wait for its next slot instead of for its old future.
    """
    if now_ms < last_ms - group.interval_ms:
        return Turn(slot_at_or_before(group, now_ms))
    passed = (now_ms - last_ms) // group.interval_ms
    return Turn(last_ms + passed * group.interval_ms, passed - 1) if passed > 0 else None
