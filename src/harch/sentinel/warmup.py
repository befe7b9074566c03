"""Why is the first request as fast as others? All kernels are loaded before anybody asks, and compiled once a machine.

`python -m harch.sentinel.warmup` does it ahead of time: seconds where the machine code is on disk, a minute where not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from harch.base.clock import SystemClock
from harch.base.compile_once import compile_once
from harch.sentinel.archive.limits import ArchivePolicy, LogLimits
from harch.sentinel.archive.logs.store import LogArchive
from harch.sentinel.jit import SOURCES
from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.model.logs import FilterKind, LineFilter, LogBatch, LogRequest
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.promql.evaluate.warmup import warm as warm_queries
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.tenants import StoreFolder
from harch.sentinel.store.warmup import let_compiler_go
from harch.sentinel.store.warmup import warm_up as warm_head

_SAMPLES = 300  # of one series: enough for a chunk of a block


def warm_all(step_started: Callable[[str], None] = lambda _what: None) -> None:
    """Loads or compiles every kernel. Of processes that start together, one compiles and the others wait."""
    with compile_once("sentinel", SOURCES):
        for what, warm in STEPS:
            step_started(what)
            warm()
    let_compiler_go()


def warm_for_forks() -> None:
    """Loads compiled kernels into a process that others will be forked from.

    Those of the archive are left to each: they come with threads of Arrow, which a fork would leave behind.
    """
    for _, warm in STEPS:
        if warm is not _warm_archive:
            warm()
    let_compiler_go()


def _warm_blocks() -> None:
    """A short life of a store: samples go to disk, come back, and are erased."""
    limits = TenantLimits(out_of_order_ms=None, series_max=64, samples_in_memory_max=1 << 12)
    named = labels({"__name__": "warm"})
    matcher = Matcher(MatchKind.EQUAL, "__name__", "warm")
    with tempfile.TemporaryDirectory(prefix="harch-warm-") as folder:
        stores = StoreFolder(Path(folder), SystemClock(), limits, BlockPolicy())
        store = stores.store("warm")
        times = range(1_000, 1_000 + 15_000 * _SAMPLES, 15_000)
        store.append([SeriesBatch(named, times, [0.1 * place for place in range(_SAMPLES)])])
        store.flush()
        store.select((matcher,), 0, 10_000_000, limit=10_000)
        store.delete((matcher,), 0, 20_000)
        store.purge()
        stores.close()


def _warm_archive() -> None:
    """Lines go into a file and are looked for."""
    text = "long enough for the index"
    with tempfile.TemporaryDirectory(prefix="harch-warm-") as folder:
        archive = LogArchive(Path(folder), LogLimits(), ArchivePolicy(), SystemClock())
        archive.append([LogBatch(labels({"job": "warm"}), [1], [text])])
        archive.table.flush()
        for _ in archive.scan(LogRequest((), 0, 2, (LineFilter(FilterKind.CONTAINS, text),)), lambda: False):
            pass
        archive.close()


STEPS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("samples", warm_head),
    ("PromQL", warm_queries),
    ("blocks", _warm_blocks),
    ("log lines", _warm_archive),
)

if __name__ == "__main__":
    warm_all()
