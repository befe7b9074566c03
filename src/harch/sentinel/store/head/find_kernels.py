"""Is there a sample of this time? For writes of histograms, which kernels cannot compare."""

from __future__ import annotations

from harch.sentinel.compiled import kernel
from harch.sentinel.store.head.append_kernels import find_sample
from harch.sentinel.store.head.arena_kernels import Arena, Array


@kernel
def place_of(arena: Arena, rows: Array, sid: int, timestamp: int) -> int:
    """Its place in the arena, 0 without one."""
    found: int = find_sample(arena, rows[sid], timestamp)
    return found
