"""Why is the first write as fast as others?

All kernels of the store have run once, and the memory of their compiler was given back.
"""

from __future__ import annotations

import ctypes
import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.head.head import FOREVER, Head
from harch.sentinel.store.head.journal import NoJournal
from harch.sentinel.store.ingest.remote_write import BodyReader
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.wal.journal import LogJournal
from harch.sentinel.store.wal.log import Log
from harch.sentinel.store.wal.replay import replay
from harch.sentinel.store.wal.segments import SystemDisk
from harch.sentinel.store.write_request import request_of

_LIMITS = TenantLimits(out_of_order_ms=None, series_max=64, samples_in_memory_max=1 << 12)
# A series with one sample in both versions of the protocol, the second with everything that kernels read.
_V1 = bytes.fromhex("0a1d0a0e0a085f5f6e616d655f5f12026d31120b09000000000000f03f1001")
_V2 = bytes.fromhex(
    "220022016822017322085f5f6e616d655f5f22026d312a1b0a020304120d09000000000000f03f100118012a06080118012002"
)


def warm_up() -> None:
    """Loads or compiles every kernel, by a short life of a store of its own. Short where all are compiled."""
    with tempfile.TemporaryDirectory(prefix="harch-warm-") as folder:
        journal = LogJournal(1)
        head = Head(_LIMITS, journal)
        log = Log(Path(folder), journal, SystemDisk(), lambda: 0.0)
        bodies = BodyReader(_LIMITS, head.seed)
        with bodies.read_v1(_literal(_V1)) as first:
            head.append(first, now_ms=0)
        with bodies.read_v2(_literal(_V2)) as second:
            head.append(second, now_ms=0)
        histogram = SeriesBatch(labels({"__name__": "m2"}), [2, 1], [NativeHistogram(1.0, 1.0), 1.0])
        head.append(request_of([histogram], _LIMITS), now_ms=0)
        head.select((), *FOREVER)
        log.commit(journal.ticket)
        log.close()
        again = Head(_LIMITS, NoJournal())
        replay(Path(folder), again)
        again.erase((), 5, 6)
        again.cut(FOREVER[1])
        again.forget()


def _literal(message: bytes) -> bytes:
    """A snappy block that packs nothing; for messages of up to 60 bytes."""
    return bytes((len(message), (len(message) - 1) << 2)) + message


# What does a compiler cost that nobody needs any more? Its code stays in memory until it is told to go.


_DONT_NEED = 4  # MADV_DONTNEED
_COMPILER = "llvmlite"


def let_compiler_go() -> int:
    """Gives the pages of LLVM back after all kernels are loaded; they come again from the file when needed.

    Only what is mapped from its file and cannot be written, with no page that ever was, in this process or in one that
    it was forked from: letting that go loses nothing.
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
            is_compiler = len(fields) == 6 and "w" not in fields[1] and _COMPILER in fields[5]
            start, end = (int(address, 16) for address in fields[0].split("-"))
            mapping = (start, end) if is_compiler else None
        elif mapping is not None and fields[0] == "Anonymous:" and fields[1] == "0":
            yield mapping
