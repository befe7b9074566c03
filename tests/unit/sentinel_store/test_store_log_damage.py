"""A damaged log: what the guard can restore is restored, what follows the rest is read, and all of it is said."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.model.labels import labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.database import TenantDatabase
from harch.sentinel.store.wal.salvage import BLOCK, DAMAGED_FILES_MAX, damaged_files, guard_path
from harch.sentinel.store.wal.segments import MAGIC, frame, segment_path
from unit.sentinel_store.stores import Content, everything, matcher, open_database

SERIES = 20


def filled(folder: Path, *, requests: int = 30, series: int = SERIES) -> tuple[TenantDatabase, Path]:
    """A database whose newest segment holds everything, and that segment."""
    database = open_database(folder)
    rng = random.Random(requests)
    for request in range(requests):
        database.append(
            [
                SeriesBatch(
                    labels({"__name__": f"m{number}"}),
                    [request * 10 + place for place in range(10)],
                    [rng.random() for _ in range(10)],
                )
                for number in range(series)
            ]
        )
    return database, segment_path(folder / "wal", 1)


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)


def samples(content: Content) -> int:
    return sum(len(held) for held in content.values())


def is_part_of(content: Content, whole: Content) -> bool:
    return all(held.items() <= whole[name].items() for name, held in content.items())


@given(place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
@settings(max_examples=30)
def test_one_flipped_bit_anywhere_in_the_newest_segment_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    database, path = filled(folder)
    assert samples(everything(database)) == 6_000
    flip(path, place, bit)
    damaged = path.read_bytes()
    again = open_database(folder)
    assert everything(again) == everything(database)
    assert [(one.number, one.is_restored) for one in again.replayed.damaged] == [(1, True)]
    assert again.facts()["damaged_files"] == 1
    assert path.with_suffix(".damaged").read_bytes() == damaged, "it is kept as it was"
    assert open_database(folder).replayed.damaged == [], "the segment is as it should be from now on"


@given(cut=st.integers(1, 3 * BLOCK))
@settings(max_examples=25)
def test_a_lost_end_of_what_was_acknowledged_is_restored(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("short")
    database, path = filled(folder)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - cut)
    again = open_database(folder)
    assert everything(again) == everything(database)
    assert [one.is_restored for one in again.replayed.damaged] == [True]
    assert path.stat().st_size == size


@pytest.mark.parametrize("sectors", [1, 2, 3])
def test_unreadable_sectors_are_restored(tmp_path: Path, sectors: int) -> None:
    database, path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    data[2 * BLOCK : (2 + sectors) * BLOCK] = bytes(sectors * BLOCK)
    path.write_bytes(data)
    again = open_database(tmp_path)
    assert everything(again) == everything(database)
    assert [one.is_restored for one in again.replayed.damaged] == [True]


def test_two_damages_far_apart_are_both_restored(tmp_path: Path) -> None:
    database, path = filled(tmp_path)
    flip(path, BLOCK + 100)
    flip(path, 4 * BLOCK + 100)  # another lane
    again = open_database(tmp_path)
    assert everything(again) == everything(database)
    assert len(again.replayed.damaged) == 1


@given(place=st.integers(0, 1 << 20), length=st.integers(1, 6 * BLOCK))
@settings(max_examples=40)
def test_whatever_is_damaged_no_sample_comes_back_wrong_and_it_is_said(
    tmp_path_factory: pytest.TempPathFactory, place: int, length: int
) -> None:
    folder = tmp_path_factory.mktemp("rubbish")
    database, path = filled(folder, requests=20)
    database.append([SeriesBatch(labels({"__name__": "last"}), [5], [1.0])])
    data = bytearray(path.read_bytes())
    place %= len(data)
    chance = random.Random(place)
    for at in range(place, min(place + length, len(data))):
        data[at] ^= chance.randint(1, 255)  # never 0: every byte differs from what was written
    path.write_bytes(data)
    again = open_database(folder)
    assert is_part_of(everything(again), everything(database))
    assert again.replayed.damaged
    again.append([SeriesBatch(labels({"__name__": "new"}), [7], [1.0])])
    assert samples(everything(open_database(folder))) == samples(everything(again))


def test_behind_a_gap_only_series_that_are_named_again_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Values are differences from the one before: behind a gap they would be wrong, and nobody would know."""
    database, path = filled(tmp_path)
    held = samples(everything(database))
    for number in range(5):
        database.append([SeriesBatch(labels({"__name__": f"late{number}"}), [1, 2], [1.5, 2.5])])
    guard_path(path).unlink()  # as in a log of an older release
    flip(path, len(MAGIC) + 20)  # in the first of all frames
    with caplog.at_level(logging.ERROR):
        again = open_database(tmp_path)
    found = everything(again)
    assert is_part_of(found, everything(database))
    assert {name for name, _ in found.items()} == {labels({"__name__": f"late{number}"}) for number in range(5)}
    assert 0 < again.replayed.skipped <= held
    assert "E0619" in caplog.text
    assert path.with_suffix(".damaged").exists()


