"""How does a table deal with log lines? What its `Kind` asks, answered for columns of lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from harch.sentinel.archive.logs.file import INDEX, PARQUET, GroupSource, LogFile, read_log_file, write_log_file
from harch.sentinel.archive.logs.rows import LogRows, decoded, joined, taken
from harch.sentinel.archive.logs.selecting import MemorySource, Source, Wanted, places_of
from harch.sentinel.archive.open_files import OpenFiles
from harch.sentinel.model.logs import FilterKind, LineFilter
from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.model.selection import Ints
from harch.sentinel.store.blocks.disk import Disk

_OPEN_FILES_MAX = 128


class LogErasure(msgspec.Struct, array_like=True, frozen=True):
    """Lines of these streams and times that pass all filters."""

    matchers: tuple[tuple[str, str, str], ...]
    filters: tuple[tuple[str, str], ...]
    start_ns: int
    end_ns: int

    def wanted(self) -> Wanted:
        return Wanted(
            tuple(Matcher(MatchKind(kind), name, value) for kind, name, value in self.matchers),
            tuple(LineFilter(FilterKind(kind), text) for kind, text in self.filters),
        )


def erasure_bytes(matchers: Sequence[Matcher], filters: Sequence[LineFilter], start_ns: int, end_ns: int) -> bytes:
    return msgspec.msgpack.encode(
        LogErasure(
            tuple((one.kind.value, one.name, one.value) for one in matchers),
            tuple((one.kind.value, one.text) for one in filters),
            start_ns,
            end_ns,
        )
    )


def erased_places(source: Source, erasure: bytes) -> Ints:
    told = msgspec.msgpack.decode(erasure, type=LogErasure)
    return places_of(source, told.wanted(), told.start_ns, told.end_ns, None)


class LogKind:
    suffixes: tuple[str, ...] = (PARQUET, INDEX)

    def __init__(self) -> None:
        self._files = OpenFiles(LogFile, _OPEN_FILES_MAX)

    def file(self, stem: Path) -> LogFile:
        return self._files.at(stem)

    def forget(self, name: str) -> None:
        self._files.forget(name)

    def decoded(self, record: bytes) -> LogRows:
        return decoded(record)

    def joined(self, parts: Sequence[LogRows]) -> LogRows:
        return joined(parts)

    def times(self, rows: LogRows) -> Ints:
        return rows.times

    def taken(self, rows: LogRows, places: Ints) -> LogRows:
        return taken(rows, places)

    def without(self, rows: LogRows, erasure: bytes) -> LogRows:
        gone = erased_places(MemorySource(rows), erasure)
        if not len(gone):
            return rows
        return taken(rows, np.setdiff1d(np.arange(rows.count), gone))

    def write(self, stem: Path, rows: LogRows, disk: Disk) -> int:
        return write_log_file(stem, rows, disk)

    def read(self, stem: Path) -> LogRows:
        return read_log_file(stem)

    def holds(self, stem: Path, erasure: bytes) -> bool:
        file = self.file(stem)
        return any(len(erased_places(source, erasure)) for source in group_sources(file, erasure))


def group_sources(file: LogFile, erasure: bytes) -> list[GroupSource]:
    """Groups that an erasure may concern."""
    told = msgspec.msgpack.decode(erasure, type=LogErasure)
    wanted = told.wanted()
    possible = groups_of(file, wanted, told.start_ns, told.end_ns)
    return [GroupSource(file, int(group)) for group in possible]


def groups_of(file: LogFile, wanted: Wanted, start_ns: int, end_ns: int) -> Ints:
    """Groups that may have wanted lines, by streams, times and grams."""
    chosen = wanted.streams(file.streams)
    runs = chosen[file.run_streams] & (file.run_starts < end_ns) & (file.run_ends >= start_ns)
    if not runs.any():
        return np.empty(0, np.int64)
    found = np.unique(file.run_groups[runs])
    return found[file.candidates(wanted.grams)[found]]
