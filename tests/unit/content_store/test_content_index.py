"""Writes share commits without sharing each other's errors."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.content.store.index import Index, drop_note, note, set_note
from unit.content_store.content_samples import refused


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path)
    yield made
    made.close()


def noted(index: Index) -> dict[str, str]:
    return dict(index.query("SELECT name, value FROM notes"))


def together(index: Index, changes: list[Callable[[sqlite3.Connection], object]]) -> list[object]:
    """All wait for the same commit. Results, or errors."""
    results: list[object] = [None] * len(changes)

    def run(place: int) -> None:
        try:
            results[place] = index.write(changes[place])
        except (HarchError, ZeroDivisionError) as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(changes))]
    with index._writing:
        for count, thread in enumerate(threads, 1):
            thread.start()
            while len(index._waiting) < count:
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join(30)
    return results


def put(name: str) -> Callable[[sqlite3.Connection], object]:
    def change(connection: sqlite3.Connection) -> str:
        set_note(connection, name=name, value="yes")
        return name

    return change


def commits_of(index: Index) -> list[str]:
    seen: list[str] = []
    index._writer.set_trace_callback(lambda sql: seen.append(sql) if sql == "COMMIT" else None)
    return seen


def test_changes_that_wait_are_committed_at_once(index: Index) -> None:
    commits = commits_of(index)
    assert together(index, [put("a"), put("b"), put("c")]) == ["a", "b", "c"]
    assert commits == ["COMMIT"]
    assert set(noted(index)) == {"a", "b", "c"}


def test_a_change_that_is_refused_is_undone_alone(index: Index) -> None:
    def refusing(connection: sqlite3.Connection) -> None:
        set_note(connection, name="bad", value="yes")
        raise HarchError("E1103", "no")

    first, bad, last = together(index, [put("a"), refusing, put("c")])
    assert (first, last) == ("a", "c")
    assert isinstance(bad, HarchError)
    assert set(noted(index)) == {"a", "c"}


@pytest.mark.parametrize(
    ("breaking", "said"),
    [(lambda _: 1 / 0, ZeroDivisionError), (lambda one: one.execute("SELECT nothing"), HarchError)],
)
def test_what_breaks_a_commit_is_told_to_all_that_shared_it(
    index: Index, breaking: Callable[[sqlite3.Connection], object], said: type[Exception]
) -> None:
    found = together(index, [put("a"), breaking, put("c")])
    assert all(isinstance(one, said) for one in found)
    assert noted(index) == {}
    assert index.write(put("d")) == "d"


def test_more_changes_than_one_commit_takes_are_all_done(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.content.store.index.WRITES_PER_COMMIT_MAX", 3)
    commits = commits_of(index)
    together(index, [put(str(number)) for number in range(8)])
    assert len(noted(index)) == 8
    assert len(commits) == 3


def test_readers_cannot_write_and_see_what_was_committed(index: Index) -> None:
    index.write(put("a"))
    with index.reading() as connection:
        assert note(connection, "a") == "yes"
        assert note(connection, "b") == ""
    with refused("E1110"), index.reading() as connection:
        set_note(connection, name="b", value="yes")
    index.write(lambda connection: drop_note(connection, name="a"))
    assert noted(index) == {}


def test_a_full_disk_has_an_error_of_its_own(index: Index) -> None:
    def full(connection: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with refused("E1002"):
        index.write(full)
    index.write(put("a"))


def test_what_is_committed_is_told_so_although_its_guard_fails(
    index: Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is told that it failed would remove the pack that the index names."""

    def fails(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(index._guard, "committed", fails)
    assert index.write(put("a")) == "a"
    assert "cannot be guarded" in caplog.text
