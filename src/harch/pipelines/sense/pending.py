"""Which batches wait?

Those for the table of a new policy version, whole and in order within limits of bytes and time, and those of sources
that are further than the open windows reach.
"""

# harch: pure

from __future__ import annotations

from collections import deque

from msgspec import Struct

from harch.pipelines.sense.sources import BatchAdmission
from harch.pipelines.wire.header import BatchHeader

# What waits for the table of a new policy version? Whole messages, in order, within a limit of bytes and of time.
#
# A source with a message in here has all its later ones in here too, so that their order stays what it was.


class PendingBatch(Struct, frozen=True):
    header: BatchHeader
    message: bytes
    since_s: float


class PendingBatches:
    """A bounded queue. What does not fit pushes out the oldest."""

    def __init__(self, *, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._queue: deque[PendingBatch] = deque()
        self._last_seq: dict[int, int] = {}  # of the sources that have something in here
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def holds_source(self, source: int) -> bool:
        return source in self._last_seq

    def last_seq(self, source: int) -> int:
        return self._last_seq.get(source, 0)

    def put(self, held: PendingBatch) -> list[PendingBatch]:
        """Keeps it; returns what had to go for it, oldest first."""
        self._queue.append(held)
        self._last_seq[held.header.source] = held.header.seq
        self.bytes += len(held.message)
        pushed_out = []
        while self.bytes > self._bytes_max and self._queue:
            pushed_out.append(self._pop())
        return pushed_out

    def expired(self, now_s: float) -> list[PendingBatch]:
        """Takes out what has waited for too long."""
        found = []
        while self._queue and now_s - self._queue[0].since_s > self._age_s_max:
            found.append(self._pop())
        return found

    def take_all(self) -> list[PendingBatch]:
        """Takes out everything, to be decided again."""
        found = list(self._queue)
        self._queue.clear()
        self._last_seq.clear()
        self.bytes = 0
        return found

    def versions(self) -> set[int]:
        """Policy versions that somebody has to fetch."""
        return {held.header.policy_version for held in self._queue}

    def _pop(self) -> PendingBatch:
        held = self._queue.popleft()
        self.bytes -= len(held.message)
        if self._last_seq.get(held.header.source) == held.header.seq:
            del self._last_seq[held.header.source]
        return held


# What waits for the other sources? Batches of a source that is further than the open windows reach.
#
# After a pause all sources send again what they kept, each as fast as it can. If the fastest were believed at once, the
# events of all others would be late. So it waits here, and without credit it soon sends nothing more. Who holds it back
# has to come on, or is left behind: see `stage`.


class Ahead:
    """One queue per source. The limit of bytes is watched by the stage, which ends the wait when it is reached."""

    def __init__(self, *, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._queues: dict[int, deque[PendingBatch]] = {}
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def holds_source(self, source: int) -> bool:
        return source in self._queues

    def admit(self, header: BatchHeader, first_seq: int) -> BatchAdmission:
        """Is it the next of a source that waits? A watermark has its turn only if it ends the source."""
        done = self._queues[header.source][-1].header.seq
        if header.seq <= done and not (header.is_watermark_only and header.is_end):
            return BatchAdmission.DUPLICATE
        is_next = header.seq <= done if header.is_watermark_only else first_seq <= done + 1
        return BatchAdmission.NEXT if is_next else BatchAdmission.HOLE

    def put(self, held: PendingBatch) -> None:
        self._queues.setdefault(held.header.source, deque()).append(held)
        self.bytes += len(held.message)

    def heads(self) -> list[PendingBatch]:
        """The next of each source, the earliest event first."""
        return sorted((queue[0] for queue in self._queues.values()), key=lambda held: held.header.t_first_ns)

    def pop(self, source: int) -> PendingBatch:
        queue = self._queues[source]
        held = queue.popleft()
        self.bytes -= len(held.message)
        if not queue:
            del self._queues[source]
        return held

    def is_overdue(self, now_s: float) -> bool:
        """True if it has become too much, or has lasted too long."""
        since_s = min((queue[0].since_s for queue in self._queues.values()), default=now_s)
        return self.bytes > self._bytes_max or now_s - since_s > self._age_s_max
