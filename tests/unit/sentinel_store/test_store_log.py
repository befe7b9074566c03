"""The log: what was acknowledged comes back after a crash, bit by bit; torn ends, full disks, cuts, deletions."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.model.labels import MetricMetadata, MetricType, labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.store.database import TenantDatabase
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.wal.salvage import damaged_files
from harch.sentinel.store.wal.segments import frame, segment_numbers, segment_path
from harch.sentinel.store.write_request import request_of
from unit.sentinel_store.remote_write_bodies import (
    V2,
    double,
    histogram,
    label,
    number,
    packed,
    part,
    sample,
    series_v1,
)
from unit.sentinel_store.stores import ALL_TIMES, ANY_AGE, Content, TestDisk, everything, matcher, open_database

UP = (("__name__", "up"), ("job", "a"))
ONE = 0x3FF0000000000000


def crashed(folder: Path, *, limits: TenantLimits = ANY_AGE, disk: TestDisk | None = None) -> TenantDatabase:
    """Opens what another database, which was never closed, has left."""
    return open_database(folder, limits=limits, disk=disk)


def write(database: TenantDatabase, *samples: tuple[float, int], name: str = "up") -> int:
    return database.append(
        [SeriesBatch(labels({"__name__": name}), [t for _, t in samples], [v for v, _ in samples])]
    ).samples


words = st.integers(0, 2**64 - 1)
floats = st.floats().map(lambda value: int(np.float64(value).view(np.uint64)))
decimals = st.integers(-(10**7), 10**7).map(lambda value: int(np.float64(value / 100).view(np.uint64)))
columns = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(-(2**62), 2**62) | st.integers(0, 2000),
        words | floats | decimals,
        st.integers(-(2**62), 2**62) | st.just(0),
    ),
    max_size=60,
)


@given(st.lists(columns, max_size=4), st.booleans())
@settings(max_examples=40)
def test_every_bit_survives_a_crash(
    tmp_path_factory: pytest.TempPathFactory, requests: list[list[tuple[int, int, int, int]]], with_starts: bool
) -> None:
    folder = tmp_path_factory.mktemp("bits")
    database = open_database(folder)
    for request in requests:
        batches = [
            SeriesBatch(
                labels({"__name__": f"m{series}"}),
                [time],
                [float(np.uint64(word).view(np.float64))],
                [start] if with_starts else (),
            )
            for series, time, word, start in request
        ]
        database.append(batches)
    again = crashed(folder)
    assert everything(again) == everything(database)
    starts = [store.select([], *ALL_TIMES, limit=1 << 30).samples.starts for store in (database, again)]
    assert (starts[0] is None) == (starts[1] is None)
    if starts[0] is not None:
        assert starts[0].tolist() == starts[1].tolist()


def test_everything_but_samples_survives_a_crash_too(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    exemplar = part(3, label("trace_id", "abc") + double(2, 0.5) + number(3, 900))
    rare = part(1, label("__name__", "h") + part(4, histogram(5, start=3)) + part(4, histogram(6, float_counts=True)))
    database.write_v1(packed(series_v1(UP, [(1.0, 1)], exemplar) + rare))
    database.write_v2(V2().add(UP, sample(1.0, 2), metadata=(1, "Help.", "s")).body())
    database._journal.rotate()  # metadata is said again in each segment
    write(database, (1.0, 1), name="later")
    again = crashed(tmp_path)
    assert everything(again) == everything(database)
    before, after = (store.select([], *ALL_TIMES, limit=100).samples for store in (database, again))
    assert list(after.histograms) == list(before.histograms)
    assert len(after.histograms) == 2
    assert again.exemplars([], *ALL_TIMES) == database.exemplars([], *ALL_TIMES)
    assert again.metadata() == {"up": MetricMetadata(MetricType.COUNTER, "s", "Help.")}
    segment_path(tmp_path / "wal", 1).unlink()
    assert crashed(tmp_path).metadata() == again.metadata()


@given(torn=st.integers(1, 200))
@settings(max_examples=25)
def test_a_torn_end_costs_only_what_was_torn(tmp_path_factory: pytest.TempPathFactory, torn: int) -> None:
    folder = tmp_path_factory.mktemp("torn")
    database = open_database(folder)
    for time in range(12):
        write(database, (float(time), time), (float(time), time), name=f"m{time % 3}")
    whole, path = everything(database), segment_path(folder / "wal", 1)
    payload = bytes(range(200))
    with path.open("ab") as file:  # a part of a write that nobody was told of
        file.write((frame(memoryview(payload)) + payload)[:torn])
    again = crashed(folder)
    assert everything(again) == whole
    assert (again.replayed.torn_bytes, again.replayed.damaged) == (torn, [])
    assert damaged_files(folder / "wal") == []
    write(again, (1.0, 1000), name="m0")
    assert everything(crashed(folder))[labels({"__name__": "m0"})] == whole[labels({"__name__": "m0"})] | {1000: ONE}


def test_a_full_disk_refuses_writes_answers_queries_and_recovers(tmp_path: Path) -> None:
    disk = TestDisk()
    database = open_database(tmp_path, disk=disk)
    write(database, (1.0, 1))
    disk.full = True
    for time in (2, 3):
        with pytest.raises(HarchError, match="No space left") as refused:
            write(database, (1.0, time))
        assert (refused.value.code, refused.value.kind.status) == ("E0617", 503)
    assert 1 in everything(database)[labels({"__name__": "up"})]
    disk.full = False
    with pytest.raises(HarchError):  # the disk is left alone for a moment
        write(database, (1.0, 3))
    database._clock.jump(1.1)
    assert write(database, (1.0, 3)) == 1
    assert write(database, (1.0, 2)) == 1  # was in memory already: acknowledged only because it is on disk by now
    assert everything(crashed(tmp_path)) == {labels({"__name__": "up"}): {1: ONE, 2: ONE, 3: ONE}}


def test_requests_that_wait_together_share_a_sync(tmp_path: Path) -> None:
    class SlowDisk(TestDisk):
        def __init__(self) -> None:
            super().__init__()
            self.writes = 0
            self.first = threading.Event()
            self.go_on = threading.Event()

        def write(self, file: int, parts: list[memoryview | bytes], offset: int) -> None:
            self.writes += 1
            self.first.set()
            assert self.go_on.wait(60)
            super().write(file, parts, offset)

    disk = SlowDisk()
    database = open_database(tmp_path, disk=disk)
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda time=time: done.append(write(database, (1.0, time), name=f"m{time}")))
        for time in range(8)
    ]
    threads[0].start()
    assert disk.first.wait(60)
    for thread in threads[1:]:
        thread.start()
    while database.head.sample_count < 8:  # all are in memory, none is acknowledged
        threads[1].join(0.01)
    assert done == []
    disk.go_on.set()
    for thread in threads:
        thread.join(60)
    assert done == [1] * 8
    assert disk.writes == 2
    assert len(everything(crashed(tmp_path))) == 8


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.lists(st.integers(0, 60), min_size=1, max_size=40)),
        st.tuples(st.just("flush"), st.integers(0, 60), st.just([])),
        st.tuples(st.just("crash"), st.just(0), st.just([])),
        st.tuples(st.just("fail"), st.integers(0, 60), st.just([])),
        st.tuples(st.just("delete"), st.integers(0, 60), st.just([])),
    ),
    max_size=12,
)


@given(steps)
@settings(max_examples=25)
def test_head_log_and_blocks_hold_together(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, int, list[int]]]
) -> None:
    """Whatever is flushed, cut and not written, deleted or crashed between: a reader sees what was acknowledged."""
    folder = tmp_path_factory.mktemp("story")
    database, expected = open_database(folder), Content()
    for action, until, times in story:
        if action == "write":
            name = labels({"__name__": f"m{until}"})
            write(database, *((1.0, time * 3_600_000) for time in times), name=f"m{until}")
            expected.setdefault(name, {}).update({time * 3_600_000: ONE for time in times})
        elif action == "flush":
            database._flush(until * 3_600_000)
        elif action == "crash":
            database = crashed(folder)
        elif action == "fail":  # as if the disk had been full: cut, but not forgotten
            database._cut(until * 3_600_000)
        else:
            database.delete([matcher("__name__", "m0")], until * 3_600_000, (until + 10) * 3_600_000)
            held = expected.get(labels({"__name__": "m0"}), {})
            for time in [time for time in held if until * 3_600_000 <= time <= (until + 10) * 3_600_000]:
                del held[time]
        assert everything(database) == {name: samples for name, samples in expected.items() if samples}
    assert everything(crashed(folder)) == {name: samples for name, samples in expected.items() if samples}


def test_what_was_erased_leaves_the_disk_with_purge(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    write(database, *((1.0, time) for time in range(100)), name="secret_metric")
    write(database, (1.0, 5), name="other")
    database.delete([matcher("__name__", "secret_metric")], *ALL_TIMES)
    assert everything(crashed(tmp_path)) == everything(database) == {labels({"__name__": "other"}): {5: ONE}}
    database.purge()
    written = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    assert b"secret_metric" not in written
    assert everything(crashed(tmp_path)) == {labels({"__name__": "other"}): {5: ONE}}


def test_segments_go_when_their_samples_are_in_blocks(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    hour = 3_600_000
    for time in range(0, 10 * hour, hour):
        write(database, (1.0, time))
        database._journal.rotate()
    database._flush(4 * hour)
    assert min(segment_numbers(tmp_path / "wal")) == 6  # the first five hold nothing newer
    database._flush(10 * hour)
    assert len(segment_numbers(tmp_path / "wal")) <= 2
    assert len(everything(crashed(tmp_path))[labels({"__name__": "up"})]) == 10


def test_memory_that_runs_short_is_flushed_and_nothing_is_lost(tmp_path: Path) -> None:
    limits = TenantLimits(out_of_order_ms=None, samples_in_memory_max=1 << 12, series_max=64)
    database = open_database(tmp_path, limits=limits)
    refused = 0
    for round_ in range(40):
        batch = SeriesBatch(labels({"__name__": "up"}), range(round_ * 500, round_ * 500 + 500), [1.0] * 500)
        for _ in range(10_000):  # as senders do
            try:
                assert database.append([batch]).samples == 500
                break
            except HarchError as full:
                refused += full.code == "E0612"
                database.maintain()
    assert refused < 10_000
    assert len(everything(database)[labels({"__name__": "up"})]) == 20_000
    database.close()


def test_series_that_fell_silent_make_room_for_others(tmp_path: Path) -> None:
    limits = TenantLimits(series_max=20, out_of_order_ms=None, samples_in_memory_max=1 << 12)
    database = open_database(tmp_path, limits=limits)
    hour = 3_600_000
    for generation in range(5):  # each of ten series; all fifty at once would be too many
        for place in range(10):
            assert write(database, (1.0, generation * 5 * hour), name=f"m{generation}_{place}") == 1
        write(database, (1.0, (generation * 5 + 4) * hour), name="always")
        database._flush((generation * 5 + 3) * hour)
        assert database.head.series_count == 1
    assert len(everything(database)) == 51
    assert everything(crashed(tmp_path, limits=limits)) == everything(database)


def test_late_samples_that_no_memory_can_merge_outlive_the_cut_and_a_crash(tmp_path: Path) -> None:
    """They stay in memory behind a log that is kept, while all others go into a block."""
    limits = TenantLimits(out_of_order_ms=None, samples_in_memory_max=2048, series_max=16)
    database = open_database(tmp_path, limits=limits)
    write(database, *((1.0, time) for time in range(0, 640, 2)), name="late")
    write(database, (1.0, 1), (1.0, 601), name="late")  # to be merged by writing all of the series anew
    place = 0
    while True:  # fills what is left, behind the database's back: nothing is flushed meanwhile
        batch = SeriesBatch(labels({"__name__": "other"}), [place], [1.0])
        if database.head.append(request_of([batch], limits), now_ms=0).refused:
            break
        place += 1
    before = everything(database)
    database._flush(1 << 40)
    assert everything(database) == before
    assert database.head.sample_count == 322
    assert everything(crashed(tmp_path, limits=limits)) == before
    database._flush(1 << 40)  # there is room by now
    assert database.head.sample_count == 0
    assert everything(crashed(tmp_path, limits=limits)) == before
