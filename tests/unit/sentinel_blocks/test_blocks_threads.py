"""Queries, writes, deletions and rewriting at the same time: no query sees half of anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from blocks_naive import Model, Sample, bits_of, model_of, selection_of
from faulty_disk import QuickDisk

from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.store.blocks.planning import HOUR_MS, BlockPolicy
from harch.sentinel.store.blocks.tenant import TenantBlocks

WRITES = 24


def part(number: int) -> Model:
    """Two hours of two series, one of which will be deleted; every value says which write it came from."""
    return {
        labels({"__name__": "m", "user": user}): {
            number * 2 * HOUR_MS + step * 60_000: Sample(bits_of(float(number))) for step in range(30)
        }
        for user in ("kept", "erased")
    }


def compile_kernels(folder: Path) -> None:
    """By one thread before there are many: five that wait for the compiler would test nothing for long."""
    blocks = TenantBlocks.open(folder, BlockPolicy(free_bytes_min=0), disk=QuickDisk())
    for _ in range(2):
        blocks.add(selection_of(part(0)))
    blocks.delete([Matcher(MatchKind.EQUAL, "user", "erased")], 0, HOUR_MS)
    blocks.select([], 0, HOUR_MS, limit=10**6)
    blocks.purge(0)


def test_queries_see_whole_writes_while_blocks_are_rewritten_and_erased(tmp_path: Path) -> None:
    compile_kernels(tmp_path / "compiled")
    blocks = TenantBlocks.open(tmp_path / "blocks", BlockPolicy(free_bytes_min=0), disk=QuickDisk())
    written = threading.Semaphore(0)
    finished = threading.Event()
    failures: list[BaseException] = []
    durable = 0

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as failed:  # noqa: BLE001  shown by the test's own thread
                failures.append(failed)
                finished.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write() -> None:
        nonlocal durable
        for number in range(WRITES):
            blocks.add(selection_of(part(number)))
            durable = number + 1
            written.release()
        finished.set()

    def rewrite() -> None:
        while not finished.is_set():
            blocks.maintain(0)

    def erase() -> None:
        for number in range(WRITES):
            while not written.acquire(timeout=0.1):
                if failures:
                    return
            start = number * 2 * HOUR_MS
            blocks.delete([Matcher(MatchKind.EQUAL, "user", "erased")], start, start + 2 * HOUR_MS - 1)

    def read() -> None:
        while not finished.is_set():
            sure = durable
            found = model_of(blocks.select([], 0, 2**60, limit=10**9))
            kept = found.get(labels({"__name__": "m", "user": "kept"}), {})
            numbers = {time // (2 * HOUR_MS) for time in kept}
            assert numbers >= set(range(sure))
            assert len(kept) == 30 * len(numbers)
            assert all(sample.bits == bits_of(float(time // (2 * HOUR_MS))) for time, sample in kept.items())

    threads = [guarded(work) for work in (write, rewrite, erase, read, read)]
    for thread in threads:
        thread.join()
    assert failures == []
    blocks.purge(0)
    expected = {labels({"__name__": "m", "user": "kept"})}
    for reopened in (blocks, TenantBlocks.open(tmp_path / "blocks", disk=QuickDisk())):
        found = model_of(reopened.select([], 0, 2**60, limit=10**9))
        assert set(found) == expected
        assert sum(len(samples) for samples in found.values()) == 30 * WRITES
