"""Which files does a hub hold for a pipeline?

Those that models are made of, sent in pieces, and the logs of its workers, in pages.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from harch.base.errors import HarchError
from harch.hub.pipelines.views import FileView
from harch.hub.views import LogPage

FILE_BYTES_MAX = 2 << 30
FOLDER_BYTES_MAX = 8 << 30
FILES_MAX = 256
_PARTS = ".parts"


def checked_path(folder: Path, path: str) -> Path:
    """A place below the folder, whatever the path says. Raises E0201."""
    words = PurePosixPath(path).parts
    if not path or len(path) > 512 or path.startswith("/") or any(word in ("..", _PARTS) for word in words):
        raise HarchError("E0201", f"`{path[:64]}` is not a path below the pipeline's file", hint="e.g. model.onnx")
    return folder / Path(*words)


def take_part(folder: Path, path: str, data: bytes, *, offset: int, total: int, sha256: str) -> FileView | None:
    """One piece of a file; answers the file once it is whole. Pieces come in order; a repeated one is no harm.

    Raises E0201 for what cannot be, E0713 if the whole has another hash than was said."""
    target = checked_path(folder, path)
    if not 0 <= offset <= total <= FILE_BYTES_MAX or offset + len(data) > total:
        raise HarchError(
            "E0201", f"{offset} + {len(data)} of {total} bytes", hint=f"files have at most {FILE_BYTES_MAX}"
        )
    if target.is_file() and _hash(target) == sha256:
        return FileView(path=path, sha256=sha256, bytes=total)
    _check_room(folder, total)
    part = folder / _PARTS / sha256
    part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = part.stat().st_size if part.exists() else 0
    if offset > there:
        raise HarchError(
            "E0713", f"{path} has {there} bytes so far, but a chunk arrived for {offset}", hint="send it again"
        )
    with part.open("r+b" if part.exists() else "w+b") as file:
        file.seek(offset)
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    if offset + len(data) < total:
        return None
    found = _hash(part)
    if found != sha256:
        part.unlink()
        raise HarchError("E0713", f"{path} arrived with hash {found}, and {sha256} was declared", hint="send it again")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.replace(part, target)
    return FileView(path=path, sha256=sha256, bytes=total)


def check_replaced(declared: Mapping[str, str | None], path: str, sha256: str) -> None:
    """A file that a running pipeline has declared by its hash stays what it is. Raises E0713."""
    if declared.get(path) not in (None, sha256):
        raise HarchError(
            "E0713",
            f"`{path}` belongs to a running version, and this file differs",
            hint="give the new version its own file, e.g. `model-2.onnx`",
        )


def missing(folder: Path, named: Mapping[str, str | None]) -> tuple[str, ...]:
    """Files that are not there, or are others than was declared."""
    found = []
    for path, sha256 in named.items():
        place = Path(path) if path.startswith("/") else folder / path
        if not place.is_file() or (sha256 is not None and _hash(place) != sha256):
            found.append(path)
    return tuple(found)


def digests(folder: Path, paths: Iterable[str]) -> dict[str, str]:
    """Hashes of those that are there."""
    return {path: _hash(folder / path) for path in paths if (folder / path).is_file()}


def _check_room(folder: Path, total: int) -> None:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    if len(sizes) >= FILES_MAX or sum(sizes) + total > FOLDER_BYTES_MAX:
        raise HarchError(
            "E0713",
            f"the pipeline has {len(sizes)} files of {sum(sizes)} bytes",
            hint="remove it, or use fewer versions",
        )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# What did a worker print? Pages of its log file, as a hub shows them.


LOGS = "log"  # the folder of a pipeline that has them
KEPT_MAX = 20  # of workers that are gone
_WORKER = re.compile(r"[a-z]+-[0-9]{1,9}\Z")


def read_page(folder: Path, worker: str, offset: int, bytes_max: int) -> LogPage:
    """From `offset`, or from so many bytes before the end if it is negative. Raises E0710."""
    path = folder / LOGS / f"{worker}.log"
    if not _WORKER.match(worker) or not path.is_file():
        known = sorted(found.stem for found in (folder / LOGS).glob("*.log"))
        raise HarchError(
            "E0710",
            f"no worker `{worker[:64]}` has logged anything",
            hint=f"workers: {', '.join(known) or 'none yet'}",
        )
    size = path.stat().st_size
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(bytes_max)
    return LogPage(data=data, offset=start, next_offset=start + len(data), eof=False)


def forget_old(folder: Path, named: set[Path]) -> None:
    """Deletes the oldest of those that nobody on the roster writes to."""
    logs = sorted((folder / LOGS).glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in [path for path in logs if path not in named][:-KEPT_MAX]:
        path.unlink(missing_ok=True)
