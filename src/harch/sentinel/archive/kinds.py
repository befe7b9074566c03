"""What does a table ask of lines and of spans? How their rows are written, read, joined and erased."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from harch.sentinel.archive.entries import Erasure, FileEntry
from harch.sentinel.model.selection import Ints
from harch.sentinel.store.blocks.disk import Disk


class Rows(Protocol):
    """Rows in columns, as they are kept in memory."""

    @property
    def count(self) -> int: ...

    @property
    def raw_bytes(self) -> int:
        """Of what people sent."""
        ...

    @property
    def memory_bytes(self) -> int: ...


R = TypeVar("R", bound=Rows)


class Kind(Protocol[R]):
    """What lines and spans do differently. `stem` is the path of a file without its suffix."""

    suffixes: tuple[str, ...]  # of the files that belong to one entry

    def decoded(self, record: bytes) -> R: ...

    def joined(self, parts: Sequence[R]) -> R: ...

    def times(self, rows: R) -> Ints: ...

    def taken(self, rows: R, places: Ints) -> R: ...

    def without(self, rows: R, erasure: bytes) -> R:
        """The rows that an erasure leaves."""
        ...

    def write(self, stem: Path, rows: R, disk: Disk) -> int:
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
class View(Generic[R]):
    """What a reader sees: a state of the table that nothing changes any more."""

    files: tuple[FileEntry, ...]
    pieces: tuple[R, ...]
    erasures: tuple[Erasure, ...]

    def due(self, entry: FileEntry) -> list[Erasure]:
        """Erasures that have not been carried out in the file yet."""
        return [one for one in self.erasures if one.number > entry.clean_to]
