"""Where does a bundle come from? A folder on disk, read within limits, or one that ships with HarchOS."""

from __future__ import annotations

import os
from functools import cache
from importlib import resources
from pathlib import Path

from harch.base.errors import HarchError, Problems
from harch.sovereignty.policy.bundle import FILE_BYTES_MAX, FILES_MAX, MANIFEST, PolicyBundle, bundle_of, not_valid

DEFAULT = "default"  # the name under which the shipped bundle is known


def read_bundle(name_or_path: str) -> PolicyBundle:
    """`default`, or the bundle of that folder. Raises E0930."""
    return bundle_of(read_files(name_or_path), shipped=name_or_path == DEFAULT)


@cache
def default_bundle() -> PolicyBundle:
    return read_bundle(DEFAULT)


def read_files(name_or_path: str) -> dict[str, bytes]:
    """Path to content, for `bundle_of` or for sending to a hub."""
    if name_or_path == DEFAULT:
        return shipped_files()
    folder = Path(name_or_path)
    if not (folder / MANIFEST).is_file():
        raise HarchError(
            "E0930",
            f"{folder} is not a bundle: it has no {MANIFEST}",
            hint="give the folder of the bundle, or `default`",
        )
    problems = Problems()
    found: dict[str, bytes] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(root) / name
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file():
                problems.add(relative, "is not a plain file")  # a link could lead out of what was reviewed
            elif len(found) >= FILES_MAX:
                problems.add("bundle", f"more than {FILES_MAX} files")
                raise not_valid(problems)
            else:
                found[relative] = _read(path)
    if problems:
        raise not_valid(problems)
    return found


def shipped_files() -> dict[str, bytes]:
    folder = resources.files("harch.sovereignty").joinpath("shipped/default-policy")
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(FILE_BYTES_MAX + 1)  # one more than allowed, so that the limit is seen to be passed
    except OSError as error:
        raise HarchError("E0930", f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
