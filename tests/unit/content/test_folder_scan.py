"""What of a folder is packed, what is refused, and is it said by name?"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.content import folder_scan
from harch.content.folder_scan import FolderScan, OutsideLinks, find_largest, scan, size_text
from harch.content.ignore import IGNORE_FILE_BYTES_MAX, IgnoreRules
from harch.content.model import EntryKind


def scanned(
    folder: Path,
    rules: IgnoreRules | None = None,
    *,
    bytes_max: int = 1 << 30,
    entries_max: int = 1000,
    outside_links: OutsideLinks = OutsideLinks.REFUSE,
    within: Path | None = None,
) -> FolderScan:
    return scan(
        folder,
        rules=rules,
        bytes_max=bytes_max,
        entries_max=entries_max,
        outside_links=outside_links,
        within=within,
    )


def written(folder: Path, *paths: str, content: str = "x") -> Path:
    for path in paths:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return folder


def paths_of(found: FolderScan) -> list[str]:
    return [entry.path for entry in found.entries]


def refused(folder: Path, rules: IgnoreRules | None = None, **limits: int) -> HarchError:
    with pytest.raises(HarchError) as caught:
        scanned(folder, rules, **limits)  # type: ignore[arg-type]
    return caught.value


def test_a_scan_is_sorted_and_counts_what_it_found(tmp_path: Path) -> None:
    written(tmp_path, "b/c", "a.txt", "a/z", content="four")
    (tmp_path / "empty").mkdir()
    found = scanned(tmp_path)
    assert paths_of(found) == ["a", "a.txt", "a/z", "b", "b/c", "empty"]
    assert (found.files, found.size_bytes) == (3, 12)


def test_one_file_is_a_tree_of_one_entry(tmp_path: Path) -> None:
    written(tmp_path, "sub/model.pt", "sub/other")
    assert paths_of(scanned(tmp_path / "sub" / "model.pt")) == ["model.pt"]
    assert paths_of(scanned(tmp_path / "sub" / "model.pt", within=tmp_path)) == ["model.pt"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    error = refused(tmp_path / "nothing")
    assert error.code == "E1106"
    assert isinstance(error.__cause__, FileNotFoundError)


# What cannot be packed


def test_everything_that_cannot_be_packed_is_named_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "listener"))
        (tmp_path / os.fsdecode(b"latin-\xe9")).touch()
        error = refused(tmp_path)
    assert error.code == "E1106"
    assert "`pipe` is a pipe" in error.message
    assert "`listener` is a socket" in error.message
    assert "`latin-\\xe9` is not UTF-8" in error.message


def test_what_is_left_out_is_not_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    written(tmp_path, ".harchignore", content="pipe\n")
    assert paths_of(scanned(tmp_path, IgnoreRules())) == [".harchignore"]


def test_ignore_files_that_cannot_be_read_stop_it_since_more_would_be_packed(tmp_path: Path) -> None:
    written(tmp_path, "sub/.gitignore", content="#" * (IGNORE_FILE_BYTES_MAX + 1))
    error = refused(tmp_path, IgnoreRules())
    assert error.code == "E1106"
    assert "sub/.gitignore" in error.message


# Limits


def test_a_folder_above_the_limit_names_its_five_largest_parts(tmp_path: Path) -> None:
    for number in range(7):
        written(tmp_path, f"small-{number}", content="x" * (10 + number))
    written(tmp_path, "data/deep/corpus.bin", content="x" * 5000)
    written(tmp_path, "runs/1", "runs/2", content="x" * 600)
    error = refused(tmp_path, IgnoreRules(), bytes_max=6000)
    assert error.code == "E1108"
    assert "6.29 kB, and 6 kB are allowed" in error.message
    largest = ["data/deep/corpus.bin", "runs", "small-6", "small-5", "small-4"]
    assert error.meta["largest"] == [[path, size] for path, size in zip(largest, [5000, 1200, 16, 15, 14], strict=True)]
    assert ".harchignore" in error.hint


def test_a_folder_of_too_many_files_names_where_they_are(tmp_path: Path) -> None:
    written(tmp_path, *(f"cache/{number}" for number in range(12)), "train.py")
    error = refused(tmp_path, IgnoreRules(), entries_max=10)
    assert error.code == "E1108"
    assert "`cache` 13" in error.message


def test_a_limit_is_the_most_that_is_allowed(tmp_path: Path) -> None:
    written(tmp_path, "a", "b", content="xxx")
    assert scanned(tmp_path, bytes_max=6, entries_max=2).files == 2
    assert refused(tmp_path, bytes_max=5).code == refused(tmp_path, entries_max=1).code == "E1108"


def test_a_home_folder_by_mistake_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_scan, "COUNTED_BEYOND_MAX", 10)
    written(tmp_path, *(f"{number}/file" for number in range(40)))
    error = refused(tmp_path, entries_max=5)
    assert "more than" in error.message
    assert sum(count for _, count in error.meta["largest"]) < 40  # type: ignore[attr-defined]


def test_the_largest_are_files_where_one_makes_up_its_folder_and_folders_elsewhere() -> None:
    sizes = [("a/b/large", 95), ("a/b/small", 5), ("c/1", 30), ("c/2", 30), ("d", 1)]
    assert find_largest(sizes) == [("a/b/large", 95), ("c", 60), ("d", 1)]
    assert find_largest(sizes, 1) == [("a/b/large", 95)]


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_950, "1 MB"), (1_234_567, "1.23 MB"), (10**14, "100 TB")],
)
def test_sizes_have_three_digits(size: int, said: str) -> None:
    assert size_text(size) == said


# Links


def test_a_link_is_packed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    written(tmp_path, "folder/file")
    (tmp_path / "link").symlink_to("folder")
    found = scanned(tmp_path)
    assert paths_of(found) == ["folder", "folder/file", "link"]
    assert (found.entries[2].kind, found.entries[2].target) == (EntryKind.LINK, "folder")


def test_an_absolute_link_to_the_inside_is_made_relative(tmp_path: Path) -> None:
    """Where it is unpacked its target has another absolute path."""
    written(tmp_path, "runs/2/model")
    (tmp_path / "runs" / "latest").symlink_to(tmp_path / "runs" / "2")
    (tmp_path / "here").symlink_to(tmp_path)
    targets = {entry.path: entry.target for entry in scanned(tmp_path).entries}
    assert targets["runs/latest"] == "2"
    assert targets["here"] == "."


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_link_to_the_outside_is_refused_by_name_or_kept_and_listed(tmp_path: Path, is_absolute: bool) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "corpus"
    outside.mkdir()
    written(folder, "file")
    target = str(outside) if is_absolute else "../corpus"
    (folder / "data").symlink_to(target)
    error = refused(folder)
    assert error.code == "E1106"
    assert f"`data` is a link to {target}" in error.message
    kept = scanned(folder, outside_links=OutsideLinks.KEEP)
    assert kept.outside_links == [("data", target)]
    assert [entry.target for entry in kept.entries] == [target, ""]


def test_a_folder_whose_name_only_begins_like_ours_is_outside(tmp_path: Path) -> None:
    written(tmp_path, "code/file", "code-old/file")
    (tmp_path / "code" / "old").symlink_to("../code-old/file")
    assert refused(tmp_path / "code").code == "E1106"


def test_a_link_that_is_broken_here_is_packed_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("user@host.123")
    (tmp_path / "gone").symlink_to("/no/such/place")
    found = scanned(tmp_path)
    assert [entry.target for entry in found.entries] == ["/no/such/place", "user@host.123"]
    assert found.outside_links == []


def test_below_a_folder_that_others_can_write_to_no_link_is_followed(tmp_path: Path) -> None:
    work, private = tmp_path / "work", tmp_path / "private"
    written(private, "key")
    work.mkdir()
    (work / "out").symlink_to(private)
    (work / "key").symlink_to(private / "key")
    assert paths_of(scanned(work / "out")) == ["key"]
    for way in (work / "out", work / "out" / "key", work / "key", work / ".." / "private"):
        with pytest.raises(HarchError) as caught:
            scanned(way, within=work, outside_links=OutsideLinks.KEEP)
        assert caught.value.code == "E1106"


def test_the_folder_within_which_no_link_is_followed_may_be_reached_by_one(tmp_path: Path) -> None:
    written(tmp_path, "real/out/file")
    (tmp_path / "work").symlink_to("real")
    assert paths_of(scanned(tmp_path / "work" / "out", within=tmp_path / "work")) == ["file"]
    assert paths_of(scanned(tmp_path / "work", within=tmp_path / "work")) == ["out", "out/file"]


# Ignore files


def test_code_comes_without_histories_caches_and_environments(tmp_path: Path) -> None:
    written(tmp_path, "train.py", ".git/HEAD", "sub/__pycache__/m.pyc", "node_modules/m.js", ".venv/bin/python")
    written(tmp_path, "my-env/pyvenv.cfg", "my-env/lib/m.py", ".harch-0123.part/0", "venv/notes.md")
    assert paths_of(scanned(tmp_path, IgnoreRules())) == ["sub", "train.py", "venv", "venv/notes.md"]


def test_of_data_nothing_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, ".gitignore", content="*")
    written(tmp_path, ".git/HEAD", "__pycache__/m.pyc", "file")
    assert scanned(tmp_path).files == 4


def test_harchignore_has_the_last_word_at_every_level(tmp_path: Path) -> None:
    written(tmp_path, ".gitignore", content="*.pt\nnotes/\n")
    written(tmp_path, "runs/.gitignore", content="*\n")
    written(tmp_path, ".harchignore", content="!best.pt\n*.csv\n")
    written(tmp_path, "best.pt", "last.pt", "table.csv", "runs/best.pt", "runs/log", "notes/a")
    found = scanned(tmp_path, IgnoreRules())
    assert paths_of(found) == [".gitignore", ".harchignore", "best.pt", "runs", "runs/best.pt"]


def test_an_environment_itself_can_be_packed_if_it_is_named(tmp_path: Path) -> None:
    written(tmp_path, "pyvenv.cfg", "bin/tool")
    assert paths_of(scanned(tmp_path, IgnoreRules())) == ["bin", "bin/tool", "pyvenv.cfg"]


def test_rules_of_the_repository_around_count_unless_it_ignores_the_whole_folder(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    written(tmp_path, ".gitignore", content="*.bin\n/out/\n/team/*.csv\n")
    written(tmp_path, "team/train.py", "team/data.bin", "team/a.csv", "out/data.bin")
    assert paths_of(scanned(tmp_path / "team", IgnoreRules())) == ["train.py"]
    assert paths_of(scanned(tmp_path / "out", IgnoreRules())) == ["data.bin"]


def test_without_a_repository_around_no_file_above_is_read(tmp_path: Path) -> None:
    written(tmp_path, ".gitignore", content="*.bin\n")
    written(tmp_path, "folder/data.bin")
    assert paths_of(scanned(tmp_path / "folder", IgnoreRules())) == ["data.bin"]


def test_an_ignore_file_that_is_a_link_is_not_read_as_git_does_not(tmp_path: Path) -> None:
    written(tmp_path, "rules", content="a\n")
    written(tmp_path, "folder/a")
    (tmp_path / "folder" / ".gitignore").symlink_to("../rules")
    found = scanned(tmp_path / "folder", IgnoreRules(), outside_links=OutsideLinks.KEEP)
    assert paths_of(found) == [".gitignore", "a"]


def test_a_pattern_of_many_stars_takes_no_time(tmp_path: Path) -> None:
    written(tmp_path, ".gitignore", content="*a" * 60 + "b\n")
    written(tmp_path, "a" * 200)
    assert len(paths_of(scanned(tmp_path, IgnoreRules()))) == 2
