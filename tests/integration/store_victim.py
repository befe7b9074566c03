"""A process that writes into a store until it is killed: it prints a line for every write that was acknowledged."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from harch.base.clock import SystemClock
from harch.sentinel.model.labels import labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.tenants import StoreFolder

WRITERS = 3
SERIES_PER_WRITE = 20
SAMPLES = 5


def value_of(writer: int, series: int, timestamp: int) -> float:
    return writer * 1e6 + series + timestamp / 7.0


def names(writer: int, number: int) -> list[tuple[tuple[str, str], ...]]:
    """Series of a write; every tenth write brings new ones."""
    return [
        labels({"__name__": "m", "writer": str(writer), "generation": str(number // 10), "n": str(series)})
        for series in range(SERIES_PER_WRITE)
    ]


def batches(writer: int, number: int) -> list[SeriesBatch]:
    times = [number * 1000 + place for place in range(SAMPLES)]
    if number % 7 == 3:
        times.reverse()
    return [
        SeriesBatch(name, times, [value_of(writer, series, time) for time in times])
        for series, name in enumerate(names(writer, number))
    ]


def main(folder: Path, first: int) -> None:
    store = StoreFolder(folder, SystemClock(), TenantLimits(out_of_order_ms=None), BlockPolicy()).store("victim")
    printing = threading.Lock()

    def write(writer: int) -> None:
        number = first
        while True:
            receipt = store.append(batches(writer, number))
            if receipt.refused:
                raise SystemExit(f"refused: {receipt.first_refusal}")
            with printing:
                print(writer, number, flush=True)
            number += 1

    def upkeep() -> None:
        pause = threading.Event()
        while True:
            store.flush()
            pause.wait(0.2)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    threads.append(threading.Thread(target=upkeep))
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
