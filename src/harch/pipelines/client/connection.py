"""What is one connection to the message engine?

Non-blocking bytes with a deadline for each direction, the handshake, and the subscriptions that survive its loss.
"""

from __future__ import annotations

import secrets
from itertools import count

from msgspec import Struct

from harch.pipelines.client import protocol
from harch.pipelines.client.errors import NatsError

SUBSCRIPTIONS_MAX = 4096
AWAITED_MAX = 65_536


class Subscription(Struct, frozen=True):
    subject: str
    queue: str = ""


class ClientSession:
    """The numbers of subscriptions and replies. A reply subject is used for one message only, so no two can mix."""

    def __init__(self, inbox_prefix: str, token: str | None = None) -> None:
        self.inbox = f"{inbox_prefix}.{token or secrets.token_hex(8)}"
        self.subscriptions: dict[int, Subscription] = {}
        self._sids = count(1)
        self._replies = count(1)
        self._inbox_sid = 0

    def subscribe(self, subject: str, queue: str = "") -> tuple[int, bytes]:
        """A new number and what to send."""
        if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise NatsError(f"more than {SUBSCRIPTIONS_MAX} subscriptions on one connection")
        sid = next(self._sids)
        command = protocol.subscribe(subject, sid, queue)
        self.subscriptions[sid] = Subscription(subject, queue)
        return sid, command

    def unsubscribe(self, sid: int) -> bytes:
        self.subscriptions.pop(sid, None)
        return protocol.unsubscribe(sid)

    def open_inbox(self) -> bytes:
        """What to send before the first request; nothing afterwards."""
        if self._inbox_sid:
            return b""
        self._inbox_sid, command = self.subscribe(f"{self.inbox}.*")
        return command

    @property
    def inbox_sid(self) -> int:
        return self._inbox_sid

    def new_reply(self, lane: str = "") -> str:
        """Never the same twice. With a lane it lies beside the shared inbox, for a subscription of its own."""
        number = next(self._replies)
        return f"{self.inbox}.{lane}.{number}" if lane else f"{self.inbox}.{number}"

    def resubscribe(self) -> bytes:
        """Everything that has to be sent over a fresh connection."""
        return b"".join(
            protocol.subscribe(entry.subject, sid, entry.queue) for sid, entry in self.subscriptions.items()
        )
