"""How much memory do all tenants' newest rows take together? A count that every table adds to."""

from __future__ import annotations

import threading


class SharedMemory:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    @property
    def is_full(self) -> bool:
        return self._used > self.bytes_max

    @property
    def is_crowded(self) -> bool:
        """Whether upkeep should write rows into files even if none of the tenants has many."""
        return self._used > self.bytes_max // 2

    def change(self, by: int) -> None:
        with self._lock:
            self._used += by
