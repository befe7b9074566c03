"""A log gives back exactly what it kept, whatever was written, rotated away or refused by the disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harch.execution import spool
from harch.execution.spool import TaskLogSpool, offset_since, read_spool

pieces = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.booleans()), max_size=30)


@given(pieces, st.integers(1, 16), st.integers(1, 4), st.integers(1, 50))
def test_every_kept_byte_is_found_at_its_offset(written, segment_bytes, segments_max, bytes_max):
    with tempfile.TemporaryDirectory() as folder:
        log = TaskLogSpool(folder, segment_bytes, segments_max)
        everything = b""
        for data, disk_full in written:
            if disk_full:
                kept_write, spool.os.write = spool.os.write, _no_space
                try:
                    log.write(data)
                finally:
                    spool.os.write = kept_write
            else:
                log.write(data)
            everything += data
        assert log.offset == len(everything)
        assert log.tail == everything[-spool.TAIL_BYTES :]
        position, read = 0, 0
        while True:
            offset, data, end = read_spool(folder, position, bytes_max)
            assert position <= offset or not data
            assert everything[offset : offset + len(data)] == data
            if not data:
                break
            position = offset + len(data)
            read += len(data)
        assert end <= len(everything)
        assert read <= segment_bytes * segments_max
        assert read + log.dropped_bytes >= min(len(everything), 1) or read == 0


@given(st.binary(min_size=1, max_size=200), st.integers(1, 300))
def test_a_negative_offset_counts_from_the_end(data, back):
    with tempfile.TemporaryDirectory() as folder:
        log = TaskLogSpool(folder, 1000, 2)
        log.write(data)
        start = max(0, len(data) - back)
        assert read_spool(folder, -back, 1000) == (start, data[start:], len(data))


def test_what_was_not_dropped_after_a_gap_is_still_read(tmp_path):
    log = TaskLogSpool(str(tmp_path), 100, 4)
    log.write(b"before")
    original, spool.os.write = spool.os.write, _no_space
    try:
        log.write(b"gone")
    finally:
        spool.os.write = original
    log.write(b"after")
    assert log.dropped_bytes == 4
    assert read_spool(str(tmp_path), 0, 100) == (0, b"before", 15)
    assert read_spool(str(tmp_path), 6, 100) == (10, b"after", 15)


def _all(folder: str) -> dict[int, bytes]:
    found, position = {}, 0
    while True:
        offset, data, end = read_spool(folder, position, 50)
        if not data:
            assert offset == end
            return found
        found[offset] = data
        position = offset + len(data)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_no_bit_of_a_log_can_change_without_being_left_out(place, bit):
    with tempfile.TemporaryDirectory() as folder:
        log = TaskLogSpool(folder, 200, 4)
        everything = b""
        for number in range(30):
            data = b"line %d of this task\n" % number
            log.write(data)
            everything += data
        files = sorted(Path(folder).iterdir())
        path = files[place % len(files)]
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= 1 << bit
        path.write_bytes(content)
        kept = sum(len(data) for data in _all(folder).values())
        for offset, data in _all(folder).items():
            assert everything[offset : offset + len(data)] == data
        assert kept >= len(everything) - 2 * 24


@given(st.integers(0, 199))
def test_output_that_is_cut_off_is_known_to_be_missing(left):
    with tempfile.TemporaryDirectory() as folder:
        log = TaskLogSpool(folder, 400, 4)
        for number in range(10):
            log.write(b"line %d of this task\n" % number)
        os.truncate(os.path.join(folder, f"{0:020d}"), left)
        offset, data, end = read_spool(folder, 0, 1000)
        assert (offset, end) == (0 if data else 200, 200)
        assert data == b"".join(b"line %d of this task\n" % number for number in range(left // 20))
        assert read_spool(folder, len(data), 1000) == (200, b"", 200)


def test_damage_is_said_once(tmp_path, caplog):
    log = TaskLogSpool(str(tmp_path), 400, 4)
    for number in range(10):
        log.write(b"line %d of this task\n" % number)
    path = tmp_path / f"{0:020d}"
    path.write_bytes(path.read_bytes().replace(b"line 3", b"wine 3"))
    for _ in range(3):
        assert b"wine" not in read_spool(str(tmp_path), 0, 1000)[1]
    assert caplog.text.count("E1030: 20 bytes of output from byte 60") == 1


def test_a_missing_log_is_empty(tmp_path):
    assert read_spool(str(tmp_path / "none"), 5, 10) == (0, b"", 0)


def _no_space(*_):
    raise OSError(28, "No space left on device")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


waits = st.sampled_from([0.0, 0.3, 0.9, 1.0, 7.0, -20.0])


@given(st.lists(st.tuples(waits, st.binary(min_size=1, max_size=9)), max_size=40), st.integers(4, 40), st.data())
def test_output_since_a_time_lacks_nothing_of_it_and_at_most_a_second_more_stands_before_it(
    written, segment_bytes, data
):
    """A clock that is set back may give more, never less."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        log = TaskLogSpool(folder, segment_bytes, 4, clock)
        times = []  # of each byte
        for wait_s, piece in written:
            clock.now_s += wait_s
            log.write(piece)
            times += [clock.now_s] * len(piece)
        since_s = data.draw(st.floats(min(900.0, clock.now_s), clock.now_s + 10))
        start = offset_since(folder, since_s)
        oldest = next(iter(sorted(int(name) for name in os.listdir(folder) if name.isdecimal())), 0)
        wanted = [at for at, time_s in enumerate(times) if time_s >= since_s and at >= oldest]
        assert start <= (wanted[0] if wanted else len(times))
        if times == sorted(times):
            assert all(time_s >= since_s - 1.0 for time_s in times[start:])


def test_times_go_with_their_segment(tmp_path):
    clock = Clock()
    log = TaskLogSpool(str(tmp_path), 10, 2, clock)
    for _ in range(20):
        clock.now_s += 60
        log.write(b"12345")
    assert sum(name.name.endswith(".times") for name in tmp_path.iterdir()) == 2
    assert offset_since(str(tmp_path), clock.now_s - 30) == 95
    assert offset_since(str(tmp_path), 0.0) == 80


def test_a_damaged_time_gives_more_output_not_less(tmp_path):
    clock = Clock()
    log = TaskLogSpool(str(tmp_path), 1000, 2, clock)
    for _ in range(5):
        clock.now_s += 60
        log.write(b"12345")
    path = next(tmp_path.glob("*.times"))
    content = bytearray(path.read_bytes())
    content[3 * 20] ^= 1  # the fourth
    path.write_bytes(bytes(content))
    assert offset_since(str(tmp_path), clock.now_s - 90) == 10
    assert offset_since(str(tmp_path), clock.now_s) == 10


def test_output_without_times_is_as_new_as_its_segment(tmp_path):
    log = TaskLogSpool(str(tmp_path), 10, 3, Clock())
    log.write(b"1234567890abcde")
    for path in tmp_path.glob("*.times"):
        path.unlink()
    first = tmp_path / f"{0:020d}"
    os.utime(first, (5_000, 5_000))
    os.utime(tmp_path / f"{10:020d}", (9_000, 9_000))
    assert offset_since(str(tmp_path), 8_000) == 10
    assert offset_since(str(tmp_path), 4_000) == 0
    assert offset_since(str(tmp_path), 10_000) == 15


def test_nothing_was_written_yet(tmp_path):
    assert offset_since(str(tmp_path / "absent"), 0.0) == 0
