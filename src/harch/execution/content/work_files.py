"""How are files read from, and put into, the working folder of a task that may be at work there?

Every path is opened step by step and through no link (`content.beneath`): a task may rename and link below its folder
while its agent, who may read more of the machine than the task, walks through it.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

from harch.base.errors import HarchError
from harch.content.beneath import Base, is_link_error, open_folder
from harch.content.exchange import download, read_tree, upload
from harch.content.model import ENTRIES_MAX, TREE_BYTES_MAX, path_problem
from harch.content.packing import OutsideLinks, PackedFolder, pack, scan
from harch.execution.content.cancellation import Cancellation
from harch.execution.content.hub_client import HubClient


def check_path(path: str) -> str:
    """Relative and without detours; the folder itself is the empty one. Raises E1111."""
    inner = posixpath.normpath(path.strip("/") or ".") if not path.startswith("/") else path
    if inner == ".":
        return ""
    if problem := path_problem(inner):
        raise HarchError("E1111", f"the path `{path[:200]}` {problem}", hint="name it as seen from the working folder")
    return inner


def exists(work: Path, path: str) -> bool:
    """Whether there is something other than a link. Raises E1111 where a link is in the way."""
    folder, _, name = path.rpartition("/")
    try:
        with Base(work).opened() as base:
            descriptor = open_folder(base, folder)
            try:
                if name:
                    os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            finally:
                os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        if is_link_error(error):
            raise link_in_the_way(path) from error
        raise
    return True


def link_in_the_way(path: str) -> HarchError:
    sentence = f"`{path}` leads through a link or a file, and links of a task are not followed"
    return HarchError("E1111", sentence, hint="name the folder that the link leads to")


def snapshot(work: Path, path: str, hub: HubClient, cancellation: Cancellation) -> PackedFolder:
    """What is there now, at the hub. Raises E1111, E1106 for what cannot be packed, and what the hub says."""
    path = check_path(path)
    if not exists(work, path):
        raise HarchError("E1111", f"the working folder has no `{path}`", hint="`harch cp ID:. DIR` fetches all of it")
    found = scan(
        work / path,
        rules=None,
        bytes_max=TREE_BYTES_MAX,
        entries_max=ENTRIES_MAX,
        outside_links=OutsideLinks.KEEP,
        within=work,
    )
    packed = pack(found, progress=lambda _: cancellation.check())
    upload(packed, hub.chunks(), progress=lambda _: cancellation.check())
    return packed


def place(work: Path, path: str, ref: str, digest: str, hub: HubClient, cancellation: Cancellation) -> tuple[int, int]:
    """Puts a tree of the hub there, over what has the same names; returns (bytes, files). Raises E1111 and E1113."""
    path = check_path(path)
    remote = hub.chunks(ref)
    root, entries = read_tree(digest, remote)
    try:
        download(entries, work / path, remote, progress=lambda _: cancellation.check(), within=work)
    except HarchError as error:
        if isinstance(error.__cause__, OSError) and is_link_error(error.__cause__):
            raise link_in_the_way(path) from error
        raise
    return root.size_bytes, root.files
