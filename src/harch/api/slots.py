"""Who gets one of few places? Whoever asks, as long as others who have none can still get one."""

from __future__ import annotations

from collections import Counter
from enum import Enum

RESERVED_SHARE = 4  # one place in so many is kept for those who hold few
FEW = 4


class NoRoom(Enum):
    ALL_TAKEN = "all"
    OWN_SHARE = "own"  # there is room, but not for somebody who has so many already


class Slots:
    """`most` places. The last quarter is only for holders of fewer than `FEW`: one of many wishes locks nobody out."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._held.total()

    def take(self, who: str) -> NoRoom | None:
        """None if the place is taken now; give it back with `leave`."""
        if self.taken >= self.most:
            return NoRoom.ALL_TAKEN
        if self._held[who] >= FEW and self.taken >= self.most - self.most // RESERVED_SHARE:
            return NoRoom.OWN_SHARE
        self._held[who] += 1
        return None

    def leave(self, who: str) -> None:
        self._held[who] -= 1
        if self._held[who] <= 0:
            del self._held[who]
