"""When is a change on disk? Callers wait for one write that takes along what others changed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from harch.base.errors import HarchError
from harch.sentinel.alerts.store import Address

UNWRITTEN_MAX = 200_000


class Writes(Protocol):
    def write(self, changes: Mapping[Address, bytes | None], /) -> None: ...


Offload = Callable[..., Awaitable[None]]


class Saver:
    """Collects changes and writes them in a thread. What could not be written is tried again with the next change."""

    def __init__(self, store: Writes, *, offload: Offload = asyncio.to_thread) -> None:
        self._store, self._offload = store, offload
        self._lock = asyncio.Lock()
        self._unwritten: dict[Address, bytes | None] = {}
        self.failures = 0

    def add(self, changes: Mapping[Address, bytes | None]) -> None:
        self._unwritten.update(changes)
        if len(self._unwritten) > UNWRITTEN_MAX:
            raise HarchError(
                "E0652", f"{UNWRITTEN_MAX} changes could not be written", hint="mend the disk", retry_after_s=5
            )

    @property
    def is_clean(self) -> bool:
        return not self._unwritten and not self._lock.locked()

    async def save(self) -> None:
        """Returns when everything that was added before is on disk. Raises E0652."""
        async with self._lock:
            if not self._unwritten:
                return
            writing, self._unwritten = self._unwritten, {}
            try:
                await self._offload(self._store.write, writing)
            except BaseException:
                self._unwritten = {**writing, **self._unwritten}
                self.failures += 1
                raise
