"""What was told abroad is remembered over restarts and crashes, or nothing is told any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.sentinel.federated import memory_file as module
from harch.sentinel.federated.memory_file import MemoryFile
from harch.sentinel.federated.owning.memory import Memory

SERIES = [(bytes([number]) * 16, bytes([number]) * 16) for number in range(10)]


def tell(memory: Memory, members: range) -> bool:
    bits = memory.bits("acme/up", SERIES)
    assert bits is not None
    return memory.tell("acme/up", {1: sum(1 << bits[one] for one in members)}, least=5, now_s=0.0)


def test_what_was_told_is_known_after_a_restart(tmp_path: Path) -> None:
    first = MemoryFile(tmp_path / "told")
    assert tell(first.memory, range(5))
    first.keep()
    first.close()
    second = MemoryFile(tmp_path / "told")
    assert not tell(second.memory, range(6))  # the difference would be one source
    assert tell(second.memory, range(5))


def test_a_record_that_was_cut_off_is_dropped_and_the_next_one_follows_the_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "told"
    first = MemoryFile(path)
    assert tell(first.memory, range(5))
    first.keep()
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole + whole[:length])
        again = MemoryFile(path)
        assert path.read_bytes() == whole
        again.close()


def test_damage_anywhere_else_ends_the_telling(tmp_path: Path) -> None:
    path = tmp_path / "told"
    first = MemoryFile(path)
    for members in (range(5), range(5, 10)):
        assert tell(first.memory, members)
        first.keep()
    broken = bytearray(path.read_bytes())
    broken[12] ^= 0xFF
    path.write_bytes(broken)
    with pytest.raises(HarchError, match="damaged at byte 0") as damaged:
        MemoryFile(path)
    assert damaged.value.code == "E0698"


def test_a_large_file_is_written_anew_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "told"
    first = MemoryFile(path)
    assert tell(first.memory, range(5))
    first.keep()
    monkeypatch.setattr(module, "REWRITE_BYTES", 0)
    assert tell(first.memory, range(5, 10))
    first.keep()
    first.close()
    second = MemoryFile(path)
    assert not tell(second.memory, range(1))
    assert not tell(second.memory, range(4, 10))
    assert tell(second.memory, range(10))


def test_a_disk_that_cannot_be_written_keeps_the_answer_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = MemoryFile(tmp_path / "told")
    assert tell(first.memory, range(5))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "write", full)
        for _ in range(2):
            with pytest.raises(HarchError, match="No space left"):
                first.keep()
    first.keep()  # there is room again: all of it is written
    first.close()
    assert not tell(MemoryFile(tmp_path / "told").memory, range(6))
