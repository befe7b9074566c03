"""Processes that write lines and spans until they are killed; each prints a line for every write that was acknowledged.

The first process loads the packages and makes one child for every number that it reads: a life begins at once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path

from harch.base.clock import SystemClock
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.archive.limits import ArchivePolicy, ArchiveSettings
from harch.sentinel.archive.logs.store import LogArchive
from harch.sentinel.archive.spans.store import SpanArchive
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LogBatch
from harch.sentinel.model.spans import Span

WRITERS = 2
LINES, SPANS = 40, 20
HOUR_NS = 3600 * 10**9
SETTINGS = ArchiveSettings(
    logs_policy=ArchivePolicy(keep_ns=None, free_bytes_min=0),
    spans_policy=ArchivePolicy(keep_ns=None, free_bytes_min=0),
)


def lines_of(writer: int, number: int) -> list[LogBatch]:
    """Of two streams and two hours."""
    return [
        LogBatch(
            labels({"writer": str(writer), "half": str(half)}),
            [(number % 2) * HOUR_NS + number * 1000 + place for place in range(LINES // 2)],
            [f"writer {writer} wrote {number} line {half}-{place}" for place in range(LINES // 2)],
        )
        for half in range(2)
    ]


def spans_of(writer: int, number: int) -> list[Span]:
    trace_id = f"{writer + 1:016x}{number + 1:016x}"
    return [
        Span(
            trace_id, f"{place + 1:016x}", f"{place:016x}" if place else "", "victim", f"step {place}", number * 100, 7
        )
        for place in range(SPANS)
    ]


def main(folder: Path) -> None:
    warm_up()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            live(folder, int(line))
        _, status = os.waitpid(child, 0)
        print("end", os.waitstatus_to_exitcode(status), flush=True)


def warm_up() -> None:
    """Kernels are loaded before the first life, so that its files are written at once."""
    with tempfile.TemporaryDirectory() as folder:
        archive = ArchiveFolder(Path(folder), SystemClock(), SETTINGS)
        archive.logs("victim").append(lines_of(0, 0))
        archive.spans("victim").append(spans_of(0, 0))
        archive.logs("victim").table.flush()
        archive.spans("victim").table.flush()
        archive.close()


def live(folder: Path, first: int) -> None:
    print("life", os.getpid(), flush=True)
    archive = ArchiveFolder(folder, SystemClock(), SETTINGS)
    logs, spans = archive.logs("victim"), archive.spans("victim")

    def write(kind: str, writer: int) -> None:
        number = first
        while True:
            if kind == "lines":
                assert logs.append(lines_of(writer, number)).lines == LINES
            else:
                assert spans.append(spans_of(writer, number)).spans == SPANS
            os.write(1, f"{kind} {writer} {number}\n".encode())  # whole or not at all
            number += 1

    def upkeep(store: LogArchive | SpanArchive) -> None:
        pause = threading.Event()
        while True:
            store.table.flush()
            store.maintain()
            pause.wait(0.02)

    threads = [
        threading.Thread(target=write, args=(kind, writer)) for kind in ("lines", "spans") for writer in range(WRITERS)
    ]
    threads += [threading.Thread(target=upkeep, args=(store,)) for store in (logs, spans)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