@given(place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
@settings(max_examples=30)
def test_damage_in_the_middle_is_no_torn_end_without_a_guard_either(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("unguarded")
    database, path = filled(folder, requests=8)
    guard_path(path).unlink()
    size = path.stat().st_size
    last = len(everything(database))
    flip(path, place % (size - 400), bit)
    again = open_database(folder)
    assert [one.number for one in again.replayed.damaged] == [1]
    assert path.stat().st_size == size, "nothing is cut off"
    assert is_part_of(everything(again), everything(database))
    assert last == SERIES


def test_zeros_at_the_end_are_a_torn_end(tmp_path: Path) -> None:
    database, path = filled(tmp_path)
    guard_path(path).unlink()
    with path.open("ab") as file:  # a power cut: the length of the file came to the disk, what was written did not
        file.write(bytes(10_000))
    again = open_database(tmp_path)
    assert (again.replayed.torn_bytes, again.replayed.damaged) == (10_000, [])
    assert everything(again) == everything(database)


def test_a_frame_of_full_length_with_a_wrong_checksum_is_no_torn_end(tmp_path: Path) -> None:
    _, path = filled(tmp_path)
    guard_path(path).unlink()
    flip(path, -5)
    assert [one.number for one in open_database(tmp_path).replayed.damaged] == [1]


def test_a_segment_that_is_gone_is_missed(tmp_path: Path) -> None:
    database, path = filled(tmp_path)
    database._journal.rotate()
    database.append([SeriesBatch(labels({"__name__": "later"}), [1], [1.0])])
    path.unlink()
    again = open_database(tmp_path)
    assert [(one.number, one.is_restored) for one in again.replayed.damaged] == [(1, False)]
    assert samples(everything(again)) == 1


def test_a_damaged_guard_costs_nothing_and_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database, path = filled(tmp_path)
    flip(guard_path(path), 10)
    again = open_database(tmp_path)
    assert everything(again) == everything(database)
    assert "00000001.guard is damaged" in caplog.text


@pytest.mark.parametrize("left", [0, 10_000])
def test_a_guard_that_a_crash_left_empty_is_no_damage(
    tmp_path: Path, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    database, path = filled(tmp_path)
    guard_path(path).write_bytes(bytes(left))
    assert everything(open_database(tmp_path)) == everything(database)
    assert caplog.text == ""


def test_guards_go_with_their_segments(tmp_path: Path) -> None:
    database, path = filled(tmp_path)
    database.flush()
    assert not path.exists()
    assert not guard_path(path).exists()
    assert open_database(tmp_path).replayed.damaged == []


def test_an_erasure_behind_a_gap_is_in_force(tmp_path: Path) -> None:
    database, path = filled(tmp_path)
    database.append([SeriesBatch(labels({"__name__": "secret"}), [1, 2], [1.0, 2.0])])
    database._journal.rotate()
    database.append([SeriesBatch(labels({"__name__": "other"}), [1], [1.0])])
    second = segment_path(tmp_path / "wal", 2)
    size = second.stat().st_size
    database.delete([matcher("__name__", "secret")], 0, 10)
    guard_path(second).unlink()
    flip(second, size - 1)
    found = everything(open_database(tmp_path))
    assert labels({"__name__": "secret"}) not in found
    assert path.exists()


def test_a_purge_does_not_vouch_for_a_damaged_log(tmp_path: Path) -> None:
    _, path = filled(tmp_path)
    flip(path, 3000)
    again = open_database(tmp_path)
    again.delete([matcher("__name__", "m1")], 0, 1000)
    with pytest.raises(HarchError) as refused:
        again.purge()
    assert refused.value.code == "E0616"
    path.with_suffix(".damaged").unlink()
    again.purge()


def test_a_tenant_cannot_write_a_frame_into_its_samples(tmp_path: Path) -> None:
    """Labels come from strangers: one that holds a whole frame is not taken for one when the disk fails around it."""
    payload = bytes([1, 0])
    forged = (frame(memoryview(payload)) + payload).decode("latin-1")
    database, path = filled(tmp_path)
    database.append([SeriesBatch(labels({"__name__": "m", "evil": forged * 3}), [1], [1.0])])
    database.append([SeriesBatch(labels({"__name__": "last"}), [1], [1.0])])
    guard_path(path).unlink()
    flip(path, path.read_bytes().rindex(b"evil") - 10)
    found = everything(open_database(tmp_path))
    assert is_part_of(found, everything(database))
    assert labels({"__name__": "last"}) in found


@pytest.mark.parametrize("before", [9, 2 * DAMAGED_FILES_MAX])
def test_files_that_were_set_aside_are_bounded(tmp_path: Path, before: int) -> None:
    _, path = filled(tmp_path)
    folder = path.parent
    for number in range(100, 100 + before):
        (folder / f"{number:08d}.damaged").write_bytes(b"old")
    flip(path, 3000)
    open_database(tmp_path)
    kept = damaged_files(folder)
    assert len(kept) == min(before + 1, DAMAGED_FILES_MAX)
    assert kept[0].name == "00000001.damaged", "what was set aside last stays"


def test_values_that_were_restored_are_equal_in_every_bit(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    words = np.array([0x7FF0000000000002, 0x8000000000000000, 0x7FF8000000000001, 1], np.uint64).view(np.float64)
    database.append([SeriesBatch(labels({"__name__": "odd"}), [1, 2, 3, 4], words.tolist())])
    flip(segment_path(tmp_path / "wal", 1), 30, 3)
    assert everything(open_database(tmp_path)) == everything(database)
