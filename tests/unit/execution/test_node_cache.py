"""What tasks share on a node: made once, kept while it is used or there is room, and never half."""

from __future__ import annotations

import contextlib
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harch.base.errors import HarchError
from harch.execution.content import cache as module
from harch.execution.content.cache import CacheKind, CacheUse, NodeCache, fingerprint, folder_bytes
from harch.execution.content.cancellation import Cancellation, Cancelled
from harch.execution.trash import Trash

FREE = Cancellation()
MB = 1_000_000


class Wall:
    def __init__(self) -> None:
        self.now_at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        self.now_at += timedelta(seconds=1)
        return self.now_at


def make_cache(
    tmp_path: Path, *, bytes_max: int = 100 * MB, boot_id: str = "boot-1", disk=(10**12, 10**12)
) -> NodeCache:
    trash = tmp_path / "trash"
    trash.mkdir(parents=True, exist_ok=True)
    wall = Wall()
    cache = NodeCache(
        tmp_path / "content",
        Trash(trash),
        wall.now,
        boot_id=boot_id,
        bytes_max=bytes_max,
        disk_bytes=lambda _: disk,
    )
    cache.open()
    cache.tidy()
    return cache


def tree(name: str) -> CacheUse:
    return CacheUse(CacheKind.TREE, name)


def filled(size: int = 4096):
    def make(path: Path, reserve) -> None:
        reserve(size)
        path.mkdir(exist_ok=True)
        (path / "file").write_bytes(bytes(size))

    return make


def never(path: Path, reserve) -> None:
    raise AssertionError("it is there already")


def test_what_is_there_is_not_made_again_not_even_by_the_next_agent(tmp_path):
    cache = make_cache(tmp_path)
    path = cache.borrow(tree("a"), filled(), FREE)
    assert cache.borrow(tree("a"), never, FREE) == path
    assert make_cache(tmp_path).borrow(tree("a"), never, FREE) == path
    assert (path / "file").stat().st_size == 4096


