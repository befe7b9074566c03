"""What is in a folder that is to be packed? Its files, folders and links, with sizes and times, and no link followed.

Nothing is opened but folders and ignore files. What cannot be packed is refused by name, all of it at once: a tree that
silently lacks a file fails later, on another machine, after it has waited for a GPU.

**Links** stay links, as git, tar and rsync keep them. An absolute one that leads to a place inside of the folder is
made relative, so that it leads to the same place wherever the tree is unpacked. One that leads out of the folder would
lead to nothing, or to something else, on another machine; whether that is refused or only reported is the caller's
choice (`OutsideLinks`). One whose target does not exist is as broken there as here, and is packed as it is.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

from msgspec import Struct

from harch.base.errors import HarchError, Problems
from harch.content.beneath import Base, base_of, is_link_error, open_file, open_folder
from harch.content.ignore import (
    ENVIRONMENT_MARK,
    GITIGNORE,
    HARCHIGNORE,
    IGNORE_FILE_BYTES_MAX,
    IgnoreRules,
)
from harch.content.model import EntryKind, path_problem

PERMISSIONS = 0o777  # set-user-id and the like are never packed
LARGEST_LISTED = 5
_UNITS = ("B", "kB", "MB", "GB", "TB")
COUNTED_BEYOND_MAX = 100_000  # entries that are still looked at, to name the largest, once there are too many


class OutsideLinks(Enum):
    """Links to what exists here and lies outside of the folder."""

    REFUSE = "refuse"  # E1106: data that lacks a file is worth nothing
    KEEP = "keep"  # as links, listed in the scan: results, and code that knows its cluster


class FileStamp(Struct, frozen=True, array_like=True, gc=False):
    """What changes when a file does. `ctime_ns` cannot be set by anybody, so it also reveals an mtime that was."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class ScannedEntry(Struct, frozen=True, gc=False):
    """One path of a folder. `target` is that of a link."""

    path: str
    kind: EntryKind
    mode: int
    stamp: FileStamp
    target: str = ""


class FolderScan(Struct, frozen=True, kw_only=True):
    """What was found, sorted by path. `outside_links`: (path, target) of links that lead out of the folder."""

    base: Base
    entries: list[ScannedEntry]
    size_bytes: int
    files: int
    bytes_max: int
    outside_links: list[tuple[str, str]] = []

    @property
    def folder(self) -> Path:
        return self.base.path


def stamp_of(found: os.stat_result) -> FileStamp:
    return FileStamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def scan(
    folder: Path,
    *,
    rules: IgnoreRules | None,
    bytes_max: int,
    entries_max: int,
    outside_links: OutsideLinks = OutsideLinks.REFUSE,
    within: Path | None = None,
) -> FolderScan:
    """`folder` may be a single file: its tree has this one entry. `rules`: `IgnoreRules()` for code, None for data.

    `within`: a folder that others can write to; from there on no link is followed on the way to `folder` either.
    Raises E1106 for what cannot be packed, and E1108 above a limit.
    """
    try:
        base, only = _find_base(folder, within)
        with base.opened() as descriptor:
            walk = _Walk(base, descriptor, bytes_max, entries_max, outside_links)
            if only is not None:
                walk.add(descriptor, "", only, os.stat(only, dir_fd=descriptor, follow_symlinks=False))
            else:
                walk.run(rules)
    except OSError as error:
        raise HarchError("E1106", f"`{folder}` cannot be read: {error.strerror}", hint="name a folder") from error
    except ValueError as error:
        raise HarchError("E1106", str(error), hint="name a folder below it") from error
    return walk.result(has_rules=rules is not None)


