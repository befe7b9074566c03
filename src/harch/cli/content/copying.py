"""Where does `harch cp` put things? On this machine as `docker cp` does; at work a `/` at the end means inside it."""

# harch: pure

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harch.base.errors import HarchError
from harch.content.model import EntryKind, TreeEntry, path_problem

_EXAMPLES = "`harch cp ID:out/model.pt .` or `harch cp data.csv ID:in/`"


@dataclass(frozen=True, slots=True)
class WorkPath:
    """`ID:PATH`. `path` is below the working folder, `.` for all of it.

    `contents`: what is in that folder is meant, not the folder (`ID:out/.`, and `ID:out/` as the place to copy to).
    """

    ref: str
    path: str
    inside: bool = False
    contents: bool = False


class LocalPlace(StrEnum):
    """What stands where something is to be copied to."""

    NOTHING = "nothing"
    FILE = "file"
    FOLDER = "folder"

    @classmethod
    def of(cls, *, exists: bool, is_folder: bool) -> LocalPlace:
        return cls.FOLDER if is_folder else cls.FILE if exists else cls.NOTHING


def work_path(word: str) -> WorkPath | None:
    """None for a path of this machine: what has a `/` before its first `:`, or no `:` at all."""
    ref, colon, path = word.partition(":")
    if not colon or not ref or "/" in ref or ref.startswith("."):
        return None
    if path.startswith("/"):
        hint = f"paths are below the working folder: {ref}:{path.lstrip('/')}"
        raise HarchError("E0201", f"`{path}` is absolute", hint=hint)
    plain = posixpath.normpath(path) if path else "."
    if plain != "." and (why := path_problem(plain)):
        raise HarchError("E0201", f"`{path}` {why}", hint="name a path below the working folder")
    return WorkPath(ref, plain, inside=path.endswith("/") or plain == ".", contents=path.endswith("/.") or path == ".")


def direction(source: str, target: str) -> tuple[WorkPath | None, WorkPath | None]:
    """Exactly one of both is at a workload. Raises E0201."""
    for word in (source, target):
        if word == "-":
            raise HarchError("E0201", "cp reads no stdin and writes no stdout", hint=f"name a file: {_EXAMPLES}")
    pair = (work_path(source), work_path(target))
    if pair[0] is not None and pair[1] is not None:
        raise HarchError("E0201", "cp does not copy from one workload to another", hint="copy it here first")
    if pair[0] is None and pair[1] is None:
        raise HarchError("E0201", "neither path is at a workload", hint=f"write ID:PATH: {_EXAMPLES}")
    return pair


def is_one_file(entries: Sequence[TreeEntry], source: WorkPath) -> bool:
    """Whether the snapshot is that of a file: then it has nothing but an entry of its name.

    So has a folder with a single file of its own name: `ID:out/` says that a folder is meant.
    """
    if source.inside or source.contents or len(entries) != 1:
        return False
    return entries[0].kind is not EntryKind.FOLDER and entries[0].path == posixpath.basename(source.path)


def landing(source: WorkPath, *, is_file: bool, name: str, target: str, place: LocalPlace) -> tuple[str, str]:
    """(folder, name): a file gets this name in that folder; of a folder, what is in it goes there, and `name` is empty.

    `name`: what the copy is called inside of a folder that exists. Raises E0201 where something is in the way.
    """
    if is_file:
        if place is LocalPlace.FOLDER:
            return target, name
        if target.endswith("/"):
            raise HarchError("E0201", f"{target} is not a folder", hint="create it first, or leave the `/` out")
        return posixpath.dirname(target) or ".", posixpath.basename(target)
    if place is LocalPlace.FILE:
        raise HarchError("E0201", f"{target} is a file; {source.path} is a folder", hint="name a folder")
    if place is LocalPlace.FOLDER and not source.contents:
        return posixpath.join(target, name), ""
    return target, ""


def placing(target: WorkPath, *, is_file: bool, name: str, contents: bool) -> tuple[str, str]:
    """(folder, name): at the workload a file gets this name in that folder; of a folder, what is in it goes there.

    Nobody looks there first, so the words decide: `ID:in/` is a folder to copy into, `ID:in` what the copy is called.
    """
    if not is_file:
        inside = target.inside and not contents
        return posixpath.normpath(posixpath.join(target.path, name)) if inside else target.path, ""
    if target.inside:
        return target.path, name
    return posixpath.dirname(target.path) or ".", posixpath.basename(target.path)
