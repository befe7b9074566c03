"""Why is the first write as fast as others? All kernels of the store have run once before anybody asks."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.labels import labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.head.head import FOREVER, Head
from harch.sentinel.store.head.journal import NoJournal
from harch.sentinel.store.ingest.reading import BodyReader
from harch.sentinel.store.limits import Limits
from harch.sentinel.store.request import request_of
from harch.sentinel.store.wal.disk import SystemDisk
from harch.sentinel.store.wal.journal import LogJournal
from harch.sentinel.store.wal.log import Log
from harch.sentinel.store.wal.replay import replay

_LIMITS = Limits(out_of_order_ms=None, series_max=64, samples_in_memory_max=1 << 12)
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
        histogram = SeriesBatch(labels({"__name__": "m2"}), [2, 1], [Histogram(1.0, 1.0), 1.0])
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
