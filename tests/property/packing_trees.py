"""Folders that tests of packing make, and what is in a folder, to compare."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

KIB = 1024
_NAMES = st.sampled_from(
    ["a", "b", "c", "a b", "é", "-x", "A", "a.py", "new\nline", ".hidden", "#", "a-b", "~", "z" * 200]
)
_SIZES = st.sampled_from([0, 1, 7, 4 * KIB, 128 * KIB, 128 * KIB + 1, 300 * KIB, 900 * KIB])
_TARGETS = st.sampled_from(["a", "../a", "b/c", "nothing", "./a b", "..", "a/../b", "é"])


class File(NamedTuple):
    """Content that follows from a number, so that examples are short to print."""

    size: int
    seed: int
    mode: int

    @property
    def content(self) -> bytes:
        return random.Random(self.seed).randbytes(self.size)


class Folder(NamedTuple):
    mode: int


class Link(NamedTuple):
    target: str


Node = File | Folder | Link
_FILES = st.builds(
    File, _SIZES, st.integers(0, 3), st.sampled_from([0o644, 0o755, 0o600, 0o444, 0o4755, 0o2664, 0o777])
)
_FOLDERS = st.builds(Folder, st.sampled_from([0o755, 0o700, 0o555, 0o1777]))
_LINKS = st.builds(Link, _TARGETS)
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)


def trees(max_size: int = 12) -> st.SearchStrategy[dict[str, Node]]:
    """Paths and what stands there; a path below a file or link is left out, folders above a path are there."""
    nodes = st.one_of(_FILES, _FILES, _FILES, _FOLDERS, _LINKS)
    return st.dictionaries(_PATHS, nodes, max_size=max_size).map(_consistent)


def _consistent(drawn: Mapping[str, Node]) -> dict[str, Node]:
    tree: dict[str, Node] = {}
    for path in sorted(drawn):
        parts = path.split("/")
        parents = ["/".join(parts[:count]) for count in range(1, len(parts))]
        if all(isinstance(tree.get(parent, Folder(0)), Folder) for parent in parents):
            tree |= {parent: tree.get(parent, Folder(0o755)) for parent in parents}
            tree[path] = drawn[path]
    return tree


def make(folder: Path, tree: Mapping[str, Node], *, backwards: bool = False) -> None:
    """`backwards`: made in another order, with other times."""
    for path in sorted(tree, reverse=backwards):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        match tree[path]:
            case File() as file:
                place.write_bytes(file.content)
                place.chmod(file.mode)
                if backwards:
                    os.utime(place, (1_000_000_000, 1_000_000_000))
            case Link(target):
                place.symlink_to(target)
            case Folder():
                place.mkdir(exist_ok=True)
    for path in sorted(tree, reverse=True):
        if isinstance(node := tree[path], Folder):
            (folder / path).chmod(node.mode)


def expected(tree: Mapping[str, Node]) -> dict[str, tuple[object, ...]]:
    """What `found` says of a folder that holds this tree."""
    said: dict[str, tuple[object, ...]] = {}
    for path, node in tree.items():
        match node:
            case File():
                said[path] = ("file", node.mode & 0o777, node.content)
            case Folder():
                said[path] = ("folder", node.mode & 0o777)
            case Link():
                said[path] = ("link", node.target)
    return said


def found(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder, no link followed; modes with all their bits."""
    said: dict[str, tuple[object, ...]] = {}
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            place = Path(parent, name)
            status = place.lstat()
            mode = stat.S_IMODE(status.st_mode)
            path = str(place.relative_to(folder))
            if stat.S_ISLNK(status.st_mode):
                said[path] = ("link", os.readlink(place))
            elif stat.S_ISDIR(status.st_mode):
                said[path] = ("folder", mode)
            elif stat.S_ISREG(status.st_mode):
                said[path] = ("file", mode, place.read_bytes())
            else:
                said[path] = ("other", mode)
    return said
