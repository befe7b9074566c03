"""Is a file that changes while it is packed ever half of one and half of another? And what does a cache save?"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.content import packing
from harch.content.chunking import CHUNK_BYTES_MIN
from harch.content.file_cache import FileCache
from harch.content.file_chunks import cut_file
from harch.content.frames import chunk_id
from harch.content.packing import FolderScan, OutsideLinks, pack, scan
from harch.testing.clock import SimClock

LARGE = 3 * 1024 * 1024
LATER_S = 5.0


def scanned(folder: Path, bytes_max: int = 1 << 30, within: Path | None = None) -> FolderScan:
    keep = OutsideLinks.KEEP
    return scan(folder, rules=None, bytes_max=bytes_max, entries_max=1000, outside_links=keep, within=within)


def content_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def while_reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """What happens after the first bytes of a file are read, and each time it is read again."""

    def install(act: Callable[[], None]) -> None:
        for name in ("pread", "preadv"):
            real = getattr(os, name)

            def then_act(*arguments: object, real: Callable[..., object] = real) -> object:
                result = real(*arguments)
                act()
                return result

            monkeypatch.setattr(packing.os, name, then_act)

    return install


@pytest.mark.parametrize("size", [1000, CHUNK_BYTES_MIN, LARGE])
@pytest.mark.parametrize("change", ["in place", "grown", "cut"])
def test_a_file_that_changes_each_time_it_is_read_is_refused(
    tmp_path: Path, while_reading: Callable[[Callable[[], None]], None], size: int, change: str
) -> None:
    path = tmp_path / "busy"
    path.write_bytes(content_of(size))
    found, times = scanned(tmp_path), iter(range(1, 1000))

    def act() -> None:
        if change == "in place":
            with path.open("r+b") as file:
                file.write(b"!")
            os.utime(path, ns=(next(times), next(times)))
        elif change == "grown":
            with path.open("ab") as file:
                file.write(b"!")
        else:
            os.truncate(path, max(0, path.stat().st_size - 1))

    while_reading(act)
    with pytest.raises(HarchError) as refused:
        pack(found)
    assert refused.value.code == "E1106"
    assert "`busy` changed" in refused.value.message


@pytest.mark.parametrize("size", [1000, LARGE])
def test_a_file_that_changes_once_is_packed_as_it_is_then(
    tmp_path: Path, while_reading: Callable[[Callable[[], None]], None], size: int
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content_of(size))
    found, changes = scanned(tmp_path), iter([b"new line"])

    def act() -> None:
        with path.open("ab") as file:
            file.write(next(changes, b""))

    while_reading(act)
    packed = pack(found)
    assert packed.size_bytes == path.stat().st_size == size + len(b"new line")


def test_a_file_that_became_a_pipe_or_is_gone_is_refused_and_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    found = scanned(tmp_path)
    (tmp_path / "a").unlink()
    for replace in (lambda: None, lambda: os.mkfifo(tmp_path / "a")):
        replace()
        with pytest.raises(HarchError) as refused:
            pack(found)
        assert refused.value.code == "E1106"
        assert "`a` changed" in refused.value.message


def test_a_file_that_is_shorter_than_was_said_has_no_chunks(tmp_path: Path) -> None:
    for size in (100, LARGE):
        with (tmp_path / "a").open("w+b") as file:
            file.write(content_of(size))
            file.flush()
            assert cut_file(file.fileno(), size + 1) is None
            assert cut_file(file.fileno(), size) is not None


@pytest.mark.parametrize("swapped", ["file", "folder", "base"])
def test_a_link_that_takes_the_place_of_what_was_scanned_is_not_followed(tmp_path: Path, swapped: str) -> None:
    work, private = tmp_path / "work", tmp_path / "private" / "out" / "sub"
    for folder in (work / "out" / "sub", private):
        folder.mkdir(parents=True)
        (folder / "key").write_text(folder.parts[-3])
    found = scanned(work / "out", within=work)
    victim = {"file": work / "out/sub/key", "folder": work / "out/sub", "base": work / "out"}[swapped]
    victim.rename(tmp_path / "moved")
    victim.symlink_to(tmp_path / "private" / victim.relative_to(work))
    with pytest.raises(HarchError) as refused:
        pack(found)
    assert refused.value.code == "E1106"


def test_a_chunk_that_is_not_what_it_was_is_never_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(content_of(LARGE))
    packed = pack(scanned(tmp_path))
    path.write_bytes(content_of(LARGE, seed=2))
    with pytest.raises(HarchError) as refused:
        packed.raw(packed.ids[0])
    assert refused.value.code == "E1106"
    path.unlink()
    with pytest.raises(HarchError) as refused:
        packed.raw(packed.ids[0])
    assert refused.value.code == "E1106"


def test_every_chunk_is_what_its_name_says_and_the_root_is_the_last(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(content_of(LARGE))
    (tmp_path / "two").write_bytes(content_of(LARGE))
    packed = pack(scanned(tmp_path))
    assert all(chunk_id(packed.raw(name)) == name for name in packed.ids)
    assert len(set(packed.ids)) == len(packed.ids)
    assert packed.ids[-1].hex() == packed.digest
    assert packed.chunk_bytes == sum(len(packed.raw(name)) for name in packed.ids) < LARGE + 2000


def test_what_is_appended_after_packing_spoils_nothing(tmp_path: Path) -> None:
    """Work that runs writes to its log, mostly at the end: the last chunks of the newest files stay in memory."""
    path = tmp_path / "log"
    path.write_bytes(content_of(LARGE))
    packed = pack(scanned(tmp_path))
    with path.open("ab") as file:
        file.write(b"another line")
    assert b"".join(packed.raw(chunk.id) for chunk in packed.entries[0].chunks) == content_of(LARGE)
    path.write_bytes(b"")
    assert packed.raw(packed.entries[0].chunks[-1].id)


def test_no_more_than_so_much_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "TAILS_BYTES_MAX", 2000)
    for number, size in enumerate([1500, 900, 400]):
        (tmp_path / f"{number}").write_bytes(content_of(size, number))
        os.utime(tmp_path / f"{number}", (number, number))
    packed = pack(scanned(tmp_path))
    for path in tmp_path.iterdir():
        path.unlink()
    for number, is_kept in enumerate([False, True, True]):  # the newest are
        chunk = packed.entries[number].chunks[0].id
        if is_kept:
            assert packed.raw(chunk) == content_of([1500, 900, 400][number], number)
        else:
            with pytest.raises(HarchError):
                packed.raw(chunk)


def test_files_that_grow_beyond_the_limit_since_they_were_scanned_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    found = scanned(tmp_path, bytes_max=1000)
    (tmp_path / "a").write_bytes(b"x" * 1001)
    with pytest.raises(HarchError) as refused:
        pack(found)
    assert refused.value.code == "E1108"


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing_but_the_time(tmp_path: Path, threads: int) -> None:
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(content_of(number * 50_000, number))
    counted: list[int] = []
    packed = pack(scanned(tmp_path), threads=threads, progress=counted.append)
    assert packed.digest == pack(scanned(tmp_path)).digest
    assert sum(counted) == packed.size_bytes == sum(number * 50_000 for number in range(20))


def test_an_exception_of_whoever_shows_progress_stops_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")

    class Stopped(Exception):
        pass

    def stop(_: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        pack(scanned(tmp_path), progress=stop, threads=2)


# The cache


class Reads:
    """Counts the files that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        real = packing.open_file

        def counting(base: int, path: str) -> int:
            self.paths.append(path)
            return real(base, path)

        monkeypatch.setattr(packing, "open_file", counting)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def cache_of(folder: Path, root: Path, *, behind_s: float = LATER_S) -> FileCache:
    """With a clock that is so far behind the last change of the folder's newest file."""
    newest = max(path.lstat().st_ctime for path in folder.iterdir())
    return FileCache(folder, clock=SimClock(datetime.fromtimestamp(newest + behind_s, UTC)), root=root)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    for number in range(3):
        (tmp_path / "folder" / f"{number}").write_bytes(content_of(1000 * (number + 1), number))
    return tmp_path / "folder"


