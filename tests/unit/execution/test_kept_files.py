"""What is left of ended tasks stays for a while; what is thrown away is gone however it was made."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.execution.content import kept_work as module
from harch.execution.content.cancellation import Cancellation, Cancelled
from harch.execution.content.copying import copy_tree
from harch.execution.content.kept_work import KeptWork
from harch.execution.content.work_files import check_path
from harch.execution.protocol import TaskKey
from harch.execution.trash import PATH_CHARS_MAX, Trash, delete


class Wall:
    now_at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.now_at


@pytest.fixture
def wall() -> Wall:
    return Wall()


def make_kept(tmp_path: Path, wall: Wall, bytes_max: int = 10**9) -> KeptWork:
    for name in ("work", "trash"):
        (tmp_path / name).mkdir(exist_ok=True)
    kept = KeptWork(tmp_path / "work", Trash(tmp_path / "trash"), wall.now, bytes_max=bytes_max)
    kept.open()
    return kept


def keep(kept: KeptWork, tmp_path: Path, number: int, size: int = 10) -> TaskKey:
    folder = tmp_path / "ended"
    folder.mkdir()
    (folder / "file").write_bytes(os.urandom(size))
    key = TaskKey(f"wl_{number}", 1, 0)
    kept.keep(key, folder)
    for thread in threading.enumerate():
        if thread.name == "harch-kept-work":
            thread.join(5)
    return key


def test_files_stay_for_a_day_also_with_the_next_agent(tmp_path, wall):
    key = keep(make_kept(tmp_path, wall), tmp_path, 1)
    wall.now_at += timedelta(hours=23, minutes=59)
    found = make_kept(tmp_path, wall).find(key)
    assert os.listdir(found) == ["file"]
    kept = make_kept(tmp_path, wall)
    wall.now_at += timedelta(minutes=2)
    assert kept.find(key) is None
    assert not found.exists()


def test_the_oldest_make_room_for_newer_ones(tmp_path, wall, monkeypatch):
    kept = make_kept(tmp_path, wall, bytes_max=250_000)
    keys = []
    for number in range(3):
        wall.now_at += timedelta(minutes=1)
        keys.append(keep(kept, tmp_path, number, 100_000))
    assert [kept.find(key) is not None for key in keys] == [False, True, True]
    monkeypatch.setattr(module, "FOLDERS_MAX", 1)
    kept = make_kept(tmp_path, wall)
    assert [kept.find(key) is not None for key in keys] == [False, False, True]


def test_an_empty_folder_is_not_worth_a_place_and_strangers_have_none(tmp_path, wall):
    kept = make_kept(tmp_path, wall)
    (tmp_path / "empty").mkdir()
    kept.keep(TaskKey("wl_1", 1, 0), tmp_path / "empty")
    assert kept.find(TaskKey("wl_1", 1, 0)) is None
    (tmp_path / "work" / "stranger").mkdir()
    make_kept(tmp_path, wall)
    assert os.listdir(tmp_path / "work") == []


@pytest.mark.parametrize(
    ("path", "inner"), [(".", ""), ("", ""), ("a/", "a"), ("./a//b/.", "a/b"), ("a/../b", "b"), ("a b", "a b")]
)
def test_paths_below_the_working_folder_are_normal(path, inner):
    assert check_path(path) == inner


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/etc", "a\0b", "x" * 300])
def test_paths_out_of_it_are_none(path):
    with pytest.raises(HarchError) as caught:
        check_path(path)
    assert caught.value.code == "E1111"


def test_a_copy_is_the_same_and_can_be_written(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "run").write_bytes(b"#!/bin/sh")
    (source / "deep" / "run").chmod(0o555)
    (source / "empty").touch(mode=0o444)
    (source / "link").symlink_to("deep/run")
    (source / "gone").symlink_to("nowhere")
    (source / "folder").symlink_to("deep")
    (source / "deep").chmod(0o555)
    target.mkdir()
    copy_tree(source, target, Cancellation())
    assert (target / "deep" / "run").read_bytes() == b"#!/bin/sh"
    assert (target / "deep" / "run").stat().st_mode & 0o777 == 0o755
    assert (target / "empty").stat().st_mode & 0o777 == 0o644
    assert [os.readlink(target / name) for name in ("link", "gone", "folder")] == ["deep/run", "nowhere", "deep"]
    assert (target / "deep").stat().st_mode & 0o700 == 0o700
    assert (source / "deep" / "run").stat().st_nlink == 1
    (source / "deep").chmod(0o755)


def test_a_copy_without_help_of_the_kernel_is_the_same(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(18, "cross-device")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(bytes(range(256)) * 1000)
    (tmp_path / "target").mkdir()
    copy_tree(tmp_path / "source", tmp_path / "target", Cancellation())
    assert (tmp_path / "target" / "file").read_bytes() == bytes(range(256)) * 1000
    cancelled = Cancellation()
    cancelled.cancel()
    (tmp_path / "other").mkdir()
    with pytest.raises(Cancelled):
        copy_tree(tmp_path / "source", tmp_path / "other", cancelled)


def test_nothing_is_too_deep_or_too_closed_to_be_deleted_and_no_link_is_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").touch()
    (top / "closed" / "inner").chmod(0)
    (top / "closed").chmod(0o500)
    descriptor = os.open(top, os.O_RDONLY)
    for _ in range(30):  # deeper than any path may be long
        os.mkdir("x" * 200, dir_fd=descriptor)
        inner = os.open("x" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)
    assert PATH_CHARS_MAX < 30 * 200
    delete(top)
    assert not top.exists()
    assert (outside / "file").exists()


def test_what_is_thrown_away_is_gone_at_once_and_twice_is_no_error(tmp_path):
    (tmp_path / "trash").mkdir()
    trash, folder = Trash(tmp_path / "trash"), tmp_path / "folder"
    folder.mkdir(mode=0o500)
    trash.throw_away(folder)
    assert not folder.exists()
    trash.throw_away(folder)
