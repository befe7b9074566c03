"""Where do messages wait for the stage? In one queue with a limit of bytes: who finds it full waits, or gets an
error."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from harch.pipelines.sense.quarantine import Quarantine

MESSAGES_MAX = 65_536


class Intake:
    """Many inputs, one stage, one event loop. `quarantine` is for what inputs set aside before it is a batch."""

    def __init__(self, *, bytes_max: int, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self.bytes = 0
        self.refused = 0  # messages that found no room and were turned away
        self._bytes_max = bytes_max
        self._queue: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def has_room(self, size: int) -> bool:
        """An empty queue has room for anything that is a message at all, so that nothing waits forever."""
        return not self._queue or (self.bytes + size <= self._bytes_max and len(self._queue) < MESSAGES_MAX)

    def try_put(self, messages: Sequence[bytes]) -> bool:
        """All of them or none, without waiting."""
        if not self.has_room(sum(len(message) for message in messages)):
            self.refused += len(messages)
            return False
        self._add(messages)
        return True

    async def put(self, message: bytes) -> None:
        """Waits until there is room: the sender feels it."""
        while not self.has_room(len(message)):
            self._emptied.clear()
            await self._emptied.wait()
        self._add((message,))

    async def get(self) -> list[bytes]:
        """Everything that waits, at least one message."""
        while not self._queue:
            self._filled.clear()
            await self._filled.wait()
        return self.get_nowait()

    def get_nowait(self) -> list[bytes]:
        found = list(self._queue)
        self._queue.clear()
        self.bytes = 0
        self._emptied.set()
        return found

    def _add(self, messages: Sequence[bytes]) -> None:
        self._queue.extend(messages)
        self.bytes += sum(len(message) for message in messages)
        self._filled.set()
