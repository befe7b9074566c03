"""What must no longer be seen? Deletions wait in a list until every block was rewritten without their samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.store.blocks.meta import BlockMeta

DELETIONS_MAX = 1000


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of matching series with `start_ms <= t <= end_ms`, in blocks up to a sequence: others came after it."""

    id: int
    matchers: tuple[tuple[str, str, str], ...]  # kind, name, value
    start_ms: int
    end_ms: int
    up_to: int
    requested_ms: int | None = msgspec.field(default=None, name="asked_ms")  # for the record

    def concerns(self, meta: BlockMeta) -> bool:
        """May this block hold any of it? Not when it was rewritten since."""
        if meta.newest > self.up_to or self.id in meta.erased:
            return False
        return meta.start_ms <= self.end_ms and self.start_ms < meta.end_ms

    def as_matchers(self) -> tuple[Matcher, ...]:
        return tuple(Matcher(MatchKind(kind), name, value) for kind, name, value in self.matchers)

    def range_at(self, resolution_ms: int) -> tuple[int, int]:
        """Downsampled samples stand for a whole window: one that has lost a part of it goes as a whole."""
        if resolution_ms <= 0:
            return self.start_ms, self.end_ms
        start = self.start_ms // resolution_ms * resolution_ms
        return start, self.end_ms // resolution_ms * resolution_ms + resolution_ms - 1


class DeletionList(msgspec.Struct, frozen=True):
    """All that wait, and the number of the next: numbers are never used twice."""

    next_id: int = 1
    waiting: tuple[Deletion, ...] = ()

    def with_new(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, *, up_to: int, requested_ms: int | None
    ) -> DeletionList:
        """Raises E0615 where too many wait."""
        if len(self.waiting) >= DELETIONS_MAX:
            raise HarchError("E0615", f"{DELETIONS_MAX} deletions are waiting for blocks to be rewritten")
        new = Deletion(
            id=self.next_id,
            matchers=tuple((matcher.kind.value, matcher.name, matcher.value) for matcher in matchers),
            start_ms=start_ms,
            end_ms=end_ms,
            up_to=up_to,
            requested_ms=requested_ms,
        )
        return DeletionList(self.next_id + 1, (*self.waiting, new))

    def without_done(self, metas: Iterable[BlockMeta]) -> DeletionList:
        """Only those that still concern a block."""
        blocks = list(metas)
        return DeletionList(
            self.next_id, tuple(one for one in self.waiting if any(one.concerns(meta) for meta in blocks))
        )

    def concerning(self, meta: BlockMeta) -> tuple[Deletion, ...]:
        return tuple(one for one in self.waiting if one.concerns(meta))
