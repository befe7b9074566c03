"""What does an environment depend on? The files that it is made from, and whether other tasks may use it, too.

Equal inputs make equal keys, so whatever can change the result is one of them: the contents of every file that is
named, directly or by another, the hashes of wheels, the index. What is installed from the code itself (`-e .`, a path)
cannot be known by its name and depends on where it lies, so such an environment serves one task only.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3
from msgspec import Struct

from harch.base.errors import HarchError
from harch.content.beneath import Base, is_link_error, open_file, open_folder
from harch.workloads.spec import Environment

FILES_MAX = 100  # that requirements may name, one by another
FILE_BYTES_MAX = 64 * 1024 * 1024  # a lock of a large project has one or two
WHEELS_MAX = 10_000
READ_BYTES = 1024 * 1024
KEY_BYTES = 16  # it is part of every path in the environment
LOCK, PROJECT, SETTINGS = "uv.lock", "pyproject.toml", "uv.toml"
_INCLUDES = ("-r", "--requirement", "--requirements", "-c", "--constraint", "--constraints")
_LOCAL_OPTIONS = ("-e", "--editable", "-f", "--find-links")
_LOCAL_STARTS = ("./", "../", "/", "~", "file:", "${")
_LOCAL_ENDS = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz")
_LOCAL_SOURCES = frozenset({"editable", "directory", "path", "virtual", "workspace"})


class EnvironmentInputs(Struct, frozen=True):
    """`parts`: (what it is, its content or hash). `is_local`: made from the code of one task."""

    parts: tuple[tuple[str, bytes], ...]
    is_local: bool


class RequirementsFile(Struct, frozen=True):
    """`includes`: other files, relative to this one."""

    includes: tuple[str, ...]
    is_local: bool


def key_of(about: dict[str, str], inputs: EnvironmentInputs) -> str:
    """Of everything that makes an environment what it is."""
    digest = blake3(json.dumps(about, sort_keys=True).encode())
    for name, content in inputs.parts:
        digest.update(json.dumps([name, len(content)]).encode())
        digest.update(content)
    return digest.hexdigest(length=KEY_BYTES)


def read_inputs(environment: Environment, work: Path) -> EnvironmentInputs:
    """From the code, through no link that leads out of it. Raises E1120 for what is not there or not as it must be."""
    reader = _Reader(Path(os.path.realpath(work)))
    parts = [("packages", package.encode()) for package in environment.packages]
    is_local = any(parse_requirements(package).is_local for package in environment.packages)
    if environment.requirements is not None:
        files = dict(_requirements(reader, environment.requirements))
        parts += [(name, content) for name, (content, _) in files.items()]
        is_local |= any(local for _, local in files.values())
    if environment.lock is not None:
        folder, _, name = environment.lock.rpartition("/")
        if name != LOCK:
            raise unusable(f"`{environment.lock}` is not a {LOCK}", "`lock` names the file that `uv lock` writes")
        project, lock = reader.read(f"{folder}/{PROJECT}".lstrip("/")), reader.read(environment.lock)
        parts += [(PROJECT, project), (LOCK, lock)]
        parts += [(name, reader.read(path)) for path in (f"{folder}/{SETTINGS}".lstrip("/"),) if reader.has(path)]
        is_local |= lock_is_local(lock)
    if environment.wheels is not None:
        parts += reader.wheels(environment.wheels)
    return EnvironmentInputs(tuple(parts), is_local)


def parse_requirements(text: str) -> RequirementsFile:
    """What matters of the format that pip defines; the rest is uv's to judge."""
    includes, is_local = [], False
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split(" #")[0].strip()
        if not words or words.startswith("#"):
            continue
        option, value = _option(words)
        if option in _INCLUDES:
            includes.append(value)
        elif option:
            is_local |= option in _LOCAL_OPTIONS and "://" not in value
        else:
            is_local |= _is_local_requirement(words)
    return RequirementsFile(tuple(includes), is_local)