def test_longest_unused_leaves_first_and_what_is_in_use_stays(tmp_path):
    cache = make_cache(tmp_path, bytes_max=2 * MB + MB // 4)
    paths = {name: cache.borrow(tree(name), filled(MB // 2), FREE) for name in "abc"}
    for name in "ab":
        cache.give_back(tree(name))
    cache.borrow(tree("a"), never, FREE)
    cache.give_back(tree("a"))
    paths["d"] = cache.borrow(tree("d"), filled(MB), FREE)
    assert {name for name, path in paths.items() if path.exists()} == {"a", "c", "d"}
    paths["e"] = cache.borrow(tree("e"), filled(MB), FREE)
    assert {name for name, path in paths.items() if path.exists()} == {"c", "d", "e"}, "beyond the limit while in use"
    cache.give_back(tree("d"))
    assert not paths["d"].exists()


def test_the_order_of_use_survives_the_agent(tmp_path):
    cache = make_cache(tmp_path)
    for name in "abc":
        cache.borrow(tree(name), filled(MB), FREE)
        cache.give_back(tree(name))
    cache.borrow(tree("a"), never, FREE)
    cache.give_back(tree("a"))
    make_cache(tmp_path, bytes_max=2 * MB + MB // 2)
    assert sorted(path.name for path in (tmp_path / "content" / "trees").iterdir()) == ["a", "c"]


def test_what_the_disk_cannot_hold_is_refused_before_it_is_written(tmp_path):
    cache = make_cache(tmp_path, disk=(100 * MB, 90 * MB))
    with pytest.raises(HarchError, match=r"0\.1 GB have no room on this node") as caught:
        cache.borrow(tree("large"), filled(95 * MB), FREE)
    assert caught.value.code == "E1113"
    with pytest.raises(HarchError):
        cache.borrow(tree("half"), filled(51 * MB), FREE)
    assert not (tmp_path / "content" / "trees" / "half" / "file").exists()
    cache.borrow(tree("small"), filled(40 * MB), FREE)


def test_idle_content_makes_room_on_a_disk_that_is_nearly_full(tmp_path):
    cache = make_cache(tmp_path, disk=(1000 * MB, 2 * MB))
    idle = cache.borrow(tree("idle"), filled(MB), FREE)
    cache.give_back(tree("idle"))
    used = cache.borrow(tree("used"), filled(MB), FREE)
    assert idle.exists()
    cache.borrow(tree("new"), filled(2 * MB + MB // 2), FREE)
    assert (idle.exists(), used.exists()) == (False, True)


def test_a_part_of_a_tree_is_completed_and_of_anything_else_begun_anew(tmp_path):
    cache = make_cache(tmp_path)

    def half(path: Path, reserve) -> None:
        path.mkdir()
        (path / "half").write_text("x")
        raise Cancelled

    def rest(path: Path, reserve) -> None:
        path.mkdir(exist_ok=True)
        (path / "rest").write_text("y")

    for use in (tree("t"), CacheUse(CacheKind.ENVIRONMENT, "tenant/key"), CacheUse(CacheKind.IMAGE, "i")):
        with pytest.raises(Cancelled):
            cache.borrow(use, half, FREE)
        path = cache.borrow(use, rest, FREE)
        assert sorted(os.listdir(path)) == (["half", "rest"] if use.kind is CacheKind.TREE else ["rest"])


def test_what_an_agent_left_unfinished_is_no_content(tmp_path):
    cache = make_cache(tmp_path)
    cache.borrow(CacheUse(CacheKind.ENVIRONMENT, "tenant/key"), filled(), FREE)
    content = tmp_path / "content"
    for folder in ("trees/part", "environments/tenant/ready/other", "environments/tenant/building/1", "images/half"):
        (content / folder).mkdir(parents=True)
        (content / folder / "file").write_text("x")
    cache = make_cache(tmp_path)
    assert sorted(path.name for path in content.glob("environments/tenant/*/*")) == ["key"]
    assert not (content / "images" / "half").exists()
    made = []
    cache.borrow(tree("part"), lambda path, reserve: made.append(os.listdir(path)), FREE)
    assert made == [["file"]], "a part of a tree is kept, and is not taken for the whole"


def test_after_a_power_cut_only_what_was_flushed_counts(tmp_path, monkeypatch):
    flushed = threading.Event()
    monkeypatch.setattr(module.kernel, "flush_disk", lambda path: flushed.wait(5))
    cache = make_cache(tmp_path)
    cache.borrow(tree("a"), filled(), FREE)
    assert make_cache(tmp_path, boot_id="boot-1").reclaim(tree("a"))
    assert not make_cache(tmp_path, boot_id="boot-2").reclaim(tree("a"))
    cache = make_cache(tmp_path / "other")
    flushed.set()
    cache.borrow(tree("a"), filled(), FREE)
    for thread in threading.enumerate():
        if thread.name == "harch-flush":
            thread.join(5)
    assert make_cache(tmp_path / "other", boot_id="boot-2").reclaim(tree("a"))


@pytest.mark.parametrize("change", ["write", "add", "replace", "remove"])
def test_a_tree_that_something_has_changed_is_fetched_again(tmp_path, change):
    cache = make_cache(tmp_path)
    path = cache.borrow(tree("a"), filled(), FREE)
    cache.give_back(tree("a"))
    if change == "write":
        (path / "file").write_bytes(bytes(4095) + b"x")
    elif change == "add":
        (path / "more").touch()
    elif change == "replace":
        (path / "new").write_bytes(bytes(4096))
        (path / "new").rename(path / "file")
    else:
        (path / "file").unlink()
    path = cache.borrow(tree("a"), filled(), FREE)
    assert [(one.name, one.read_bytes()) for one in path.iterdir()] == [("file", bytes(4096))]


def test_a_changed_tree_that_others_use_is_said_and_not_pulled_away(tmp_path):
    cache = make_cache(tmp_path)
    path = cache.borrow(tree("a"), filled(), FREE)
    (path / "more").touch()
    with pytest.raises(HarchError, match="were changed, and other tasks use them"):
        cache.borrow(tree("a"), filled(), FREE)
    assert path.exists()
    cache.give_back(tree("a"))
    assert os.listdir(cache.borrow(tree("a"), filled(), FREE)) == ["file"]


def test_what_may_not_rest_any_more_goes_when_nobody_uses_it(tmp_path):
    cache = make_cache(tmp_path)
    idle, used = (cache.borrow(tree(name), filled(), FREE) for name in ("idle", "used"))
    cache.give_back(tree("idle"))
    for name in ("idle", "used", "unknown"):
        cache.expel(tree(name))
    assert (idle.exists(), used.exists()) == (False, True)
    cache.give_back(tree("used"))
    assert not used.exists()


def test_whoever_waits_gets_what_the_first_has_made_or_why_it_failed(tmp_path):
    cache = make_cache(tmp_path)
    begun, go_on, outcomes = threading.Event(), threading.Event(), []

    def slow(fails: bool):
        def make(path: Path, reserve) -> None:
            begun.set()
            assert go_on.wait(5)
            if fails:
                raise HarchError("E1120", "it cannot be built")
            path.mkdir()

        return make

    def second(use: CacheUse) -> None:
        try:
            outcomes.append(cache.borrow(use, never, Cancellation()))
        except HarchError as error:
            outcomes.append(error.message)

    for fails in (False, True):
        begun.clear()
        go_on.clear()
        use = tree(str(fails))
        first = threading.Thread(target=lambda: _ignore(lambda: cache.borrow(use, slow(fails), FREE)))  # noqa: B023
        first.start()
        assert begun.wait(5)
        others = [threading.Thread(target=second, args=(use,)) for _ in range(3)]
        for other in others:
            other.start()
        wait_until(lambda: len(cache._entries[use].making._waiters) == 3)  # noqa: B023
        go_on.set()
        for thread in (first, *others):
            thread.join(5)
    path = tmp_path / "content" / "trees" / "False"
    assert outcomes == [path] * 3 + ["it cannot be built"] * 3


def test_one_who_waits_can_be_called_off(tmp_path):
    cache, begun, go_on = make_cache(tmp_path), threading.Event(), threading.Event()

    def slow(path: Path, reserve) -> None:
        begun.set()
        assert go_on.wait(5)
        path.mkdir()

    first = threading.Thread(target=cache.borrow, args=(tree("a"), slow, FREE))
    first.start()
    assert begun.wait(5)
    cancellation = Cancellation()
    threading.Timer(0.05, cancellation.cancel).start()
    with pytest.raises(Cancelled):
        cache.borrow(tree("a"), never, cancellation)
    go_on.set()
    first.join(5)


def test_a_damaged_record_is_as_good_as_none(tmp_path):
    cache = make_cache(tmp_path)
    cache.borrow(tree("a"), filled(), FREE)
    (record,) = (tmp_path / "content" / "records").iterdir()
    record.write_bytes(record.read_bytes()[:-9])
    assert not make_cache(tmp_path).reclaim(tree("a"))


def test_files_with_several_names_count_once(tmp_path):
    (tmp_path / "one").write_bytes(bytes(MB))
    before = folder_bytes(tmp_path)
    os.link(tmp_path / "one", tmp_path / "two")
    assert abs(folder_bytes(tmp_path) - before) <= 4096


def test_a_fingerprint_does_not_depend_on_where_the_folder_is(tmp_path):
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "file").write_text("x")
    before = fingerprint(tmp_path / "a", FREE)
    (tmp_path / "a").rename(tmp_path / "b")
    assert fingerprint(tmp_path / "b", FREE) == before


class CacheMachine(RuleBasedStateMachine):
    """Whatever is borrowed, given back, expelled, cut or restarted: who uses a thing has it, whole."""

    names = st.sampled_from("abcd")

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        self.held: list[str] = []
        self.cache = make_cache(self.path, bytes_max=MB)

    def teardown(self) -> None:
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)

    @rule(name=names, size=st.integers(1, MB))
    def borrow(self, name, size):
        self.cache.borrow(tree(name), filled(size), FREE)
        self.held.append(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data):
        name = data.draw(st.sampled_from(self.held))
        self.held.remove(name)
        self.cache.give_back(tree(name))

    @rule(name=names)
    def expel(self, name):
        self.cache.expel(tree(name))

    @rule(name=names)
    def cut(self, name):
        def half(path: Path, reserve) -> None:
            path.mkdir(exist_ok=True)
            (path / "half").touch()
            raise Cancelled

        _ignore(lambda: self.held.append(name) if self.cache.borrow(tree(name), half, FREE) else None)

    @rule()
    def restart(self):
        self.cache = make_restarted(self.path, self.held)

    @invariant()
    def everything_in_use_is_there_and_the_rest_within_the_limit(self):
        for name in self.held:
            assert (self.path / "content" / "trees" / name / "file").exists()
        idle = [one for one in self.cache._entries.values() if one.is_idle]
        assert sum(one.record.bytes for one in idle) <= MB


def make_restarted(path: Path, held: list[str]) -> NodeCache:
    cache = NodeCache(
        path / "content",
        Trash(path / "trash"),
        Wall().now,
        boot_id="boot-1",
        bytes_max=MB,
        disk_bytes=lambda _: (10**12,) * 2,
    )
    cache.open()
    for name in held:
        assert cache.reclaim(tree(name))
    cache.tidy()
    return cache


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def wait_until(condition) -> None:
    pause = threading.Event()
    for _ in range(5000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came true")


def _ignore(call) -> None:
    with contextlib.suppress(HarchError, Cancelled):
        call()
