"""What waits for the table of a new policy version? Whole messages, in order, within a limit of bytes and of time.

A source with a message in here has all its later ones in here too, so that their order stays what it was.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from harch.pipelines.wire.header import BatchHeader


class Held(Struct, frozen=True):
    header: BatchHeader
    message: bytes
    since_s: float


class Holding:
    """A bounded queue. What does not fit pushes out the oldest."""

    def __init__(self, *, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._queue: deque[Held] = deque()
        self._last_seq: dict[int, int] = {}  # of the sources that have something in here
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def holds_source(self, source: int) -> bool:
        return source in self._last_seq

    def last_seq(self, source: int) -> int:
        return self._last_seq.get(source, 0)

    def put(self, held: Held) -> list[Held]:
        """Keeps it; returns what had to go for it, oldest first."""
        self._queue.append(held)
        self._last_seq[held.header.source] = held.header.seq
        self.bytes += len(held.message)
        pushed_out = []
        while self.bytes > self._bytes_max and self._queue:
            pushed_out.append(self._pop())
        return pushed_out

    def expired(self, now_s: float) -> list[Held]:
        """Takes out what has waited for too long."""
        found = []
        while self._queue and now_s - self._queue[0].since_s > self._age_s_max:
            found.append(self._pop())
        return found

    def take_all(self) -> list[Held]:
        """Takes out everything, to be decided again."""
        found = list(self._queue)
        self._queue.clear()
        self._last_seq.clear()
        self.bytes = 0
        return found

    def versions(self) -> set[int]:
        """Policy versions that somebody has to fetch."""
        return {held.header.policy_version for held in self._queue}

    def _pop(self) -> Held:
        held = self._queue.popleft()
        self.bytes -= len(held.message)
        if self._last_seq.get(held.header.source) == held.header.seq:
            del self._last_seq[held.header.source]
        return held
