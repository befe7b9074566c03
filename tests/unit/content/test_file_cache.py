"""Is a file cache only ever a shortcut, whatever became of it?"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harch.content import file_cache
from harch.content.file_cache import COARSE_TICK_NS, FOLDER, TICK_NS, FileCache, FileStamp, is_settled
from harch.content.model import ChunkRef
from harch.testing.clock import SimClock

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 10**9
OLD_NS = NOW_NS - 3600 * 10**9 + 5
STAMP = FileStamp(10, OLD_NS, OLD_NS, 7)
CHUNKS = (ChunkRef(b"\1" * 32, 10),)


def cache(root: Path, folder: Path = Path("/some/folder"), now: datetime = NOW) -> FileCache:
    return FileCache(folder, clock=SimClock(now), root=root)


def filled(root: Path, folder: Path = Path("/some/folder"), now: datetime = NOW) -> Path:
    one = cache(root, folder, now)
    one.add("a", STAMP, CHUNKS, read_from_ns=NOW_NS)
    one.save()
    return max((root / FOLDER).iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_a_file_is_known_by_everything_that_changes_with_it(tmp_path: Path) -> None:
    filled(tmp_path)
    assert cache(tmp_path).find("a", STAMP) == CHUNKS
    assert cache(tmp_path).find("b", STAMP) is None
    for number in range(4):
        values = [STAMP.size, STAMP.mtime_ns, STAMP.ctime_ns, STAMP.inode]
        values[number] += 1
        assert cache(tmp_path).find("a", FileStamp(*values)) is None
    assert cache(tmp_path, Path("/other/folder")).find("a", STAMP) is None


@pytest.mark.parametrize("which", ["mtime", "ctime"])
def test_what_may_have_been_written_after_it_was_read_is_not_kept(tmp_path: Path, which: str) -> None:
    def settled(moment_ns: int, read_from_ns: int) -> bool:
        times = {"mtime": OLD_NS, "ctime": OLD_NS} | {which: moment_ns}
        return is_settled(FileStamp(1, times["mtime"], times["ctime"], 1), read_from_ns)

    fine, coarse = NOW_NS + 1, NOW_NS
    assert not settled(fine, fine + TICK_NS)
    assert settled(fine, fine + TICK_NS + 1)
    assert not settled(coarse, coarse + COARSE_TICK_NS)  # a file system that keeps no fractions
    assert settled(coarse, coarse + COARSE_TICK_NS + 1)
    assert not settled(fine, fine - 3600 * 10**9)  # the clock was set back


@pytest.mark.parametrize("damage", ["empty", "cut", "one bit", "another version", "not a cache", "a link", "a folder"])
def test_a_damaged_cache_is_none_and_is_replaced(tmp_path: Path, damage: str) -> None:
    path = filled(tmp_path)
    raw = path.read_bytes()
    path.unlink()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(raw[:-1])
        case "one bit":
            path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        case "another version":
            path.write_bytes(raw.replace(b"cache 1", b"cache 0"))
        case "not a cache":
            path.write_bytes(b"x" * 200)
        case "a link":
            (tmp_path / "elsewhere").write_bytes(raw)
            path.symlink_to(tmp_path / "elsewhere")
        case "a folder":
            path.mkdir()
    assert cache(tmp_path).find("a", STAMP) is None
    if damage != "a folder":
        filled(tmp_path)
        assert cache(tmp_path).find("a", STAMP) == CHUNKS


def test_a_cache_that_somebody_else_could_have_written_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr(file_cache.os, "geteuid", lambda: os.getuid() + 1)
    assert cache(tmp_path).find("a", STAMP) is None


def test_nothing_is_written_to_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER).chmod(0o777)
    one = cache(tmp_path)
    one.add("a", STAMP, CHUNKS, read_from_ns=NOW_NS)
    one.save()
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / FOLDER.parent).write_text("a file in its way")
    one = cache(tmp_path)
    one.add("a", STAMP, CHUNKS, read_from_ns=NOW_NS)
    one.save()
    assert cache(tmp_path).find("a", STAMP) is None


def test_it_is_private_and_leaves_no_drafts(tmp_path: Path) -> None:
    path = filled(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(list(path.parent.iterdir())) == 1


def test_files_that_were_not_there_any_more_are_forgotten(tmp_path: Path) -> None:
    filled(tmp_path)
    one = cache(tmp_path)
    one.add("b", STAMP, CHUNKS, read_from_ns=NOW_NS)
    one.save()
    assert cache(tmp_path).find("a", STAMP) is None
    assert cache(tmp_path).find("b", STAMP) == CHUNKS


def test_a_run_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path)
    inode = path.stat().st_ino
    one = cache(tmp_path)
    one.find("a", STAMP)
    one.save()
    assert path.stat().st_ino == inode


def test_the_caches_that_were_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "CACHES_MAX", 2)
    folders = [Path(f"/folder/{number}") for number in range(4)]
    now = datetime.now(UTC)
    for number, folder in enumerate(folders[:3]):
        path = filled(tmp_path, folder, now)
        os.utime(path, (now.timestamp() - 100 + number,) * 2)
        if number == 1:
            assert cache(tmp_path, folders[0], now).find("a", STAMP) == CHUNKS  # which makes it the newest
    filled(tmp_path, folders[3], now)
    kept = [cache(tmp_path, folder, now).find("a", STAMP) is not None for folder in folders]
    assert kept == [True, False, False, True]


def test_the_caches_of_folders_that_are_not_packed_any_more_go(tmp_path: Path) -> None:
    filled(tmp_path, Path("/old"))
    filled(tmp_path, Path("/new"), datetime.now(UTC) + timedelta(days=61))
    assert cache(tmp_path, Path("/old")).find("a", STAMP) is None


def test_there_is_a_limit_to_what_all_caches_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    size = filled(tmp_path, Path("/one"), now).stat().st_size
    monkeypatch.setattr(file_cache, "CACHES_BYTES_MAX", 2 * size)
    filled(tmp_path, Path("/two"), now)
    filled(tmp_path, Path("/three"), now)
    assert len(list((tmp_path / FOLDER).iterdir())) == 2


def test_a_cache_that_would_be_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "CACHES_BYTES_MAX", 10)
    one = cache(tmp_path)
    one.add("a", STAMP, CHUNKS, read_from_ns=NOW_NS)
    one.save()
    assert not (tmp_path / FOLDER).exists()
