"""What does a compiler cost that nobody needs any more? Its code stays in memory until it is told to go."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

_DONT_NEED = 4  # MADV_DONTNEED
_COMPILER = "llvmlite"


def let_compiler_go() -> int:
    """Gives the pages of LLVM back after all kernels are loaded; they come again from the file when needed.

    Only what is mapped from its file and cannot be written, with no page that ever was: letting that go loses nothing.
    Returns how many bytes of addresses that were, 0 where the system has no such list.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    let_go = 0
    for start, end in _clean_mappings(Path("/proc/self/smaps")):
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED) == 0:
            let_go += end - start
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return let_go


def _clean_mappings(listing: Path) -> Iterator[tuple[int, int]]:
    """Addresses of the compiler's file that are read-only and as they are on disk."""
    if not listing.exists():
        return
    mapping: tuple[int, int] | None = None
    for line in listing.read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields[1:2]) and len(fields[1]) == 4 and "-" in fields[0]:  # addresses, permissions, ..., file
            is_asked = len(fields) == 6 and "w" not in fields[1] and _COMPILER in fields[5]
            start, end = (int(address, 16) for address in fields[0].split("-"))
            mapping = (start, end) if is_asked else None
        elif mapping is not None and fields[0] == "Private_Dirty:" and fields[1] == "0":
            yield mapping
