"""What waits for the other sources? Batches of a source that is further than the open windows reach.

After a pause all sources send again what they kept, each as fast as it can. If the fastest were believed at once, the
events of all others would be late. So it waits here, and without credit it soon sends nothing more. Who holds it back
has to come on, or is left behind: see `stage`.
"""

from __future__ import annotations

from collections import deque

from harch.pipelines.sense.holding import Held
from harch.pipelines.sense.sources import Admission
from harch.pipelines.wire.header import BatchHeader


class Ahead:
    """One queue per source. The limit of bytes is watched by the stage, which ends the wait when it is reached."""

    def __init__(self, *, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._queues: dict[int, deque[Held]] = {}
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def holds_source(self, source: int) -> bool:
        return source in self._queues

    def admit(self, header: BatchHeader, first_seq: int) -> Admission:
        """Is it the next of a source that waits? A watermark has its turn only if it ends the source."""
        done = self._queues[header.source][-1].header.seq
        if header.seq <= done and not (header.is_watermark_only and header.is_end):
            return Admission.DUPLICATE
        is_next = header.seq <= done if header.is_watermark_only else first_seq <= done + 1
        return Admission.NEXT if is_next else Admission.HOLE

    def put(self, held: Held) -> None:
        self._queues.setdefault(held.header.source, deque()).append(held)
        self.bytes += len(held.message)

    def heads(self) -> list[Held]:
        """The next of each source, the earliest event first."""
        return sorted((queue[0] for queue in self._queues.values()), key=lambda held: held.header.t_first_ns)

    def pop(self, source: int) -> Held:
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
