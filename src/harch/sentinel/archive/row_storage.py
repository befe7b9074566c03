"""What does a table need of lines and of spans?

How their rows are written, read, joined and erased, and which of their files are open.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from harch.sentinel.archive.planning import Erasure, FileEntry
from harch.sentinel.model.selection import Ints
from harch.sentinel.store.disk import FileSystem


class ArchiveRows(Protocol):
    """Rows in columns, as they are kept in memory."""

    @property
    def count(self) -> int: ...

    @property
    def raw_bytes(self) -> int:
        """Of what people sent."""
        ...

    @property
    def memory_bytes(self) -> int: ...


R = TypeVar("R", bound=ArchiveRows)


class RowStorage(Protocol[R]):
    """What lines and spans do differently. `stem` is the path of a file without its suffix."""

    suffixes: tuple[str, ...]  # of the files that belong to one entry

    def decoded(self, record: bytes) -> R: ...

    def joined(self, parts: Sequence[R]) -> R: ...

    def times(self, rows: R) -> Ints: ...

    def taken(self, rows: R, places: Ints) -> R: ...

    def without(self, rows: R, erasure: bytes) -> R:
        """The rows that an erasure leaves."""
        ...

    def write(self, stem: Path, rows: R, disk: FileSystem) -> int:
        """Synced files of these rows; returns how many bytes they take."""
        ...

    def read(self, stem: Path) -> R:
        """All rows of a file; those of one stream and time as they came in."""
        ...

    def holds(self, stem: Path, erasure: bytes) -> bool:
        """Whether the file has rows that the erasure takes out."""
        ...

    def forget(self, name: str) -> None:
        """The file is about to be removed."""
        ...


@dataclass(frozen=True)
class TableSnapshot(Generic[R]):
    """What a reader sees: a state of the table that nothing changes any more."""

    files: tuple[FileEntry, ...]
    pieces: tuple[R, ...]
    erasures: tuple[Erasure, ...]

    def due(self, entry: FileEntry) -> list[Erasure]:
        """Erasures that have not been carried out in the file yet."""
        return [one for one in self.erasures if one.number > entry.clean_to]


# Which files are open? Those that were asked for lately; each is opened once, whoever asks.


F = TypeVar("F")


class OpenFiles(Generic[F]):
    """Files by name. Beyond `files_max` those that were asked for longest ago are closed."""

    def __init__(self, open_file: Callable[[Path], F], files_max: int) -> None:
        self._open_file, self._files_max = open_file, files_max
        self._open: OrderedDict[str, F] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, stem: Path) -> F:
        with self._lock:
            found = self._open.get(stem.name)
            if found is not None:
                self._open.move_to_end(stem.name)
                return found
        opened = self._open_file(stem)
        with self._lock:
            self._open[stem.name] = opened
            if len(self._open) > self._files_max:
                self._open.popitem(last=False)
        return opened

    def forget(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)
