"""How do batches come in from the message engine? A subscription whose messages are put into the intake.

The engine cannot be told to wait: sources have credit instead, so that no more is on its way than there is room for.
What finds no room all the same is not taken, and its source sends it again when the hole is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from harch.pipelines.sense.intake import Intake
from harch.pipelines.sense.quarantine import Quarantined


class Delivered(Protocol):
    """A message of the engine. Its payload is valid during the call only."""

    @property
    def payload(self) -> memoryview | bytes: ...


class Subscriber(Protocol):
    """What this input needs of a client of the engine."""

    def subscribe(self, subject: str, handler: Callable[[Any], None]) -> int: ...

    def unsubscribe(self, sid: int) -> None: ...


class NatsInput:
    """One subject, usually `juris.<country>.<pipeline>.sense.<partition>`."""

    def __init__(self, client: Subscriber, subject: str, intake: Intake) -> None:
        self._client = client
        self._subject = subject
        self._intake = intake

    async def run(self) -> None:
        sid = self._client.subscribe(self._subject, self.take)
        try:
            await asyncio.get_running_loop().create_future()  # until it is cancelled
        finally:
            self._client.unsubscribe(sid)

    def take(self, message: Delivered) -> None:
        if not self._intake.try_put((bytes(message.payload),)):
            self._intake.quarantine.add(Quarantined("intake_full", f"no room for {len(message.payload)} bytes"))