def test_what_has_not_changed_is_not_read_again(folder: Path, tmp_path: Path, reads: Reads) -> None:
    first = pack(scanned(folder), cache=cache_of(folder, tmp_path))
    assert reads.paths == ["0", "1", "2"]
    (folder / "1").write_bytes(b"new")
    second = pack(scanned(folder), cache=cache_of(folder, tmp_path))
    assert reads.paths[3:] == ["1"]
    third = pack(scanned(folder), cache=cache_of(folder, tmp_path))
    assert reads.paths[4:] == []
    assert first.digest != second.digest == third.digest == pack(scanned(folder)).digest


def test_what_was_written_just_before_it_was_read_is_read_once_more(folder: Path, tmp_path: Path, reads: Reads) -> None:
    for behind_s in (0.001, LATER_S, LATER_S):
        pack(scanned(folder), cache=cache_of(folder, tmp_path, behind_s=behind_s))
    assert reads.paths == ["0", "1", "2"] * 2


def test_a_cache_of_a_clock_that_was_set_back_is_not_kept(folder: Path, tmp_path: Path, reads: Reads) -> None:
    for _ in range(2):
        pack(scanned(folder), cache=cache_of(folder, tmp_path, behind_s=-3600))
    assert len(reads.paths) == 6


def test_progress_counts_what_the_cache_knows(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        counted: list[int] = []
        pack(scanned(folder), cache=cache_of(folder, tmp_path), progress=counted.append)
        assert sum(counted) == 6000


def test_a_cache_that_is_wrong_is_found_out_when_a_chunk_is_read_and_heals(folder: Path, tmp_path: Path) -> None:
    """A disk or a program may change content and no time: the upload fails, and the next attempt reads the file."""
    pack(scanned(folder), cache=cache_of(folder, tmp_path))
    stale = cache_of(folder, tmp_path)
    stamps = {entry.path: entry.stamp for entry in scanned(folder).entries}
    (folder / "0").write_bytes(content_of(1000, 9))
    stamp = scanned(folder).entries[0].stamp
    chunks = stale.find("0", stamps["0"])
    assert chunks is not None
    stale.add("0", stamp, chunks, read_from_ns=stale.now_ns())
    stale.save()
    packed = pack(scanned(folder), cache=cache_of(folder, tmp_path))
    with pytest.raises(HarchError) as refused:
        packed.raw(packed.entries[0].chunks[0].id)
    assert refused.value.code == "E1106"
    again = pack(scanned(folder), cache=cache_of(folder, tmp_path))
    assert again.raw(again.entries[0].chunks[0].id) == content_of(1000, 9)


def test_modes_are_those_of_now_whatever_is_cached(folder: Path, tmp_path: Path) -> None:
    before = pack(scanned(folder), cache=cache_of(folder, tmp_path))
    (folder / "0").chmod(0o755)
    after = pack(scanned(folder), cache=cache_of(folder, tmp_path))
    assert (before.entries[0].mode, after.entries[0].mode) == (0o644, 0o755)
