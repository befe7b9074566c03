"""Does one process compile, and do others wait for nobody but their own? Locks and notes in a folder of one's own."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from harch.base.compile_once import NOTES_KEPT, compile_once

SOURCES = (("kernels.py", 1, 2),)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: pytest.fail("a folder that others write into"))
    return tmp_path / "cache" / "harch"


def test_of_two_that_start_together_the_second_waits_for_the_first(cache: Path) -> None:
    inside, done, order = threading.Event(), threading.Event(), []

    def first() -> None:
        with compile_once("kernels", SOURCES):
            inside.set()
            assert done.wait(30)
            order.append("first")

    def second() -> None:
        with compile_once("kernels", SOURCES):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    done.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first", "second"]


def test_what_was_compiled_once_waits_for_nobody(cache: Path) -> None:
    with compile_once("kernels", SOURCES):
        pass
    with (cache / "kernels.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with compile_once("kernels", SOURCES):  # would never return
            pass


def test_other_kernels_and_other_sources_are_other_notes(cache: Path) -> None:
    for what, sources in (("a", SOURCES), ("b", SOURCES), ("a", (("kernels.py", 3, 4),))):
        with compile_once(what, sources):
            pass
    assert sorted(path.name.split(".")[0] for path in cache.glob("*.done")) == ["a", "a", "b"]
    for version in range(2 * NOTES_KEPT):
        with compile_once("a", (("kernels.py", version, 0),)):
            pass
    assert len(list(cache.glob("*.done"))) == NOTES_KEPT


def test_who_holds_the_lock_for_too_long_is_not_waited_for(cache: Path) -> None:
    cache.mkdir(parents=True)
    with (cache / "kernels.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with compile_once("kernels", SOURCES, wait_s_max=0.0):
            pass


def test_a_failure_is_not_noted(cache: Path) -> None:
    with pytest.raises(RuntimeError), compile_once("kernels", SOURCES):
        raise RuntimeError("the compiler stumbles")
    assert not list(cache.glob("*.done"))


def test_folder_and_files_are_closed_to_others(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o755)
    os.umask(os.umask(0o022))
    with compile_once("kernels", SOURCES):
        pass
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()} == {0o600}


def test_a_link_in_place_of_the_lock_is_not_followed(cache: Path, tmp_path: Path) -> None:
    cache.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (cache / "kernels.lock").symlink_to(victim)
    with compile_once("kernels", SOURCES):
        pass
    assert victim.read_text() == "precious"


def test_a_link_in_place_of_the_folder_is_not_used(cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    with compile_once("kernels", SOURCES):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_a_folder_of_ones_own_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with compile_once("kernels", SOURCES):
        pass
