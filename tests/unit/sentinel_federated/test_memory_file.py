"""What was told abroad is remembered over restarts and crashes, or nothing is told any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.sentinel.federated.disclosure import ledger_file as module
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.disclosure.ledger_file import MemoryFile

SERIES = [(bytes([number]) * 16, bytes([number]) * 16) for number in range(10)]


def admit(memory: Memory, members: range) -> bool:
    bits = memory.bits("acme/up", SERIES)
    assert bits is not None
    return memory.admit("acme/up", {1: sum(1 << bits[one] for one in members)}, least=5, now_s=0.0)


def test_what_was_told_is_known_after_a_restart(tmp_path: Path) -> None:
    first = MemoryFile(tmp_path / "told")
    assert admit(first.memory, range(5))
    first.keep()
    first.close()
    second = MemoryFile(tmp_path / "told")
    assert not admit(second.memory, range(6))  # the difference would be one source
    assert admit(second.memory, range(5))


def test_a_record_that_was_cut_off_is_dropped_and_the_next_one_follows_the_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "told"
    first = MemoryFile(path)
    assert admit(first.memory, range(5))
    first.keep()
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole + whole[:length])
        again = MemoryFile(path)
        assert path.read_bytes() == whole
        again.close()


def two_records(path: Path) -> bytes:
    first = MemoryFile(path)
    for members in (range(5), range(5, 10)):
        assert admit(first.memory, members)
        first.keep()
    first.close()
    return path.read_bytes()


@pytest.mark.parametrize("place", [0, 5, 12, -1, -9])
def test_a_flipped_bit_is_put_right_and_said(tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "told"
    whole = two_records(path)
    broken = bytearray(whole)
    broken[place] ^= 4
    path.write_bytes(broken)
    again = MemoryFile(path)
    assert path.read_bytes() == whole
    assert not admit(again.memory, range(6))
    assert "E0698" in caplog.text
    assert (tmp_path / "told.damaged").read_bytes() == broken


@pytest.mark.parametrize("cut", [1, 30])
def test_a_lost_end_of_what_was_told_is_restored(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "told"
    whole = two_records(path)
    path.write_bytes(whole[:-cut])
    MemoryFile(path).close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("place", [12, -1])
def test_damage_that_cannot_be_put_right_ends_the_telling(tmp_path: Path, place: int) -> None:
    """Also in the last record: without its guard nobody knows whether its answer left."""
    path = tmp_path / "told"
    broken = bytearray(two_records(path))
    path.with_suffix(".guard").unlink()
    broken[place] ^= 0xFF
    path.write_bytes(broken)
    with pytest.raises(HarchError, match="damaged at byte") as damaged:
        MemoryFile(path)
    assert damaged.value.code == "E0698"


def test_a_large_file_is_written_anew_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "told"
    first = MemoryFile(path)
    assert admit(first.memory, range(5))
    first.keep()
    monkeypatch.setattr(module, "REWRITE_BYTES", 0)
    assert admit(first.memory, range(5, 10))
    first.keep()
    first.close()
    second = MemoryFile(path)
    assert not admit(second.memory, range(1))
    assert not admit(second.memory, range(4, 10))
    assert admit(second.memory, range(10))


def test_a_disk_that_cannot_be_written_keeps_the_answer_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = MemoryFile(tmp_path / "told")
    assert admit(first.memory, range(5))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "write", full)
        for _ in range(2):
            with pytest.raises(HarchError, match="No space left"):
                first.keep()
    first.keep()  # there is room again: all of it is written
    first.close()
    assert not admit(MemoryFile(tmp_path / "told").memory, range(6))
