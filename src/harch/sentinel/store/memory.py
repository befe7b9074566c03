"""How does an array grow without being moved? Its addresses are set aside at once, its memory comes when touched."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from harch.base.errors import HarchError

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux: count pages when they are used, not now


def reserved(length: int, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Zeros of this length. Only parts that are written take memory, so `length` may be far above what is used."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    size = max(length, 1) * np.dtype(kind).itemsize
    try:
        space = mmap.mmap(-1, size, flags=flags)
    except OSError as problem:
        raise HarchError(
            "E0612",
            f"cannot reserve {size} bytes of address space: {problem.strerror}",
            hint="lower `samples_in_memory_max` and `series_max`, or allow overcommitted memory",
        ) from problem
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a page of 2 MiB for every touched place would defeat the purpose
        space.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(space, kind, length)


def grown(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """The same values in an array of at least this length, the rest zeros. The old one stays as it is for readers."""
    if len(array) >= length:
        return array
    larger = np.zeros(max(length, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger
