"""How does an image become a root file system? With umoci, watched, and put in order before anybody sees it.

umoci runs without rights: owners are left out, devices become empty files, and every byte of a layer is compared with
its digest while it is read. What it leaves is then made harmless: no bits that give rights to whoever runs a file, no
pipes, and no folder that the agent could not delete again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harch.execution.images.layout import LayoutImage, view_for_unpacking
from harch.execution.images.limits import DiskWatch, ImageSettings, in_words
from harch.execution.images.manifest import damaged
from harch.execution.images.tools import Hooks, ToolRunner, ToolView
from harch.execution.isolation.root_fs import RootFs

DEPTH_MAX = 128  # folders; what is deeper would break whoever walks it
ACCOUNTS_BYTES_MAX = 1024 * 1024
ROOT_FOLDER, ETC_FOLDER = "rootfs", "etc"
_OUT, _LAYOUT = "/out", "/layout"
MOUNTED_FOLDERS = ("/proc", "/dev", "/tmp", "/var/tmp", "/run", "/sys", "/etc")  # noqa: S108 - of the image
MOUNTED_FILES = ("/etc/hosts", "/etc/resolv.conf")
_RIGHTS = stat.S_ISUID | stat.S_ISGID
_TASK_ACCOUNT = "harch"


@dataclass(frozen=True, slots=True)
class Umoci:
    """`path`: of the program."""

    path: str
    runner: ToolRunner
    settings: ImageSettings

    def unpack(self, image: LayoutImage, folder: Path, scratch: Path, hooks: Hooks) -> RootFs:
        """At `folder`, which must be empty: the files, and what replaces some of its /etc. Raises E1133."""
        view = view_for_unpacking(image, scratch)
        watch = DiskWatch(
            folder,
            self.settings,
            bytes_max=self.settings.unpacked_bytes_max,
            progress=lambda done: hooks.progress(f"{in_words(done)} unpacked"),
        )
        done = self.runner.run(
            # Its warnings are of owners and attributes that it may not set: one for nearly every file.
            [
                *(self.path, "--log", "error", "raw", "unpack", "--rootless"),
                *("--image", f"{_LAYOUT}:{view.tag}", f"{_OUT}/{ROOT_FOLDER}"),
            ],
            ToolView(
                ((_OUT, str(folder)),), tuple((f"{_LAYOUT}/{name}", path) for name, path in view.files), network=False
            ),
            hooks,
            timeout_s=self.settings.unpack_s_max,
            watch=watch,
        )
        root = folder / ROOT_FOLDER
        if done.status or not root.is_dir():
            raise damaged(done.message)
        tidy(root)
        make_mount_points(RootFs(str(root)))
        watch.look()
        write_accounts(folder, os.getuid(), os.getgid())
        return root_of(folder)


def tidy(root: Path) -> None:
    """Takes away what no task needs and some would misuse. Raises E1133 for folders that are too deep."""
    waiting = [(str(root), 0)]
    while waiting:
        folder, depth = waiting.pop()
        if depth > DEPTH_MAX:
            raise damaged(f"it has more than {DEPTH_MAX} folders inside of each other")
        os.chmod(folder, stat.S_IMODE(os.lstat(folder).st_mode) & ~_RIGHTS | stat.S_IRWXU)
        with os.scandir(folder) as entries:
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    waiting.append((entry.path, depth + 1))
                elif not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                    os.unlink(entry.path)
                elif stat.S_ISREG(mode) and mode & _RIGHTS:
                    os.chmod(entry.path, stat.S_IMODE(mode) & ~_RIGHTS)


def make_mount_points(root: RootFs) -> None:
    """What is mounted in every task, so that no task has to replace a folder such as /etc, file by file, for it. Links
    of the image are not followed: where one is in the way, that task does."""
    for path in MOUNTED_FOLDERS:
        above = os.path.dirname(path)
        if root.mode_of(path) is None and (root.is_folder(above) or root.mode_of(above) is None):
            os.makedirs(root.path + path, exist_ok=True)
    for path in MOUNTED_FILES:
        mode = root.mode_of(path)
        if root.is_folder(os.path.dirname(path)) and (mode is None or stat.S_ISLNK(mode)):
            Path(root.path + path).unlink(missing_ok=True)
            Path(root.path + path).touch(mode=0o644, exist_ok=False)


def root_of(folder: Path) -> RootFs:
    """What `unpack` has put there."""
    etc = folder / ETC_FOLDER
    return RootFs(str(folder / ROOT_FOLDER), tuple((name, str(etc / name)) for name in sorted(os.listdir(etc))))


def write_accounts(folder: Path, uid: int, gid: int) -> None:
    """Many programs look up the name of the user that they run as, and an image does not know the agent's. So its files
    of accounts get a line, as Apptainer adds one. An image that has the account, or none at all, keeps what it has."""
    root = RootFs(str(folder / ROOT_FOLDER))
    etc = folder / ETC_FOLDER
    etc.mkdir(mode=0o700)
    for name, number, line in (
        ("passwd", uid, f"{_TASK_ACCOUNT}:x:{uid}:{gid}:task:/tmp:/bin/sh"),
        ("group", gid, f"{_TASK_ACCOUNT}:x:{gid}:"),
    ):
        lines = _lines_of(root, f"/etc/{name}")
        if lines is not None and all(str(number) not in one.split(":")[2:3] for one in lines):
            (etc / name).write_text("\n".join([*lines, line, ""]))


def _lines_of(root: RootFs, path: str) -> list[str] | None:
    """Of a small file of the image; none if there is no such file, or a link in its place."""
    mode = root.mode_of(path)
    file = Path(root.path + path)
    if mode is None or not stat.S_ISREG(mode) or file.stat().st_size > ACCOUNTS_BYTES_MAX:
        return None
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def remove_tree(folder: Path) -> None:
    """However deep and however read-only; links are deleted, never followed."""
    if folder.is_dir() and not folder.is_symlink():
        for path in reversed(list(_emptied(folder))):
            os.rmdir(path)


def _emptied(folder: Path) -> Iterator[str]:
    """Each folder, parents first, once its files are deleted."""
    waiting = [str(folder)]
    while waiting:
        path = waiting.pop()
        yield path
        os.chmod(path, stat.S_IRWXU)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    os.unlink(entry.path)
