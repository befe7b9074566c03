"""Are files put in place whole, kept where they are right, and taken up again where they were cut?"""

from __future__ import annotations

import fcntl
import os
import random
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.content.exchange import REQUEST_BYTES, download, upload
from harch.content.frames import chunk_id
from harch.content.model import ChunkRef, EntryKind, TreeEntry
from harch.content.packing import OutsideLinks, PackedFolder, build_tree, pack, scan
from harch.testing.memory_remote import MemoryRemote

MIB = 1024 * 1024


def packed(folder: Path) -> PackedFolder:
    keep = OutsideLinks.KEEP
    return pack(scan(folder, rules=None, bytes_max=1 << 40, entries_max=1000, outside_links=keep))


def content_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "script").write_text("echo")
    (folder / "sub" / "script").chmod(0o755)
    (folder / "large").write_bytes(content_of(3 * REQUEST_BYTES))
    (folder / "link").symlink_to("sub/script")
    return folder


@pytest.fixture
def remote(source: Path) -> MemoryRemote:
    remote = MemoryRemote()
    upload(packed(source), remote)
    return remote


def parts_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(".harch-*.part"))


def modes_in(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in folder.rglob("*")
        if not path.is_symlink()
    }


def test_what_is_right_already_is_neither_fetched_nor_touched(
    source: Path, remote: MemoryRemote, tmp_path: Path
) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    download(entries, target, remote)
    before = {path: path.lstat() for path in [target, *target.rglob("*")]}
    remote.fetched.clear()
    download(entries, target, remote)
    assert remote.fetched == []
    for path, status in before.items():
        now = path.lstat()
        assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def test_one_byte_that_differs_is_found_although_size_and_time_are_the_same(
    source: Path, remote: MemoryRemote, tmp_path: Path
) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    download(entries, target, remote)
    path = target / "sub" / "script"
    times = path.stat()
    path.write_text("ecHo")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    download(entries, target, remote)
    assert path.read_text() == "echo"


def test_a_mode_alone_that_differs_is_set_right(source: Path, remote: MemoryRemote, tmp_path: Path) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    download(entries, target, remote)
    (target / "sub" / "script").chmod(0o600)
    (target / "sub").chmod(0o700)
    remote.fetched.clear()
    download(entries, target, remote)
    assert modes_in(target) == modes_in(source)
    assert remote.fetched == []


def test_a_large_file_that_was_cut_goes_on_where_it_stood(source: Path, remote: MemoryRemote, tmp_path: Path) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    remote.cut_at = remote.requests + 2
    with pytest.raises(HarchError):
        download(entries, target, remote, threads=1)
    assert not (target / "large").exists()
    assert len(parts_in(target)) == 1
    came = set(remote.fetched)
    assert came
    remote.cut_at = None
    remote.fetched.clear()
    counted: list[int] = []
    download(entries, target, remote, progress=counted.append)
    assert not came & set(remote.fetched)
    assert (target / "large").read_bytes() == content_of(3 * REQUEST_BYTES)
    assert parts_in(target) == []
    assert sum(counted) == packed(source).size_bytes


def test_a_part_that_somebody_changed_is_not_believed(source: Path, remote: MemoryRemote, tmp_path: Path) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    remote.cut_at = remote.requests + 2
    with pytest.raises(HarchError):
        download(entries, target, remote, threads=1)
    (part,) = (path for path in parts_in(target)[0].iterdir() if path.stat().st_size)
    part.write_bytes(content_of(part.stat().st_size, 2) + b"longer than the file" * REQUEST_BYTES)
    remote.cut_at = None
    download(entries, target, remote)
    assert (target / "large").read_bytes() == content_of(3 * REQUEST_BYTES)


@pytest.mark.parametrize("planted", ["link", "hard link", "fifo"])
def test_what_somebody_put_in_the_place_of_a_part_is_not_written_to(
    source: Path, remote: MemoryRemote, tmp_path: Path, planted: str
) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    (tmp_path / "precious").write_text("kept")
    parts = target / f".harch-{build_tree(entries).digest[:16]}.part"
    parts.mkdir(parents=True)
    for number in range(len(entries)):
        if planted == "link":
            (parts / str(number)).symlink_to(tmp_path / "precious")
        elif planted == "hard link":
            os.link(tmp_path / "precious", parts / str(number))
        else:
            os.mkfifo(parts / str(number))
    download(entries, target, remote)
    assert (tmp_path / "precious").read_text() == "kept"
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o644
    assert (target / "large").read_bytes() == content_of(3 * REQUEST_BYTES)


def test_a_folder_of_parts_that_is_a_link_is_not_followed(source: Path, remote: MemoryRemote, tmp_path: Path) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    (tmp_path / "outside").mkdir()
    target.mkdir()
    (target / f".harch-{build_tree(entries).digest[:16]}.part").symlink_to(tmp_path / "outside")
    with pytest.raises(HarchError) as refused:
        download(entries, target, remote)
    assert refused.value.code == "E1113"
    assert list((tmp_path / "outside").iterdir()) == []