def lock_is_local(lock: bytes) -> bool:
    """Whether it names packages that are parts of the code, other than the project itself. Raises E1120."""
    try:
        packages = tomllib.loads(lock.decode()).get("package", [])
        sources = [package.get("source", {}) for package in packages]
        return any(place != "." for source in sources for kind, place in source.items() if kind in _LOCAL_SOURCES)
    except (ValueError, AttributeError, TypeError) as error:
        raise unusable(f"{LOCK} cannot be read: {error}", "write it again with `uv lock`") from error


def unusable(message: str, hint: str) -> HarchError:
    return HarchError("E1120", message, hint=hint)


def _option(words: str) -> tuple[str, str]:
    """(`-r`, `base.txt`) of `-r base.txt`, `-rbase.txt` and `--requirement=base.txt`; no option: empty."""
    if not words.startswith("-"):
        return "", ""
    if words.startswith("--"):
        name, _, value = words.replace("=", " ", 1).partition(" ")
    else:
        name, value = words[:2], words[2:]
    return name, value.strip().strip("'\"")


def _is_local_requirement(words: str) -> bool:
    """A path, an archive, or `name @ file:…`; not one that an index has, or that an address gives."""
    requirement = words.split(";")[0].strip()
    name, is_direct, address = requirement.partition("@")
    place = address.strip() if is_direct and "/" not in name else requirement
    if "://" in place:
        return place.startswith("file:")
    return place.startswith(_LOCAL_STARTS) or place == "." or "/" in place or place.endswith(_LOCAL_ENDS)


def _requirements(reader: _Reader, first: str) -> Iterator[tuple[str, tuple[bytes, bool]]]:
    seen, waiting = {first}, [first]
    while waiting:
        path = waiting.pop()
        content = reader.read(path)
        parsed = parse_requirements(content.decode(errors="replace"))
        yield path, (content, parsed.is_local)
        for include in parsed.includes:
            inner = os.path.normpath(os.path.join(os.path.dirname(path), include))
            if "://" not in include and inner not in seen:
                if len(seen) >= FILES_MAX:
                    raise unusable(f"`{first}` leads to more than {FILES_MAX} files", "write them into fewer")
                seen.add(inner)
                waiting.append(inner)


class _Reader:
    """Files of the code. A link inside of it is followed, because it is part of what the user packed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, path: str) -> bool:
        return os.path.lexists(self._root / path)

    def read(self, path: str) -> bytes:
        return b"".join(self._pieces(path))

    def wheels(self, folder: str) -> list[tuple[str, bytes]]:
        """(name, hash) of each wheel and source archive."""
        inner = self._inside(folder)
        try:
            with Base(self._root).opened() as base:
                descriptor = open_folder(base, inner)
                try:
                    names = sorted(name for name in os.listdir(descriptor) if name.endswith(_LOCAL_ENDS))
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise _unreadable(folder, error) from error
        if len(names) > WHEELS_MAX:
            raise unusable(f"`{folder}` has more than {WHEELS_MAX} wheels", "keep those that are needed")
        found = []
        for name in names:
            digest = blake3()
            for piece in self._pieces(f"{inner}/{name}" if inner else name, bytes_max=None):
                digest.update(piece)
            found.append((name, digest.digest()))
        return found

    def _pieces(self, path: str, *, bytes_max: int | None = FILE_BYTES_MAX) -> Iterator[bytes]:
        inner, size = self._inside(path), 0
        try:
            with Base(self._root).opened() as base, open(open_file(base, inner), "rb") as file:
                while piece := file.read(READ_BYTES):
                    size += len(piece)
                    if bytes_max is not None and size > bytes_max:
                        raise unusable(f"`{path}` is larger than {bytes_max} bytes", "this is no list of packages")
                    yield piece
        except OSError as error:
            raise _unreadable(path, error) from error

    def _inside(self, path: str) -> str:
        """Where a path really leads, relative to the code."""
        real = os.path.realpath(self._root / path)
        inner = os.path.relpath(real, self._root)
        if inner == ".":
            return ""
        if inner.startswith("../") or inner == "..":
            raise unusable(f"`{path}` leads out of the code", "put all that is needed into the folder that is packed")
        return inner


def _unreadable(path: str, error: OSError) -> HarchError:
    why = "a link is in the way" if is_link_error(error) else error.strerror
    return unusable(f"`{path}` of the code cannot be read: {why}", "is it in the folder, and not in .harchignore?")
