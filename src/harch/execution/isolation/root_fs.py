"""How does a task that runs in an image see its files? The mounts of bubblewrap, from what the image has.

The image is unpacked once per node and shown read-only to every task that runs in it. Folders of the task are mounted
at the same paths as outside, and an image has none of these. Nothing may be created in a read-only folder, so a folder
of the image in which a mount point is missing is replaced: by an empty one in memory, with all that it has mounted
again beside the mount point.

An image is foreign, and its symbolic links lead wherever it likes: no path is resolved through one of them. A link that
stands where a mount point must be, or above one, is left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from harch.base.errors import HarchError

CHILDREN_MAX = 500  # of a folder that is replaced: each becomes a mount, and a start with so many takes seconds
_TARGET_AT = {  # options of bubblewrap that need a mount point: which of their arguments it is
    "--bind": 2,
    "--ro-bind": 2,
    "--ro-bind-try": 2,
    "--dev-bind": 2,
    "--dev-bind-try": 2,
    "--tmpfs": 1,
    "--proc": 1,
    "--dev": 1,
}


@dataclass(frozen=True, slots=True)
class RootFs:
    """An unpacked image. `etc`: files that take the place of those in its /etc, as (name, path on the node)."""

    path: str
    etc: tuple[tuple[str, str], ...] = ()

    def mode_of(self, path: str) -> int | None:
        """Type and permissions of an absolute path inside; none if it is not there, or lies behind a link."""
        found = os.lstat(self.path)
        for part in _parts_above(path):
            if not stat.S_ISDIR(found.st_mode):
                return None
            try:
                found = os.lstat(self.path + part)
            except OSError:
                return None
        return found.st_mode

    def is_folder(self, path: str) -> bool:
        mode = self.mode_of(path)
        return mode is not None and stat.S_ISDIR(mode)

    def children(self, folder: str) -> list[os.DirEntry[str]]:
        """In order. Raises E1133 for a folder that has too many to be mounted one by one."""
        with os.scandir(self.path + folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        if len(found) > CHILDREN_MAX:
            raise HarchError(
                "E1133",
                f"the image has {len(found)} files in {folder}, where folders of the task must be mounted",
                hint=f"keep what the image brings out of {folder}, or below a folder of its own",
            )
        return found


def _parts_above(path: str) -> list[str]:
    """`/a/b` is `/a`, `/a/b`."""
    pure = PurePosixPath(path)
    return [str(part) for part in (*reversed(pure.parents), pure) if str(part) != "/"]


@dataclass(frozen=True, slots=True)
class MountPoint:
    path: str
    is_folder: bool


def mount_points(mounts: Sequence[str]) -> list[MountPoint]:
    """What bubblewrap's options for mounts, and no others, mount something on, in order."""
    found, at = [], 0
    while at < len(mounts):
        words = _TARGET_AT[mounts[at]]
        source, target = mounts[at + 1], os.path.normpath(mounts[at + words])
        if words == 1:
            found.append(MountPoint(target, True))
        elif os.path.exists(source):  # else bubblewrap skips it, or says that it is not there
            found.append(MountPoint(target, os.path.isdir(source)))
        at += 1 + words
    return found


@dataclass(frozen=True, slots=True)
class RootPlan:
    """`replaced`: folders of the image that become empty ones in memory, parents first, with what else they have.
    `left_out`: paths of the image that give way to a mount point."""

    replaced: tuple[str, ...]
    left_out: frozenset[str]


def plan_root(root: RootFs, points: Iterable[MountPoint]) -> RootPlan:
    """What must be replaced so that each of `points` can be mounted, in their order."""
    replaced: set[str] = set()
    left_out: set[str] = set()
    mounted: list[str] = []  # what lies below one of these is no longer the image's
    for point in points:
        if not any(_is_below(point.path, folder) for folder in mounted):
            _make_room(root, point, replaced, left_out)
        if point.is_folder:
            mounted.append(point.path)
    return RootPlan(tuple(sorted(replaced, key=lambda path: (path.count("/"), path))), frozenset(left_out))


def _make_room(root: RootFs, point: MountPoint, replaced: set[str], left_out: set[str]) -> None:
    above = "/"
    for path in _parts_above(point.path):
        mode = root.mode_of(path)
        is_last = path == point.path
        wanted = stat.S_ISREG if is_last and not point.is_folder else stat.S_ISDIR
        if mode is not None and not wanted(mode):
            left_out.add(path)
            mode = None
        if mode is None:
            replaced.add(above)
            return
        above = path


def root_arguments(root: RootFs, mounts: Sequence[str]) -> tuple[list[str], list[str]]:
    """What bubblewrap must be given before `mounts`, and after them, so that they stand in an image."""
    plan = plan_root(root, mount_points(mounts))
    before = [] if "/" in plan.replaced else ["--ro-bind", root.path, "/"]
    for folder in plan.replaced:
        if folder != "/":  # there bubblewrap begins with an empty folder anyway
            before += ["--tmpfs", folder]
        for child in root.children(folder):
            path = f"{folder.rstrip('/')}/{child.name}"
            if path not in plan.left_out and path not in plan.replaced:
                before += _show(child, path)
    after = [word for folder in plan.replaced if folder != "/" for word in ("--remount-ro", folder)]
    return before, after


def _show(child: os.DirEntry[str], path: str) -> list[str]:
    if child.is_symlink():
        words = ["--symlink", os.readlink(child.path), path]
    elif child.is_dir(follow_symlinks=False) or child.is_file(follow_symlinks=False):
        words = ["--ro-bind", child.path, path]
    else:
        return []  # neither pipes nor sockets nor devices
    # A launch file is JSON, which has no place for names that are not UTF-8.
    return words if all(map(_is_text, words)) else []


def _is_text(word: str) -> bool:
    return not any("\udc80" <= char <= "\udcff" for char in word)


def _is_below(path: str, folder: str) -> bool:
    """Strictly; both must be absolute and normalised."""
    return path.startswith(folder.rstrip("/") + "/") and path != folder
