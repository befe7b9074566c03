"""The power fails before any operation on files: nothing acknowledged is lost, doubled, or back after erasure."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from harch.base.errors import HarchError
from harch.sentinel.archive.logs.store import LogArchive
from harch.sentinel.archive.spans.store import SpanArchive
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import FilterKind, LineFilter, LogBatch, LogRequest
from harch.sentinel.model.spans import Comparison, Span, SpanCondition, SpanField, SpanQuery
from harch.sentinel.store.wal.salvage import guard_path
from unit.sentinel_archive.archive_world import HOUR_NS, lines, log_archive, span_archive
from unit.sentinel_blocks.faulty_disk import FullDisk, WatchedDisk
from unit.sentinel_store.stores import TestDisk

A = TypeVar("A")
EVERYTHING = LogRequest((), -HOUR_NS, 10 * HOUR_NS)
SECRET = (LineFilter(FilterKind.CONTAINS, "secret"),)


def logs_at(folder: Path, disk: WatchedDisk | None = None) -> LogArchive:
    return log_archive(folder, disk=disk)


def write_lines(archive: LogArchive, first: int, possible: Possible) -> None:
    bodies = [f"line {number} {'secret' if number % 3 == 0 else 'open'}" for number in range(first, first + 6)]
    times = [(number % 2) * HOUR_NS + number for number in range(6)]
    possible.adding(bodies)
    archive.append([LogBatch(labels({"app": "a"}), times, bodies)])
    possible.settled()


def erase_lines(archive: LogArchive, possible: Possible) -> None:
    possible.erasing("secret")
    archive.delete((), SECRET, -HOUR_NS, 10 * HOUR_NS)
    possible.settled()


class Possible:
    """What may be found at this moment: before or after the step that goes on."""

    def __init__(self) -> None:
        self.before: Counter[str] = Counter()
        self.after: Counter[str] = Counter()

    def adding(self, bodies: list[str]) -> None:
        self.after = self.before + Counter(bodies)

    def erasing(self, word: str) -> None:
        self.after = Counter({text: count for text, count in self.before.items() if word not in text})

    def settled(self) -> None:
        self.before = self.after


def log_story(archive: LogArchive, possible: Possible) -> None:
    write_lines(archive, 0, possible)
    archive.table.flush()
    write_lines(archive, 6, possible)
    archive.table.flush()
    erase_lines(archive, possible)
    write_lines(archive, 12, possible)
    archive.maintain()
    erase_lines(archive, possible)
    archive.purge()
    write_lines(archive, 18, possible)
    archive.table.files.rewrite(archive.table.files.manifest.files, archive.table._lock)
    archive.table.flush()


def found_lines(folder: Path) -> Counter[str]:
    archive = logs_at(folder)
    try:
        return Counter(text for _, _, text, _ in lines(archive, EVERYTHING))
    finally:
        archive.close()


def span(number: int) -> Span:
    service = "secret" if number % 3 == 0 else "open"
    return Span(f"{number // 2 + 1:032x}", f"{number + 1:016x}", "", service, "run", (number % 2) * HOUR_NS + number, 5)


def write_spans(archive: SpanArchive, first: int, possible: Possible) -> None:
    spans = [span(number) for number in range(first, first + 6)]
    possible.adding([f"{one.service} {one.span_id}" for one in spans])
    archive.append(spans)
    possible.settled()


def erase_spans(archive: SpanArchive, possible: Possible) -> None:
    possible.erasing("secret")
    condition = SpanCondition(SpanField.SERVICE, Comparison.EQUAL, "secret")
    archive.delete(SpanQuery(-HOUR_NS, 10 * HOUR_NS, (condition,)), ())
    possible.settled()


def span_story(archive: SpanArchive, possible: Possible) -> None:
    write_spans(archive, 0, possible)
    archive.table.flush()
    write_spans(archive, 6, possible)
    erase_spans(archive, possible)
    archive.table.flush()
    write_spans(archive, 12, possible)
    archive.maintain()
    erase_spans(archive, possible)
    archive.purge()
    archive.table.files.rewrite(archive.table.files.manifest.files, archive.table._lock)


def found_spans(folder: Path) -> Counter[str]:
    archive = span_archive(folder)
    try:
        found = archive.search(SpanQuery(-HOUR_NS, 10 * HOUR_NS, limit=1000))
        spans = [one for summary in found for one in archive.trace(summary.trace_id)]
        return Counter(f"{one.service} {one.span_id}" for one in spans)
    finally:
        archive.close()


@pytest.mark.parametrize("loses_unsynced", [False, True])
def test_a_log_survives_a_power_cut_before_any_file_operation(tmp_path: Path, loses_unsynced: bool) -> None:
    _cut_everywhere(tmp_path, logs_at, log_story, found_lines, loses_unsynced)


@pytest.mark.parametrize("loses_unsynced", [False, True])
def test_spans_survive_a_power_cut_before_any_file_operation(tmp_path: Path, loses_unsynced: bool) -> None:
    def open_spans(folder: Path, disk: WatchedDisk) -> SpanArchive:
        return span_archive(folder, disk=disk)

    _cut_everywhere(tmp_path, open_spans, span_story, found_spans, loses_unsynced)


def _cut_everywhere(
    tmp_path: Path,
    opened: Callable[[Path, WatchedDisk], A],
    story: Callable[[A, Possible], None],
    found: Callable[[Path], Counter[str]],
    loses_unsynced: bool,
) -> None:
    """At every operation a copy is taken as a crash would leave it, opened, and compared."""
    folder, possible, copies = tmp_path / "data", Possible(), 0

    def look() -> None:
        nonlocal copies
        copies += 1
        copy = tmp_path / "copy"
        disk.copy_of_a_crash(folder, copy, loses_unsynced=loses_unsynced)
        content = found(copy)
        assert content in (possible.before, possible.after), f"operation {copies}"
        shutil.rmtree(copy)

    disk = WatchedDisk(look)
    story(opened(folder, disk), possible)
    assert copies > 30
    assert found(folder) == possible.before


def test_erased_lines_are_in_no_file_after_a_purge(tmp_path: Path) -> None:
    archive = log_archive(tmp_path)
    archive.append([LogBatch(labels({"app": "a"}), [1, 2], ["a secret zebra", "plain"])])
    archive.table.flush()
    archive.append([LogBatch(labels({"app": "a"}), [3], ["another secret zebra"])])
    assert archive.delete((), (LineFilter(FilterKind.CONTAINS, "zebra"),), 0, 10) == 2
    assert [text for _, _, text, _ in lines(archive, EVERYTHING)] == ["plain"]
    archive.purge()
    archive.close()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"zebra" not in path.read_bytes(), path
    assert found_lines(tmp_path) == Counter(["plain"])


def test_a_full_disk_refuses_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    log_disk, disk = TestDisk(), FullDisk(1 << 30)
    archive = log_archive(tmp_path, disk=disk, log_disk=log_disk)
    one = [LogBatch(labels({"app": "a"}), [1], ["first"])]
    archive.append(one)
    log_disk.full = True
    with pytest.raises(HarchError) as refused:
        archive.append([LogBatch(labels({"app": "a"}), [2], ["second"])])
    assert refused.value.code == "E0617"
    assert "first" in [text for _, _, text, _ in lines(archive, EVERYTHING)], "queries go on"
    log_disk.full = False
    disk.room = 10
    with pytest.raises((HarchError, OSError)):
        archive.table.flush()
    archive.close()
    disk.room = 1 << 30
    again = log_archive(tmp_path, disk=disk, log_disk=log_disk)
    assert "first" in [text for _, _, text, _ in lines(again, EVERYTHING)]
    again.table.flush()
    again.append([LogBatch(labels({"app": "a"}), [3], ["third"])])
    assert {"first", "third"} <= {text for _, _, text, _ in lines(again, EVERYTHING)}
    again.close()


def test_a_torn_end_of_the_log_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    archive = log_archive(tmp_path)
    archive.append([LogBatch(labels({"app": "a"}), [1], ["whole"])])
    archive.close()
    segment = max((tmp_path / "wal").glob("*.log"))
    segment.write_bytes(segment.read_bytes() + b"\x40\x00\x00\x00torn")
    again = log_archive(tmp_path)
    again.append([LogBatch(labels({"app": "a"}), [2], ["later"])])
    again.close()
    assert found_lines(tmp_path) == Counter(["whole", "later"])


def _thirty_lines(tmp_path: Path) -> tuple[Counter[str], Path]:
    archive = log_archive(tmp_path)
    for number in range(30):
        archive.append([LogBatch(labels({"app": "a"}), [number], [f"line {number} {'x' * 300}"])])
    archive.close()
    return found_lines(tmp_path), max((tmp_path / "wal").glob("*.log"))


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_flipped_bit_in_the_log_loses_no_line_and_is_said(tmp_path: Path, part: float) -> None:
    whole, segment = _thirty_lines(tmp_path)
    data = bytearray(segment.read_bytes())
    data[int(part * len(data))] ^= 4
    segment.write_bytes(data)
    archive = log_archive(tmp_path)
    facts = archive.facts()
    assert (facts["log_damaged_segments"], facts["log_lost_bytes"], facts["damaged_files"]) == ([1], 0, 1)
    with pytest.raises(HarchError) as unproven:
        archive.purge()
    assert unproven.value.code == "E0616"
    archive.close()
    assert found_lines(tmp_path) == whole


def test_damage_in_the_log_of_an_older_release_costs_only_what_it_hit(tmp_path: Path) -> None:
    """Without a guard. It was taken for a torn end, and all that followed was lost without a word."""
    whole, segment = _thirty_lines(tmp_path)
    guard_path(segment).unlink()
    data = bytearray(segment.read_bytes())
    data[data.index(b"line 3 ") + 50] ^= 4
    segment.write_bytes(data)
    archive = log_archive(tmp_path)
    facts = archive.facts()
    assert facts["log_damaged_segments"] == [1]
    assert facts["log_lost_bytes"] > 300
    archive.close()
    assert sum((whole - found_lines(tmp_path)).values()) == 1
    assert segment.with_suffix(".damaged").exists()


@pytest.mark.parametrize("suffix", [".parquet", ".index"])
def test_a_damaged_file_fails_one_query_and_is_set_aside(tmp_path: Path, suffix: str) -> None:
    archive = log_archive(tmp_path)
    for number in range(2):
        bodies = [f"{number} {place:05d} {place * 7919:x}" for place in range(500)]
        archive.append([LogBatch(labels({"app": "a"}), [number] * 500, bodies)])
        archive.table.flush()
    archive.close()
    path = min((tmp_path / "files").glob(f"*{suffix}"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3 if suffix == ".parquet" else 20] ^= 0xFF
    path.write_bytes(data)
    archive = log_archive(tmp_path)
    with pytest.raises(HarchError) as refused:
        lines(archive, EVERYTHING)
    assert refused.value.code == "E0613"
    assert len(lines(archive, EVERYTHING)) == 500, "the other file goes on"
    with pytest.raises(HarchError) as unproven:
        archive.purge()
    assert unproven.value.code == "E0616"
    archive.close()


def _flip(path: Path, rng: random.Random, places: range | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[rng.choice(places or range(len(data)))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(40))
def test_no_bit_of_a_file_of_lines_can_change_an_answer_without_a_word(tmp_path: Path, seed: int) -> None:
    archive = log_archive(tmp_path)
    bodies = [f"request-{place:06d}-done {place * 7919:x}" for place in range(400)]
    archive.append([LogBatch(labels({"app": "a"}), list(range(400)), bodies)])
    archive.table.flush()
    needle = LogRequest((), -HOUR_NS, HOUR_NS, (LineFilter(FilterKind.CONTAINS, "request-000123-done"),))
    whole = lines(archive, EVERYTHING), lines(archive, needle)
    archive.close()
    rng = random.Random(seed)
    path = min((tmp_path / "files").glob("*.parquet" if seed % 2 else "*.index"))
    size = path.stat().st_size
    _flip(path, rng, range(size - 1000, size) if seed % 4 == 1 else None)  # the footer of Parquet has no checksum
    archive = log_archive(tmp_path)
    for request, expected in zip((needle, EVERYTHING), reversed(whole), strict=True):
        try:
            assert lines(archive, request) == expected
        except HarchError as refused:
            assert refused.code == "E0613"  # noqa: PT017 - or it is equal
            break
    archive.close()


@pytest.mark.parametrize("seed", range(30))
def test_no_bit_of_a_file_of_spans_can_change_an_answer_without_a_word(tmp_path: Path, seed: int) -> None:
    archive = span_archive(tmp_path)
    archive.append([span(number) for number in range(200)])
    archive.table.flush()
    archive.close()
    whole = found_spans(tmp_path)
    rng = random.Random(seed)
    path = min((tmp_path / "files").glob("*.parquet" if seed % 2 else "*.index"))
    size = path.stat().st_size
    if seed % 5 == 0:
        path.write_bytes(path.read_bytes()[: rng.randrange(size)])
    else:
        _flip(path, rng, range(size - 1500, size) if seed % 4 == 1 else None)
    try:
        assert found_spans(tmp_path) == whole
    except HarchError as refused:
        assert refused.code == "E0613"  # noqa: PT017 - or it is equal


def test_a_changed_list_of_files_opens_nothing(tmp_path: Path) -> None:
    archive = log_archive(tmp_path)
    archive.append([LogBatch(labels({"app": "a"}), [1], ["x"])])
    archive.table.flush()
    archive.close()
    manifest = tmp_path / "files.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(HarchError) as refused:
        log_archive(tmp_path)
    assert refused.value.code == "E0613"
