"""What is on its way to one receiver? A notification for one integration, with what the log will say of it."""

from __future__ import annotations

from msgspec import Struct

from harch.sentinel.alerts.config import Integration
from harch.sentinel.alerts.deduplication import Why
from harch.sentinel.alerts.notification_text import Notice


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
