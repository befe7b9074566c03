"""Who still reads? Chunks that were given back are used again only when no reader of that time is left."""

from __future__ import annotations


class ReaderGroup:
    """Readers that began between two turns."""

    def __init__(self) -> None:
        self.count = 0


class ReaderGroups:
    """Counts readers in two groups, so that readers that come later never hold up what was given back before them."""

    def __init__(self) -> None:
        self._old = ReaderGroup()
        self._new = ReaderGroup()

    def enter(self) -> ReaderGroup:
        self._new.count += 1
        return self._new

    def leave(self, group: ReaderGroup) -> None:
        group.count -= 1

    def turn(self) -> bool:
        """True where all readers of the older group are gone; then the younger group is the older one."""
        if self._old.count:
            return False
        self._old, self._new = self._new, ReaderGroup()
        return True
