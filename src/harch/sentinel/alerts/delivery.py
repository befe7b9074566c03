"""What is on its way to one receiver, and is it due?

A notification for one integration: only news, and from time to time that it still goes on.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

from harch.sentinel.alerts.config import Integration
from harch.sentinel.alerts.shared_state import Notified
from harch.sentinel.alerts.templates import Notice


class Why(StrEnum):
    FIRST = "first"
    NEW_ALERTS = "new alerts"
    ALL_RESOLVED = "all resolved"
    SOME_RESOLVED = "some resolved"
    IN_DOUBT = "in doubt"
    REPEAT = "repeat"


def why_notify(
    last: Notified | None,
    firing: Collection[str],
    resolved: Collection[str],
    *,
    sends_resolved: bool,
    acknowledged: Collection[str],
    repeat_interval_ms: int,
    now_ms: int,
) -> Why | None:
    """The reason to notify, None for silence. Acknowledged alerts are news once, and are not repeated."""
    if last is None:
        return Why.FIRST if firing else None
    if last.in_doubt and firing:
        return Why.IN_DOUBT
    if not set(firing) <= set(last.firing):
        return Why.NEW_ALERTS
    if not firing:
        # Also where resolved alerts are not sent: the log has to forget what fired. If nothing was sent as firing,
        # nobody has to hear that it is over.
        return Why.ALL_RESOLVED if last.firing else None
    if sends_resolved and not set(resolved) <= set(last.resolved):
        return Why.SOME_RESOLVED
    if set(firing) <= set(acknowledged):
        return None
    return Why.REPEAT if last.updated_at_ms < now_ms - repeat_interval_ms else None


# What is on its way to one receiver? A notification for one integration, with what the log will say of it.


class Delivery(Struct, frozen=True, kw_only=True):
    """One notification to one integration. It is worth trying until `deadline_ms`."""

    receiver: str  # with the integration's kind and number: the log's name for it
    integration: Integration
    notice: Notice
    firing: tuple[str, ...]
    resolved: tuple[str, ...]
    why: Why
    repeat_interval_ms: int
    deadline_ms: int


def receiver_key(receiver: str, integration: Integration, place: int) -> str:
    """The log's name of an integration: e.g. `team/webhook[0]`."""
    return f"{receiver}/{integration.__struct_config__.tag}[{place}]"
