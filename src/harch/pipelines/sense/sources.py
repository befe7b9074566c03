"""Have we had this batch, and how far is everybody? Sequence numbers and watermarks of each source.

`seq` is gapless per source: the next one is new, a lower one is a repeat, a higher one means that something is missing
and has to be sent again before we go on. The watermark of the stage is the least of its live sources; a source that is
silent for too long, has ended, comes in further behind than `skew_ns`, or is left behind, does not hold the others
back. It never goes backwards.
"""

# harch: pure

from __future__ import annotations

import math
from enum import Enum

from msgspec import Struct

from harch.pipelines.wire.header import BatchHeader


class BatchAdmission(Enum):
    NEXT = "next"
    DUPLICATE = "duplicate"
    HOLE = "hole"  # something before it is missing
    TOO_MANY_SOURCES = "too_many_sources"


class SourceMark(Struct):
    """What is known of one source. `seen_s` is monotonic time of this process and is not saved."""

    seq: int
    watermark_ns: int
    seen_s: float
    ended: bool = False
    moved_s: float = 0.0  # when its watermark last moved
    is_new: bool = True  # it comes in, or comes back
    is_left_behind: bool = False


class SavedSource(Struct, frozen=True, array_like=True):
    source: int
    seq: int
    watermark_ns: int
    ended: bool


class SourceBook:
    """All sources of one partition, at most `sources_max`."""

    def __init__(self, *, sources_max: int, idle_s: float, skew_ns: int, start_wait_s: float = 0.0) -> None:
        self._sources_max = sources_max
        self._idle_s = idle_s
        self._skew_ns = skew_ns
        self._start_wait_s = start_wait_s
        self._counts_from_s = math.inf  # before, it is not known yet who will come
        self._marks: dict[int, SourceMark] = {}
        self._watermark_ns = 0
        self._least_ns = 0  # of the live sources, when they were last counted
        self._is_stale = False  # somebody came, ended or came back since then

    def admit(self, header: BatchHeader, first_seq: int) -> BatchAdmission:
        """Is it the next of its source? `first_seq` is its own number, or the first one of a gap."""
        mark = self._marks.get(header.source)
        if mark is None and len(self._marks) >= self._sources_max and not self._forget_one():
            return BatchAdmission.TOO_MANY_SOURCES
        done = mark.seq if mark else 0
        if header.is_watermark_only:
            return BatchAdmission.NEXT if header.seq <= done else BatchAdmission.HOLE
        if header.seq <= done:
            return BatchAdmission.DUPLICATE
        return BatchAdmission.NEXT if first_seq <= done + 1 else BatchAdmission.HOLE

    def seq_of(self, source: int) -> int:
        mark = self._marks.get(source)
        return mark.seq if mark else 0

    def done(self, header: BatchHeader, now_s: float) -> None:
        """The batch is accounted for, whatever became of it."""
        mark = self._mark(header.source, now_s)
        mark.seq = max(mark.seq, header.seq)
        if header.is_end:
            mark.ended = self._is_stale = True

    def advance(self, source: int, watermark_ns: int, now_s: float) -> int:
        """A source has come this far; returns the watermark of all."""
        mark = self._mark(source, now_s)
        was_ns = mark.watermark_ns
        if watermark_ns > was_ns:
            mark.watermark_ns, mark.moved_s = watermark_ns, now_s
        is_behind = mark.watermark_ns < self._watermark_ns - self._skew_ns
        if mark.is_new or mark.ended or (mark.is_left_behind and not is_behind):
            self._is_stale = True
        mark.is_left_behind = is_behind and (mark.is_left_behind or mark.is_new or mark.ended)
        mark.is_new = mark.ended = False
        # Where many sources are live, most of them cannot change the least one: then nothing is counted again.
        if self._is_stale or was_ns <= self._least_ns:
            return self.watermark_ns(now_s)
        return self._watermark_ns

    def watermark_ns(self, now_s: float) -> int:
        """Counts all sources; also for time that has passed, in which some have fallen silent."""
        if now_s < self._counts_from_s:
            return self._watermark_ns
        live = [mark.watermark_ns for mark in self._marks.values() if self._is_counted(mark, now_s)]
        self._is_stale = False
        if live:
            self._least_ns = min(live)
            self._watermark_ns = max(self._watermark_ns, self._least_ns)
        elif self._marks:  # nobody is held back by anybody
            self._least_ns = max(mark.watermark_ns for mark in self._marks.values())
            self._watermark_ns = max(self._watermark_ns, self._least_ns)
        return self._watermark_ns

    def touch(self, source: int, now_s: float) -> None:
        """A sign of life that says nothing new."""
        if source in self._marks:
            self._marks[source].seen_s = now_s

    def forgive(self, deaf_s: float) -> None:
        """We did not listen for so long: nobody was silent or stood still meanwhile."""
        for mark in self._marks.values():
            mark.seen_s += deaf_s
            mark.moved_s += deaf_s

    def leave_behind(self, needed_ns: int, now_s: float, *, stall_limit_s: float) -> None:
        """Sources that are not as far as `needed_ns`, and did not move for so long, no longer hold the others back.

        One of them counts again when it is within the skew. If none is left that holds back, that is how far we are.
        """
        holding = [
            mark for mark in self._marks.values() if mark.watermark_ns < needed_ns and self._is_counted(mark, now_s)
        ]
        for mark in holding:
            if now_s - mark.moved_s >= stall_limit_s:
                mark.is_left_behind = self._is_stale = True
        if all(mark.is_left_behind for mark in holding) and now_s >= self._counts_from_s:
            self._watermark_ns = max(self._watermark_ns, needed_ns)

    @property
    def least_ns(self) -> int:
        """How far the slowest source was that counted, when they were last counted; 0 if it did not say."""
        return self._least_ns

    @property
    def all_ended(self) -> bool:
        return bool(self._marks) and all(mark.ended for mark in self._marks.values())

    def saved(self) -> list[SavedSource]:
        return [SavedSource(name, mark.seq, mark.watermark_ns, mark.ended) for name, mark in self._marks.items()]

    def restore(self, saved: list[SavedSource], watermark_ns: int, now_s: float) -> None:
        """As of a checkpoint. Sources count as live from now on, so that none is overtaken while all start again."""
        self._marks = {
            one.source: SourceMark(one.seq, one.watermark_ns, now_s, one.ended, now_s, is_new=False) for one in saved
        }
        self._watermark_ns = watermark_ns
        self._counts_from_s = now_s  # the checkpoint knows who is there
        self._is_stale = True

    def _mark(self, source: int, now_s: float) -> SourceMark:
        mark = self._marks.get(source)
        if mark is None:
            mark = self._marks[source] = SourceMark(0, 0, now_s, moved_s=now_s)
            self._is_stale = True
            self._counts_from_s = min(self._counts_from_s, now_s + self._start_wait_s)
        elif now_s - mark.seen_s > self._idle_s:
            mark.is_new = True  # it was away: as if it came in now
        mark.seen_s = now_s
        return mark

    def _is_counted(self, mark: SourceMark, now_s: float) -> bool:
        return not mark.ended and not mark.is_left_behind and now_s - mark.seen_s <= self._idle_s

    def _forget_one(self) -> bool:
        """Makes room by forgetting a source that has ended; one that may come back is never forgotten."""
        for name, mark in self._marks.items():
            if mark.ended:
                del self._marks[name]
                return True
        return False