def _find_base(folder: Path, within: Path | None) -> tuple[Base, str | None]:
    """The folder, or the folder and name of a single file."""
    base = base_of(folder, within)
    try:
        with base.opened():
            return base, None
    except NotADirectoryError:
        parent = Base(base.trusted, os.path.dirname(base.below)) if base.below else Base(base.trusted.parent)
        name = os.path.basename(base.below) if base.below else base.trusted.name
        with parent.opened() as descriptor:
            if not stat.S_ISREG(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                raise
        return parent, name


class _Walk:
    """One scan: what was found, and what is wrong with it."""

    def __init__(
        self, base: Base, descriptor: int, bytes_max: int, entries_max: int, outside_links: OutsideLinks
    ) -> None:
        self._base, self._descriptor = base, descriptor
        self._bytes_max, self._entries_max, self._policy = bytes_max, entries_max, outside_links
        self._top = str(base.path)
        self._entries: list[ScannedEntry] = []
        self._size_bytes = self._files = 0
        self._outside: list[tuple[str, str]] = []
        self._problems = Problems()
        self._is_complete = True

    def run(self, rules: IgnoreRules | None) -> None:
        above = ""
        if rules is not None:
            above, rules = _rules_above(self._base, rules)
        folders: list[tuple[str, IgnoreRules | None]] = [("", rules)]
        while folders:
            if len(self._entries) > self._entries_max + COUNTED_BEYOND_MAX:
                self._is_complete = False
                return
            path, inherited = folders.pop()
            folders.extend(self._read(path, inherited, above))

    def _read(self, path: str, rules: IgnoreRules | None, above: str) -> Iterator[tuple[str, IgnoreRules | None]]:
        """Adds what is in one folder; gives the folders in it."""
        try:
            descriptor = open_folder(self._descriptor, path)
        except FileNotFoundError:
            return  # it was removed since it was listed
        except OSError as error:
            self._problems.add(path, f"cannot be read: {error.strerror}")
            return
        try:
            with os.scandir(descriptor) as listing:
                found = list(listing)
            if rules is not None:
                names = {entry.name for entry in found if entry.is_file(follow_symlinks=False)}
                if path and ENVIRONMENT_MARK in names:
                    return
                prefix = f"{above}{path}".removesuffix("/")
                rules = self._rules_in(rules, names, descriptor, path, os.fsencode(prefix))
            if path:
                self._append(path, EntryKind.FOLDER, os.fstat(descriptor))
            for entry in found:
                inner = f"{path}/{entry.name}" if path else entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                if rules is not None and rules.exclude(os.fsencode(above + inner), is_folder=is_folder):
                    continue
                if is_folder:
                    if self._is_path(inner):
                        yield inner, rules
                else:
                    try:
                        self.add(descriptor, path, entry.name, entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue  # it was removed since it was listed
        finally:
            os.close(descriptor)

    def _rules_in(self, rules: IgnoreRules, names: set[str], descriptor: int, path: str, prefix: bytes) -> IgnoreRules:
        contents = {}
        for name in (GITIGNORE, HARCHIGNORE):
            try:
                contents[name] = _read_ignore_file(descriptor, name) if name in names else b""
            except (OSError, ValueError) as error:
                # Without its rules more would be packed than the user wants, perhaps secrets.
                self._problems.add(f"{path}/{name}" if path else name, f"cannot be read: {error}")
                contents[name] = b""
        return rules.inside(prefix, gitignore=contents[GITIGNORE], harchignore=contents[HARCHIGNORE])

    def add(self, descriptor: int, folder: str, name: str, found: os.stat_result) -> None:
        """What is neither a folder nor left out."""
        path = f"{folder}/{name}" if folder else name
        if not self._is_path(path):
            return
        if stat.S_ISREG(found.st_mode):
            self._append(path, EntryKind.FILE, found)
            self._files += 1
            self._size_bytes += found.st_size
        elif stat.S_ISLNK(found.st_mode):
            self._append(path, EntryKind.LINK, found, self._target_of(descriptor, folder, name, path))
        else:
            self._problems.add(path, f"is {_kind_text(found.st_mode)}")

    def _append(self, path: str, kind: EntryKind, found: os.stat_result, target: str = "") -> None:
        mode = PERMISSIONS if kind is EntryKind.LINK else found.st_mode & PERMISSIONS  # of a link it means nothing
        self._entries.append(ScannedEntry(path, kind, mode, stamp_of(found), target))

    def _is_path(self, path: str) -> bool:
        problem = path_problem(path)
        if problem:
            self._problems.add(os.fsencode(path).decode(errors="backslashreplace"), problem)
        return not problem

    def _target_of(self, descriptor: int, folder: str, name: str, path: str) -> str:
        target = os.readlink(name, dir_fd=descriptor)
        try:
            target.encode()
        except UnicodeEncodeError:
            self._problems.add(path, "is a link whose target is not UTF-8")
            return ""
        place = os.path.join(self._top, folder)
        real = os.path.realpath(os.path.join(place, target))
        if real == self._top or real.startswith(self._top.rstrip("/") + "/"):
            # Made relative to the place of the link as it is named: a tree has no other names.
            return target if not os.path.isabs(target) else os.path.relpath(real, place)
        if os.path.lexists(real):
            self._outside.append((path, target))
            if self._policy is OutsideLinks.REFUSE:
                self._problems.add(path, f"is a link to {target}, outside of the folder")
        return target

    def result(self, *, has_rules: bool) -> FolderScan:
        """Raises E1106 and E1108."""
        is_too_large = self._size_bytes > self._bytes_max or len(self._entries) > self._entries_max
        if is_too_large:  # said first: whoever packs the wrong folder need not hear about its sockets
            raise self._too_large(has_rules)
        if self._problems:
            raise _not_packable(self._top, self._problems, has_rules)
        self._entries.sort(key=lambda entry: entry.path)
        return FolderScan(
            base=self._base,
            entries=self._entries,
            size_bytes=self._size_bytes,
            files=self._files,
            bytes_max=self._bytes_max,
            outside_links=sorted(self._outside),
        )

    def _too_large(self, has_rules: bool) -> HarchError:
        by_size = self._size_bytes > self._bytes_max
        counted = [
            (entry.path, entry.stamp.size if by_size else 1)
            for entry in self._entries
            if not (by_size and entry.kind is not EntryKind.FILE)
        ]
        largest = find_largest(counted)
        at_least = "" if self._is_complete else "more than "
        if by_size:
            head = f"it has {at_least}{size_text(self._size_bytes)}, and {size_text(self._bytes_max)} are allowed"
            listed = ", ".join(f"`{path}` {size_text(size)}" for path, size in largest)
        else:
            head = f"it has {at_least}{len(self._entries)} files and folders, and {self._entries_max} are allowed"
            listed = ", ".join(f"`{path}` {count}" for path, count in largest)
        way_out = "exclude what the work does not need in `.harchignore`" if has_rules else "name a smaller folder"
        return HarchError(
            "E1108",
            f"`{self._top}` is too large: {head}; the largest are {listed}",
            hint=way_out,
            meta={"largest": [list(each) for each in largest]},
        )


def _read_ignore_file(folder: int, name: str) -> bytes:
    descriptor = open_file(folder, name)
    with open(descriptor, "rb") as file:
        content = file.read(IGNORE_FILE_BYTES_MAX + 1)
    if len(content) > IGNORE_FILE_BYTES_MAX:
        raise ValueError(f"it is larger than {IGNORE_FILE_BYTES_MAX >> 20} MiB")
    return content


def _rules_above(base: Base, rules: IgnoreRules) -> tuple[str, IgnoreRules]:
    """What the ignore files above a folder say, if it is part of a repository: git reads them all, from its top.

    The first is the way from there, with a `/` at its end. A folder that its repository ignores was named in spite of
    that, so the rules above it do not count.
    """
    parents = [base.path, *base.path.parents]
    top = next((number for number, folder in enumerate(parents) if os.path.lexists(folder / ".git")), 0)
    inherited, way = rules, b""
    for folder, inner in zip(parents[top:0:-1], parents[top - 1 :: -1], strict=False):
        contents = [_read_if_there(folder / name) for name in (GITIGNORE, HARCHIGNORE)]
        inherited = inherited.inside(way.removesuffix(b"/"), gitignore=contents[0], harchignore=contents[1])
        way += os.fsencode(inner.name)
        if inherited.exclude(way, is_folder=True):
            return "", rules
        way += b"/"
    return os.fsdecode(way), inherited


def _read_if_there(path: Path) -> bytes:
    try:
        with base_of(path.parent, None).opened() as folder:
            return _read_ignore_file(folder, path.name)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if is_link_error(error):  # as git, which does not follow it either
            return b""
        raise


def _kind_text(mode: int) -> str:
    for test, text in (
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISCHR, "a device"),
    ):
        if test(mode):
            return text
    return "no file, folder or link"


def _not_packable(folder: str, problems: Problems, has_rules: bool) -> HarchError:
    what = "; ".join(f"`{path}` {problem}" for path, problem in problems.found)
    hint = "exclude it in `.harchignore`" if has_rules else "remove it from the folder"
    if "outside of the folder" in problems.found[0][1]:
        hint = "copy what it leads to into the folder, or " + hint
    return HarchError(
        "E1106",
        f"`{folder}` cannot be packed: {what}",
        hint=hint,
        meta={"paths": [path for path, _ in problems.found]},
    )


def find_largest(sizes: Iterable[tuple[str, int]], count: int = LARGEST_LISTED) -> list[tuple[str, int]]:
    """The files or folders that make a folder large. A folder gives way to what is in it, if that is most of it."""
    totals: dict[str, int] = defaultdict(int)
    inside: dict[str, set[str]] = defaultdict(set)
    for path, size in sizes:
        while path:
            totals[path] += size
            parent = path.rpartition("/")[0]
            inside[parent].add(path)
            path = parent
    found = []
    for path in inside[""]:
        while inside.get(path):
            main = max(inside[path], key=lambda inner: (totals[inner], inner))
            if totals[main] * 10 < totals[path] * 9:
                break
            path = main
        found.append((path, totals[path]))
    return sorted(found, key=lambda each: (-each[1], each[0]))[:count]


def size_text(size_bytes: int) -> str:
    """In powers of a thousand, as disks and their owners count."""
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or value >= 99.95 else f"{value:.3g} {_UNITS[unit]}"
