"""Where `harch cp` puts things."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.cli.content.copying import (
    LocalPlace,
    WorkPath,
    direction,
    is_one_file,
    landing,
    placing,
    work_path,
)
from harch.content.model import EntryKind, TreeEntry

FILE, FOLDER = EntryKind.FILE, EntryKind.FOLDER


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("wl_1:out/model.pt", WorkPath("wl_1", "out/model.pt")),
        ("train:", WorkPath("train", ".", inside=True)),
        ("train:.", WorkPath("train", ".", inside=True, contents=True)),
        ("train:./", WorkPath("train", ".", inside=True)),
        ("train:out/", WorkPath("train", "out", inside=True)),
        ("train:out/.", WorkPath("train", "out", contents=True)),
        ("train:a//b/../c", WorkPath("train", "a/c")),
        ("train:a:b", WorkPath("train", "a:b")),
        ("./a:b", None),
        ("dir/a:b", None),
        ("plain.txt", None),
        (":a", None),
        (".hidden:a", None),
    ],
)
def test_what_has_an_id_before_its_first_colon_is_at_a_workload(word: str, found: WorkPath | None) -> None:
    assert work_path(word) == found


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "a/../../b", "a\0b"])
def test_paths_stay_below_the_working_folder(path: str) -> None:
    with pytest.raises(HarchError) as caught:
        work_path(f"train:{path}")
    assert caught.value.code == "E0201"


def test_an_absolute_path_is_answered_with_the_relative_one() -> None:
    with pytest.raises(HarchError) as caught:
        work_path("train:/out/model.pt")
    assert caught.value.hint == "paths are below the working folder: train:out/model.pt"


@given(st.text(max_size=40))
def test_a_path_that_is_accepted_leads_nowhere_else(path: str) -> None:
    try:
        found = work_path(f"train:{path}")
    except HarchError:
        return
    assert found is not None
    assert found.path == "." or ".." not in found.path.split("/")
    assert not found.path.startswith("/")


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("a", "b", "neither path is at a workload"),
        ("x:a", "y:b", "from one workload to another"),
        ("x:a", "-", "writes no stdout"),
        ("-", "x:a", "reads no stdin"),
    ],
)
def test_one_of_both_paths_is_at_a_workload(source: str, target: str, said: str) -> None:
    with pytest.raises(HarchError, match=said):
        direction(source, target)


def test_a_snapshot_of_a_file_has_nothing_but_the_file() -> None:
    one = TreeEntry("model.pt", FILE)
    model, out = WorkPath("train", "out/model.pt"), WorkPath("train", "out")
    assert is_one_file([one], model)
    assert not is_one_file([one], out)
    assert not is_one_file([one, TreeEntry("b", FILE)], model)
    assert not is_one_file([TreeEntry("out", FOLDER, 0o755)], out)
    assert not is_one_file([TreeEntry("out", FILE)], WorkPath("train", "out", inside=True))


@pytest.mark.parametrize(
    ("path", "is_file", "target", "place", "expected"),
    [
        ("out/a", True, ".", LocalPlace.FOLDER, (".", "a")),
        ("out/a", True, "dir", LocalPlace.FOLDER, ("dir", "a")),
        ("out/a", True, "b", LocalPlace.NOTHING, (".", "b")),
        ("out/a", True, "dir/b", LocalPlace.FILE, ("dir", "b")),
        ("out/a", True, "/tmp/b", LocalPlace.NOTHING, ("/tmp", "b")),
        ("out", False, "dir", LocalPlace.FOLDER, ("dir/out", "")),
        ("out/.", False, "dir", LocalPlace.FOLDER, ("dir", "")),
        ("out", False, "new", LocalPlace.NOTHING, ("new", "")),
        ("", False, "dir", LocalPlace.FOLDER, ("dir/train", "")),
        ("", False, "new", LocalPlace.NOTHING, ("new", "")),
    ],
)
def test_things_land_here_as_docker_cp_lands_them(
    path: str, is_file: bool, target: str, place: LocalPlace, expected: tuple[str, str]
) -> None:
    source = work_path(f"train:{path}")
    assert source is not None
    name = "train" if source.path == "." else source.path.rpartition("/")[2]
    assert landing(source, is_file=is_file, name=name, target=target, place=place) == expected


def test_nothing_lands_where_something_else_is_meant() -> None:
    source = WorkPath("train", "out")
    with pytest.raises(HarchError, match="new/ is not a folder"):
        landing(source, is_file=True, name="out", target="new/", place=LocalPlace.NOTHING)
    with pytest.raises(HarchError, match="b is a file; out is a folder"):
        landing(source, is_file=False, name="out", target="b", place=LocalPlace.FILE)


@pytest.mark.parametrize(
    ("target", "is_file", "contents", "expected"),
    [
        ("t:", True, False, (".", "a")),
        ("t:in/", True, False, ("in", "a")),
        ("t:in", True, False, (".", "in")),
        ("t:in/b", True, False, ("in", "b")),
        ("t:", False, False, ("a", "")),
        ("t:in/", False, False, ("in/a", "")),
        ("t:in/", False, True, ("in", "")),
        ("t:in", False, False, ("in", "")),
        ("t:.", False, True, (".", "")),
    ],
)
def test_at_the_work_the_words_decide(target: str, is_file: bool, contents: bool, expected: tuple[str, str]) -> None:
    place = work_path(target)
    assert place is not None
    assert placing(place, is_file=is_file, name="a", contents=contents) == expected
