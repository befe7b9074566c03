"""When may a file be removed? When nobody reads it any more: readers pin what they have in hand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

_WAIT_S = 30.0


class Pins:
    def __init__(self, remove: Callable[[str], None]) -> None:
        self._remove = remove
        self._readers: Counter[str] = Counter()
        self._doomed: set[str] = set()
        self._changed = threading.Condition()

    def pin(self, names: Iterable[str]) -> None:
        with self._changed:
            self._readers.update(names)

    def unpin(self, names: Iterable[str]) -> None:
        with self._changed:
            self._readers.subtract(names)
            self._readers += Counter()  # drops what nobody reads
            free = {name for name in self._doomed if not self._readers[name]}
            self._doomed -= free
            self._changed.notify_all()
        for name in free:
            self._remove(name)

    def doom(self, names: Iterable[str]) -> None:
        """Files that are in no list any more: removed now, or by their last reader."""
        with self._changed:
            free = [name for name in names if not self._readers[name]]
            self._doomed.update(name for name in names if self._readers[name])
        for name in free:
            self._remove(name)

    def wait(self) -> bool:
        """Waits until all doomed files are gone; False where readers take too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._doomed, _WAIT_S)