def test_parts_of_other_trees_go_unless_somebody_is_writing_them(
    source: Path, remote: MemoryRemote, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    old, used = target / ".harch-0000000000000000.part", target / ".harch-1111111111111111.part"
    for parts in (old, used):
        parts.mkdir(parents=True)
        (parts / "3").write_text("half")
    descriptor = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        download(packed(source).entries, target, remote)
        assert parts_in(target) == [used]
    finally:
        os.close(descriptor)


def test_two_downloads_of_one_tree_to_one_folder_do_not_write_the_same_parts(
    source: Path, remote: MemoryRemote, tmp_path: Path
) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    parts = target / f".harch-{build_tree(entries).digest[:16]}.part"
    parts.mkdir(parents=True)
    descriptor = os.open(parts, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(HarchError) as refused:
            download(entries, target, remote)
        assert refused.value.code == "E1113"
    finally:
        os.close(descriptor)
    download(entries, target, remote)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder, for somebody who may not write where modes forbid it, as root may."""
    nobody, before = 65_534, os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        if before == 0:
            os.chown(folder, nobody, -1)
            os.seteuid(nobody)
        try:
            yield Path(folder)
        finally:
            os.seteuid(before)


def test_what_is_read_only_can_be_put_right_again(unprivileged: Path) -> None:
    source, target, remote = unprivileged / "source", unprivileged / "target", MemoryRemote()
    (source / "sub" / "deep").mkdir(parents=True)
    (source / "sub" / "script").write_text("echo")
    upload(packed(source), remote)
    entries, modes = packed(source).entries, modes_in(source)
    download(entries, target, remote, read_only=True)
    assert modes_in(target) == {path: mode & ~0o222 for path, mode in modes.items()}
    (target / "sub").chmod(0o755)
    (target / "sub" / "script").unlink()
    (target / "sub" / "deep").rmdir()
    (target / "sub").chmod(0o555)
    download(entries, target, remote, read_only=True)
    assert modes_in(target) == {path: mode & ~0o222 for path, mode in modes.items()}
    assert (target / "sub" / "script").read_text() == "echo"


def test_special_bits_are_never_set(tmp_path: Path) -> None:
    entries = [
        TreeEntry("file", EntryKind.FILE, 0o6755),
        TreeEntry("folder", EntryKind.FOLDER, 0o7777),
    ]
    download(entries, tmp_path, MemoryRemote())
    assert modes_in(tmp_path) == {"file": 0o755, "folder": 0o777}


def test_a_folder_that_its_owner_could_not_enter_can_still_be_removed(tmp_path: Path) -> None:
    download([TreeEntry("folder", EntryKind.FOLDER, 0)], tmp_path, MemoryRemote())
    assert modes_in(tmp_path) == {"folder": 0o500}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (TreeEntry("folder", EntryKind.FILE), "it is a folder there"),
        (TreeEntry("folder", EntryKind.LINK, 0o777, (), "file"), "it is a folder there"),
        (TreeEntry("file", EntryKind.FOLDER), "`file` is a file or a link there"),
        (TreeEntry("link/inner", EntryKind.FILE), "`link` is a file or a link there"),
        (TreeEntry("link", EntryKind.FOLDER), "`link` is a file or a link there"),
    ],
)
def test_what_stands_in_the_way_is_named(tmp_path: Path, entry: TreeEntry, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(HarchError) as refused:
        download([entry], tmp_path, MemoryRemote())
    assert refused.value.code == "E1113"
    assert said in refused.value.message
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "link"]


def test_below_a_folder_that_others_can_write_to_no_link_on_the_way_is_followed(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (work / "in").symlink_to(outside)
    for way in (work / "in", work / "in" / "deeper", work / ".." / "outside"):
        with pytest.raises(HarchError) as refused:
            download([TreeEntry("file", EntryKind.FILE)], way, MemoryRemote(), within=work)
        assert refused.value.code == "E1113"
    assert list(outside.iterdir()) == []
    download([TreeEntry("file", EntryKind.FILE)], work / "new" / "folder", MemoryRemote(), within=work)
    assert (work / "new" / "folder" / "file").exists()


def test_equal_chunks_are_fetched_once_for_many_files(tmp_path: Path) -> None:
    content = content_of(1000)
    remote, reference = MemoryRemote(), ChunkRef(chunk_id(content), 1000)
    remote.chunks[reference.id] = content
    entries = [TreeEntry(f"{number:03}", EntryKind.FILE, 0o644, (reference,) * 3) for number in range(100)]
    download(entries, tmp_path, remote)
    assert len(remote.fetched) == 1
    assert all((tmp_path / entry.path).read_bytes() == content * 3 for entry in entries)


def test_a_reader_never_sees_half_of_a_file(source: Path, remote: MemoryRemote, tmp_path: Path) -> None:
    entries, target = packed(source).entries, tmp_path / "target"
    target.mkdir()
    (target / "large").write_text("old")
    seen = set()

    def look(_: int) -> None:
        seen.add((target / "large").stat().st_size)

    download(entries, target, remote, progress=look)
    look(0)
    assert seen == {3, 3 * REQUEST_BYTES}
