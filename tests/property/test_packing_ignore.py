"""Are ignore files read as git reads them? Compared with git itself, on random files and patterns."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from harch.content.ignore import IgnoreRules
from harch.content.packing import OutsideLinks, scan

_NAMES = st.sampled_from(
    ["a", "b", "ab", "foo", "bar", "foobar", "x.py", "a b", "[x]", "#c", "!d", "a*", "b?", "c\\d", "é", "A", "a-b", "]",
     "^", " ", "b ", "a\tb", "a\nb", "\x0b"]
)  # fmt: skip
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_PIECES = st.sampled_from(
    ["a", "b", "x", "foo", "bar", ".py", "é", "*", "**", "***", "?", "/", "!", "#", " ", "\\", "\t", "\r", "-", "[",
     "]", "[ab]", "[!a]", "[^-a]", "[a-c]", "[]a]", "[a-]", "[--b]", "[\\]]", "[a-\\c]", "[[:alpha:]]", "[[:space:]]",
     "[[:punct:]]", "[[:cntrl:]]", "[[:x", "[[:foo:]]", "[[:]"]
)  # fmt: skip
_USUAL = st.sampled_from(
    ["a", "/a", "a/", "a/b", "**/a", "a/**", "a/**/b", "*", "*.py", "!a", "!/foo/", "f*", "foo/*", "!foo/bar", "**",
     "**/", "/**", "/*", "!*/", "!*.py", "foo**", "**foo", "a**b", "/foo/**/bar", "*/b", "foo**/bar", "/foo/bar/",
     "!a/b", ""]
)  # fmt: skip
_PATTERNS = st.one_of(_USUAL, st.lists(_PIECES, min_size=1, max_size=5).map("".join))
_IGNORE_FILES = st.lists(_PATTERNS, min_size=1, max_size=5).map("\n".join)


def make(top: Path, paths: list[str], links: list[str], ignore_files: dict[str, str]) -> None:
    for path in [*paths, *links]:
        place = top / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if path in links:
                place.symlink_to(".")
            elif not place.is_dir():
                place.touch()
        except (FileExistsError, NotADirectoryError):
            continue  # another path is in its way
    for folder, content in ignore_files.items():
        if (top / folder).is_dir():
            (top / folder / ".gitignore").write_bytes(content.encode())


def git(top: Path, *command: str) -> bytes:
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(["git", *command], cwd=top, env=environment, check=True, capture_output=True).stdout


def listed_by_git(top: Path, folder: Path) -> set[str]:
    git(top, "init", "-q")
    listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-per-directory=.gitignore")
    return set(os.fsdecode(listed).split("\0")) - {""}


def listed_by_scan(folder: Path) -> set[str]:
    scanned = scan(folder, rules=IgnoreRules(), bytes_max=1 << 30, entries_max=10_000, outside_links=OutsideLinks.KEEP)
    return {entry.path for entry in scanned.entries if not (folder / entry.path).is_dir() or entry.target}


@given(
    paths=st.lists(_PATHS, max_size=25),
    links=st.lists(_PATHS, max_size=3),
    ignore_files=st.dictionaries(st.one_of(st.just(""), _PATHS), _IGNORE_FILES, min_size=1, max_size=3),
)
@example(["foobar/x", "foo/bar", "foobar"], [], {"": "foo**/bar"})  # `**` behind what is compared as it is
@example(["a/b/x", "a/y"], [], {"": "a/*\n!a/b"})
@example(["a/b"], ["foo"], {"": "foo/"})  # a link to a folder is none
@example(["a"], [], {"": "\ufeffa"})
@example(["a ", "a"], [], {"": "a\\ \r"})
@settings(max_examples=150)
def test_the_same_files_are_left_out_as_by_git(
    paths: list[str], links: list[str], ignore_files: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        top = Path(root)
        make(top, paths, links, ignore_files)
        assert listed_by_scan(top) == listed_by_git(top, top)


@given(
    paths=st.lists(_PATHS.map("sub/deep/{}".format), min_size=1, max_size=15),
    ignore_files=st.dictionaries(st.sampled_from(["", "sub", "sub/deep"]), _IGNORE_FILES, min_size=1, max_size=3),
)
@settings(max_examples=60)
def test_a_folder_of_a_repository_obeys_the_ignore_files_above_it_as_in_git(
    paths: list[str], ignore_files: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        top, folder = Path(root), Path(root, "sub", "deep")
        folder.mkdir(parents=True)
        make(top, paths, [], ignore_files)
        listed = listed_by_git(top, folder)
        is_left_out = subprocess.run(["git", "check-ignore", "-q", "sub/deep"], cwd=top, check=False).returncode == 0
        if not is_left_out:  # a folder that git leaves out was named on purpose
            assert listed_by_scan(folder) == listed
