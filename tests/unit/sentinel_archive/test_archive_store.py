"""What does an archive refuse, keep, merge and let go? Limits, backpressure, retention, merging, and who listens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harch.base.clock import epoch_ns
from harch.base.errors import HarchError
from harch.sentinel.archive import planning
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.archive.limits import ArchivePolicy, ArchiveSettings, LogLimits, SpanLimits
from harch.sentinel.archive.logs.store import LogArchive
from harch.sentinel.archive.planning import FileEntry
from harch.sentinel.archive.spans.store import SpanArchive
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import FilterKind, LineFilter, LogBatch, LogRequest
from harch.sentinel.model.spans import Comparison, Span, SpanCondition, SpanField, SpanQuery
from harch.testing.clock import SimClock
from unit.sentinel_archive.archive_world import HOUR_NS, KEEPING, lines, log_archive, span_archive
from unit.sentinel_blocks.faulty_disk import QuickDisk
from unit.sentinel_store.stores import TestDisk

APP = labels({"app": "a"})
EVERYTHING = LogRequest((), -HOUR_NS, 1 << 62)
DAY_NS = 24 * HOUR_NS


def limited(
    folder: Path, limits: LogLimits, keeping: ArchivePolicy = KEEPING, clock: SimClock | None = None
) -> LogArchive:
    return LogArchive(folder, limits, keeping, clock or SimClock(), disk=QuickDisk(), log_disk=TestDisk())


def bodies(archive: LogArchive, *filters: LineFilter) -> list[str]:
    return [text for _, _, text, _ in lines(archive, LogRequest((), -HOUR_NS, 1 << 62, filters))]


def test_lines_beyond_a_limit_are_refused_alone_and_counted_by_reason(tmp_path: Path) -> None:
    archive = limited(tmp_path, LogLimits(line_bytes_max=10, streams_max=1, metadata_bytes_max=20))
    more = [(), (), (), labels({"pod": "x" * 30})]
    written = archive.append(
        [
            LogBatch(APP, [1, 2, 3, 4], ["short", "far too long for it", "\ud800", "meta"], more),
            LogBatch(labels({"app": "b"}), [1], ["one stream too many"]),
            LogBatch((), [1], ["no labels"]),
        ]
    )
    assert (written.lines, dict(written.refused)) == (1, {"E0626": 4, "E0627": 1})
    assert written.first_refusal == "a line of 19 bytes; 10 are allowed"
    assert bodies(archive) == ["short"]


def test_a_sender_that_is_too_fast_is_told_how_long_to_wait(tmp_path: Path) -> None:
    clock = SimClock()
    archive = limited(tmp_path, LogLimits(lines_per_s_max=10, lines_burst_max=10), clock=clock)
    archive.append([LogBatch(APP, [1] * 40, ["x"] * 40)])
    with pytest.raises(HarchError) as refused:
        archive.append([LogBatch(APP, [1], ["x"])])
    assert (refused.value.code, refused.value.retry_after_s) == ("E0628", 4)


def test_full_memory_holds_writers_back_until_it_is_in_files(tmp_path: Path) -> None:
    keeping = ArchivePolicy(keep_ns=None, flush_bytes=1000, memory_bytes_max=2000, free_bytes_min=0)
    archive = limited(tmp_path, LogLimits(), keeping)
    with archive.table._upkeep:  # no flush can begin in another thread
        archive.append([LogBatch(APP, [1] * 100, ["x" * 30] * 100)])
        with pytest.raises(HarchError) as refused:
            threaded(lambda: archive.append([LogBatch(APP, [1], ["x"])]))
        assert refused.value.code == "E0629"
    archive.table.flush()
    archive.append([LogBatch(APP, [1], ["again"])])
    assert archive.facts()["lines"] == 101


def threaded(work: Callable[[], object]) -> None:
    """Runs the work in a thread of its own and raises what it raised."""
    raised: list[HarchError] = []

    def run() -> None:
        try:
            work()
        except HarchError as problem:
            raised.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_a_query_that_looks_at_too_much_is_refused_unless_the_index_spares_it(tmp_path: Path) -> None:
    archive = limited(tmp_path, LogLimits(scanned_bytes_max=1000))
    archive.append([LogBatch(APP, list(range(100)), [f"line number {place:05d} of many" for place in range(100)])])
    archive.table.flush()
    with pytest.raises(HarchError) as refused:
        bodies(archive, LineFilter(FilterKind.CONTAINS, "many"))
    assert refused.value.code == "E0624"
    assert bodies(archive, LineFilter(FilterKind.CONTAINS, "a needle that is nowhere")) == []


def test_who_watches_hears_what_was_taken_until_it_ends(tmp_path: Path) -> None:
    archive = limited(tmp_path, LogLimits(line_bytes_max=10))
    heard: list[Sequence[LogBatch]] = []
    end = archive.watch(heard.append)
    archive.append([LogBatch(APP, [1, 2], ["kept", "much too long a line"])])
    end()
    archive.append([LogBatch(APP, [3], ["later"])])
    assert [[batch.bodies for batch in batches] for batches in heard] == [[["kept"]]]


async def test_old_files_go_by_time_and_then_by_size(tmp_path: Path) -> None:
    clock = SimClock()
    keeping = ArchivePolicy(keep_ns=10 * DAY_NS, flush_after_s=0.0, free_bytes_min=0)
    archive = limited(tmp_path, LogLimits(), keeping, clock)
    for days, until_next in ((20, 15), (5, 4), (1, 1)):
        archive.append([LogBatch(APP, [epoch_ns(clock.now())], [f"{days} days old"])])
        archive.table.flush()
        await clock.advance(until_next * 86_400)
    archive.maintain()
    assert bodies(archive) == ["1 days old", "5 days old"]
    archive.close()
    sizes = [one.disk_bytes for one in archive.table.files.manifest.files]
    small = ArchivePolicy(keep_ns=None, size_bytes_max=sizes[-1], free_bytes_min=0)
    archive = limited(tmp_path, LogLimits(), small, clock)
    archive.maintain()
    assert bodies(archive) == ["1 days old"]


def test_small_files_of_an_hour_become_one_and_answers_stay(tmp_path: Path) -> None:
    archive = log_archive(tmp_path)
    for number in range(6):
        archive.append([LogBatch(APP, [5, 5], [f"same time {number} a", f"same time {number} b"])])
        archive.table.flush()
    before = bodies(archive)
    archive.maintain()
    assert len(archive.table.files.manifest.files) == 1
    assert len(list((tmp_path / "files").iterdir())) == 2
    assert bodies(archive) == before
    assert before == [f"same time {number} {half}" for number in range(6) for half in "ab"]


def test_a_reader_keeps_the_files_that_it_reads(tmp_path: Path) -> None:
    archive = log_archive(tmp_path)
    for number in range(6):
        archive.append([LogBatch(APP, [number], [f"line {number}"])])
        archive.table.flush()
    reading = archive.scan(LogRequest((), 0, 100), lambda: False)
    first = next(reading)
    archive.table.files.rewrite(archive.table.files.manifest.files, archive.table._lock)
    found = [*first.bodies, *(text for chunk in reading for text in chunk.bodies)]
    assert found == [f"line {number}" for number in reversed(range(6))]
    assert len(list((tmp_path / "files").iterdir())) == 2, "old files go with their last reader"


def entry(first: int, hour: int, raw_bytes: int = 1) -> FileEntry:
    return FileEntry(f"{first:08d}", first, hour * HOUR_NS, hour * HOUR_NS + 5, 1, raw_bytes, raw_bytes)


def test_only_neighbours_by_arrival_are_merged_and_days_when_they_are_over() -> None:
    keeping = ArchivePolicy(merge_bytes_max=10)
    few = [entry(1, 0), entry(2, 0)]
    assert planning.merges(few, keeping, now_ns=HOUR_NS) == []
    assert planning.merges(few, keeping, now_ns=3 * HOUR_NS) == [few]
    large = [entry(1, 0), entry(2, 0, 10), entry(3, 0)]
    assert planning.merges(large, keeping, now_ns=3 * HOUR_NS) == []
    hours = [entry(1, 0), entry(2, 1), entry(3, 30)]
    assert planning.merges(hours, keeping, now_ns=40 * HOUR_NS) == []
    assert planning.merges(hours, keeping, now_ns=49 * HOUR_NS) == [hours[:2]]


def test_spans_that_are_not_valid_are_refused_alone(tmp_path: Path) -> None:
    archive = SpanArchive(
        tmp_path, SpanLimits(attribute_value_bytes_max=2000), KEEPING, SimClock(), disk=QuickDisk(), log_disk=TestDisk()
    )
    good = Span("1" * 32, "2" * 16, "", "s", "n", 5, 5)
    wrong = [
        Span("X" * 32, "2" * 16, "", "s", "n", 5, 5),
        Span("1" * 32, "3" * 16, "short", "s", "n", 5, 5),
        Span("1" * 32, "4" * 16, "", "s", "\ud800", 5, 5),
        Span("1" * 32, "5" * 16, "", "s", "n", 1 << 63, 5),
        Span("1" * 32, "6" * 16, "", "s", "n", 5, 5, attributes=(("big", 1 << 70),)),
        Span("1" * 32, "7" * 16, "", "s", "n", 5, 5, attributes=(("long", "x" * 3000),)),
    ]
    written = archive.append([*wrong, good, good])
    assert (written.spans, dict(written.refused)) == (2, {"E0626": 6})
    assert archive.trace("1" * 32) == [good]


def test_more_attributes_than_columns_come_back_and_are_found(tmp_path: Path) -> None:
    archive = span_archive(tmp_path)
    spans = [
        Span(f"{number + 1:032x}", "2" * 16, "", "s", "n", number, 5, attributes=((f"key-{number:03d}", number),))
        for number in range(300)
    ]
    for begin in range(0, 300, 50):
        archive.append(spans[begin : begin + 50])
    archive.table.flush()
    condition = SpanCondition(SpanField.ATTRIBUTE, Comparison.EQUAL, 277, "key-277")
    assert [one.trace_id for one in archive.search(SpanQuery(0, 1000, (condition,)))] == [f"{278:032x}"]
    assert all(archive.trace(span.trace_id) == [span] for span in spans)
    assert archive.tag_names(0, 1000) == [f"key-{number:03d}" for number in range(300)]


def test_a_search_that_looks_at_too_many_spans_is_refused(tmp_path: Path) -> None:
    archive = span_archive(tmp_path)
    archive.append([Span("1" * 32, f"{number + 1:016x}", "", "s", "n", number, 5) for number in range(20)])
    with pytest.raises(HarchError) as refused:
        archive.search(SpanQuery(0, 100, scanned_spans_max=19))
    assert refused.value.code == "E0625"


def test_tenants_are_apart_and_open_again(tmp_path: Path) -> None:
    archive = ArchiveFolder(tmp_path, SimClock(), ArchiveSettings())
    archive.logs("a").append([LogBatch(APP, [1], ["of a"])])
    archive.spans("b").append([Span("1" * 32, "2" * 16, "", "s", "n", 5, 5)])
    archive.close()
    archive = ArchiveFolder(tmp_path, SimClock(), ArchiveSettings())
    assert archive.names() == ["a", "b"]
    assert bodies(archive.logs("b")) == []
    assert bodies(archive.logs("a")) == ["of a"]
    assert len(archive.spans("b").trace("1" * 32)) == 1
    with pytest.raises(HarchError) as refused:
        archive.logs("../a")
    assert refused.value.code == "E0618"
    archive.close()


async def test_lines_and_spans_that_come_late_stay_as_long_as_new_ones(tmp_path: Path) -> None:
    clock = SimClock()
    archive = ArchiveFolder(tmp_path, clock, ArchiveSettings())
    old_ns = epoch_ns(clock.now()) - 16 * 86_400 * 10**9
    archive.logs("a").append([LogBatch(APP, [old_ns], ["old"])])
    archive.spans("a").append([Span("1" * 32, "2" * 16, "", "s", "n", old_ns, 5)])

    async def left(days: float) -> tuple[int, int]:
        await clock.advance(days * 86_400)
        archive.maintain("a")
        return len(bodies(archive.logs("a"))), len(archive.spans("a").trace("1" * 32))

    assert await left(0.1) == (1, 1)
    assert await left(14.8) == (1, 1)
    assert await left(0.3) == (0, 0)
    archive.close()
