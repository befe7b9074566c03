"""Readers see every acknowledged line and span once, while others write, flush, merge and erase."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import FilterKind, LineFilter, LineOrder, LogBatch, LogRequest
from harch.sentinel.model.spans import Span, SpanQuery
from unit.sentinel_archive.archive_world import HOUR_NS, log_archive, span_archive

WRITES, LOOKS = 80, 12


def beside(write: Callable[[int], None], upkeep: Callable[[], None], look: Callable[[int], None]) -> None:
    """Writes and upkeep in threads of their own; `look` is told how many writes were acknowledged before it began."""
    acknowledged = 0
    done = threading.Event()

    def writing() -> None:
        nonlocal acknowledged
        for number in range(WRITES):
            write(number)
            acknowledged = number + 1

    def keeping() -> None:
        while not done.is_set():
            upkeep()

    with ThreadPoolExecutor(2) as threads:
        writer, keeper = threads.submit(writing), threads.submit(keeping)
        try:
            for _ in range(LOOKS):
                look(acknowledged)
            writer.result()
            look(acknowledged)
        finally:
            done.set()
        keeper.result()


def test_lines_are_seen_once_by_readers_beside_writers_and_upkeep(tmp_path: Path) -> None:
    archive = log_archive(tmp_path)

    def write(number: int) -> None:
        times = [(number % 2) * HOUR_NS + number, 2 * HOUR_NS]
        archive.append([LogBatch(labels({"n": str(number % 3)}), times, [f"kept {number:06d}", f"gone {number:06d}"])])

    def upkeep() -> None:
        archive.table.flush()
        archive.delete((), (LineFilter(FilterKind.CONTAINS, "gone "),), 0, 9 * HOUR_NS)
        archive.maintain()

    def look(acknowledged: int) -> None:
        for order in LineOrder:
            request = LogRequest((), 0, 2 * HOUR_NS, order=order)
            found = [text for chunk in archive.scan(request, lambda: False) for text in chunk.bodies]
            numbers = sorted(int(text.removeprefix("kept ")) for text in found)
            assert numbers == list(range(len(numbers))), "a line is missing, or there twice"
            assert len(numbers) >= acknowledged

    beside(write, upkeep, look)
    archive.close()


def test_spans_are_seen_once_by_readers_beside_writers_and_upkeep(tmp_path: Path) -> None:
    archive = span_archive(tmp_path)

    def write(number: int) -> None:
        archive.append([Span(f"{number + 1:032x}", f"{place:016x}", "", "s", "n", number, 5) for place in (1, 2)])

    def upkeep() -> None:
        archive.table.flush()
        archive.maintain()

    def look(acknowledged: int) -> None:
        found = archive.search(SpanQuery(0, 1 << 60, limit=10**6))
        assert sorted(int(one.trace_id, 16) for one in found) == list(range(1, len(found) + 1))
        assert all(one.spans == 2 for one in found)
        assert len(found) >= acknowledged

    beside(write, upkeep, look)
    archive.close()


def test_many_readers_share_a_file_of_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.sentinel.archive.logs.file.GROUP_ROWS", 50)
    archive = log_archive(tmp_path)
    bodies = [f"line {number:06d} of a file with many groups" for number in range(5000)]
    archive.append([LogBatch(labels({"app": "a"}), list(range(5000)), bodies)])
    archive.table.flush()

    def read(number: int) -> int:
        order = (LineOrder.ANY, LineOrder.NEWEST_FIRST)[number % 2]
        request = LogRequest((), 0, 5000, (LineFilter(FilterKind.CONTAINS, "many"),), order=order)
        return sum(len(chunk) for chunk in archive.scan(request, lambda: False))

    with ThreadPoolExecutor(6) as threads:
        assert set(threads.map(read, range(24))) == {5000}
    archive.close()
