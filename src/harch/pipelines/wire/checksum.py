"""Is this what was sent? CRC-32C by the processor's own instruction, from the optional package `crc32c`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from harch.base.errors import HarchError

Buffer = bytes | bytearray | memoryview


def crc32c(data: Buffer, so_far: int = 0) -> int:
    """The checksum of `data`, going on from `so_far`. Reads memory views without copying them."""
    return _function()(data, so_far)


@lru_cache(maxsize=1)
def _function() -> Callable[[Buffer, int], int]:
    try:
        from crc32c import crc32c as function
    except ImportError as missing:
        raise HarchError(
            "E0740",
            "the package `crc32c` is not installed, so batches cannot be checked",
            hint="pip install 'harch[pipelines]'",
        ) from missing
    return function
