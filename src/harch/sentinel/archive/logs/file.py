"""How do lines lie in a file?

Parquet that any tool reads, sorted by stream and time, and an index beside it; how a table writes, reads and erases
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harch.sentinel.archive.files import DamagedFile, mapped
from harch.sentinel.archive.gram_kernels import with_all
from harch.sentinel.archive.logs.rows import EXTRAS, LogRows, decoded, joined, taken
from harch.sentinel.archive.logs.scan import LineSelector, LineSource, MemorySource, places_of
from harch.sentinel.archive.parquet import GroupReader, ParquetSums, sums_of
from harch.sentinel.archive.row_storage import OpenFiles
from harch.sentinel.archive.string_columns import Mask, StringColumn, bitmap_of, sizes_of
from harch.sentinel.model.labels import Labels, Matcher, MatchKind
from harch.sentinel.model.logs import FilterKind, LineFilter
from harch.sentinel.model.selection import Codes, Ints
from harch.sentinel.store.bytes_kernels import Array
from harch.sentinel.store.disk import FileSystem, crc32c, write_file

# How do lines lie in a file? Parquet that any tool reads, sorted by stream and time, and an index beside it.
#
# Groups of about 4 MiB of text are read one by one. The index tells of each group which streams and times it has and,
# by a bitmap of grams, which texts it cannot contain; most groups are never touched by a search.


PARQUET, INDEX = ".parquet", ".index"
GROUP_BYTES, GROUP_ROWS = 4 << 20, 1 << 16
TIME, LABELS, SIZE, TEXT = "time_ns", "labels", "size", "body"
_MAGIC = b"HSLOGIX1"
_TEXT_LEVEL = 1  # on log lines, higher levels of zstd take several times longer and save next to nothing


class _Index(msgspec.Struct, array_like=True, frozen=True):
    streams: tuple[Labels, ...]
    group_rows: bytes  # int64 each
    group_sizes: bytes
    bitmap_sizes: bytes
    bitmaps_checksum: int
    extras: tuple[str, ...]
    run_groups: bytes  # rows of one stream within a group: which group, which stream, how many, first and last time
    run_streams: bytes
    run_rows: bytes
    run_starts: bytes
    run_ends: bytes
    parquet: ParquetSums | None = None  # None: of an older release


def write_log_file(stem: Path, rows: LogRows, disk: FileSystem) -> int:
    """Both files, synced; returns how many bytes they take."""
    ranked = sorted(range(len(rows.streams)), key=lambda code: rows.streams[code])
    rank = np.empty(len(ranked), np.int32)
    rank[ranked] = np.arange(len(ranked), dtype=np.int32)
    ranks = rank[rows.stream_at]
    order = np.lexsort((rows.times, ranks))
    kept, places = np.unique(ranks[order], return_inverse=True)
    codes: Codes = places.astype(np.int32)
    ordered = taken(rows, order)
    streams = tuple(rows.streams[ranked[place]] for place in kept)
    bounds = _group_bounds(sizes_of(ordered.bodies))
    parquet = _parquet(ordered, codes, streams, bounds)
    write_file(disk, stem.with_suffix(PARQUET), parquet)
    index = _index(ordered, codes, streams, bounds, sums_of(parquet))
    write_file(disk, stem.with_suffix(INDEX), index)
    return len(parquet) + len(index)


def _group_bounds(sizes: Ints) -> list[int]:
    """The first row of each group, and the one behind the last."""
    ends = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        full = int(np.searchsorted(ends, before + GROUP_BYTES, side="right"))
        bounds.append(min(len(sizes), bounds[-1] + GROUP_ROWS, max(full, bounds[-1] + 1)))
    return bounds


def _parquet(rows: LogRows, codes: Codes, streams: Sequence[Labels], bounds: Sequence[int]) -> bytes:
    named = [msgspec.json.encode(dict(stream)).decode() for stream in streams]
    columns = {
        TIME: pa.array(rows.times),
        LABELS: pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(named, pa.string())),
        SIZE: pa.array(sizes_of(rows.bodies).astype(np.int32)),
        TEXT: rows.bodies,
        **rows.extras,
    }
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    writer = pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=_TEXT_LEVEL,
        use_dictionary=[LABELS, *(name for name in EXTRAS if name in rows.extras)],
        column_encoding={TIME: "DELTA_BINARY_PACKED", SIZE: "DELTA_BINARY_PACKED", TEXT: "PLAIN"},
        write_statistics=False,
        write_page_checksum=True,
        data_page_size=4 * GROUP_BYTES,
    )
    for begin, end in pairwise(bounds):
        writer.write_table(table.slice(begin, end - begin), row_group_size=end - begin)
    writer.close()
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _index(
    rows: LogRows, codes: Codes, streams: tuple[Labels, ...], bounds: Sequence[int], parquet: ParquetSums
) -> bytes:
    columns = [rows.bodies, *rows.extras.values()]
    groups = list(pairwise(bounds))
    bitmaps = [bitmap_of([column.slice(begin, end - begin) for column in columns]) for begin, end in groups]
    sizes = sizes_of(rows.bodies)
    first = np.union1d(np.flatnonzero(np.diff(codes)) + 1, np.array(bounds[:-1], np.int64))
    last = np.append(first[1:], len(codes)) - 1
    together = b"".join(bitmaps)
    content = _Index(
        streams,
        np.diff(np.array(bounds, np.int64)).tobytes(),
        np.array([int(sizes[begin:end].sum()) for begin, end in groups], np.int64).tobytes(),
        np.array([len(bitmap) for bitmap in bitmaps], np.int64).tobytes(),
        crc32c(together),
        tuple(rows.extras),
        (np.searchsorted(np.array(bounds), first, side="right") - 1).astype(np.int64).tobytes(),
        codes[first].astype(np.int64).tobytes(),
        (last - first + 1).astype(np.int64).tobytes(),
        rows.times[first].tobytes(),
        rows.times[last].tobytes(),
        parquet,
    )
    head = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(content), 3))
    return b"".join([_MAGIC, len(head).to_bytes(4, "little"), crc32c(head).to_bytes(4, "little"), head, together])


class LogFile:
    """An open file. Columns of a group are read when they are asked for."""

    def __init__(self, stem: Path) -> None:
        """Raises E0613 for what was not written like that."""
        self.name = stem.name
        data = mapped(stem.with_suffix(INDEX))
        size = int.from_bytes(data[8:12], "little")
        head = data[16 : 16 + size]
        if data[:8] != _MAGIC or crc32c(head) != int.from_bytes(data[12:16], "little"):
            raise DamagedFile(stem, "its index does not match its checksum")
        self._index = msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(head)), type=_Index)
        self.streams = self._index.streams
        self.extras = frozenset(self._index.extras)
        self.group_rows = np.frombuffer(self._index.group_rows, np.int64)
        self.group_sizes = np.frombuffer(self._index.group_sizes, np.int64)
        self._bits: Array = np.frombuffer(data, np.uint8)
        self._bitmap_sizes = np.frombuffer(self._index.bitmap_sizes, np.int64)
        self._bitmap_begins = 16 + size + np.cumsum(self._bitmap_sizes) - self._bitmap_sizes
        if len(data) != 16 + size + int(self._bitmap_sizes.sum()):
            raise DamagedFile(stem, "its index has the wrong length")
        self._are_bitmaps_checked = False
        self.run_groups, self.run_streams, self.run_rows, self.run_starts, self.run_ends = (
            np.frombuffer(part, np.int64)
            for part in (
                self._index.run_groups,
                self._index.run_streams,
                self._index.run_rows,
                self._index.run_starts,
                self._index.run_ends,
            )
        )
        self._parquet = GroupReader(stem.with_suffix(PARQUET), self._index.parquet)
        self._stem = stem

    def candidates(self, grams: Array) -> Mask:
        """Which groups may contain what has these grams? Raises E0613: a bit that is gone would hide lines."""
        out = np.ones(len(self.group_rows), np.bool_)
        if len(grams):
            self._check_bitmaps()
            with_all(self._bits, self._bitmap_begins, self._bitmap_sizes, grams, out)
        return out

    def _check_bitmaps(self) -> None:
        """Once, when they are first used: they are a thirtieth of the text."""
        if not self._are_bitmaps_checked:
            begin = len(self._bits) - int(self._bitmap_sizes.sum())
            if crc32c(self._bits[begin:].data) != self._index.bitmaps_checksum:
                raise DamagedFile(self._stem, "its bitmaps do not match their checksum")
            self._are_bitmaps_checked = True

    def column(self, group: int, name: str) -> Any:
        """One column of a group. Raises E0613 where its checksum is wrong."""
        return self._parquet.read(group, [name]).column(0).combine_chunks()

    def bodies(self, group: int, name: str) -> StringColumn:
        found = self.column(group, name)
        return found.cast(pa.string()) if pa.types.is_dictionary(found.type) else found


class GroupSource:
    """One group of a file, as a source. What was read once stays as long as the source."""

    def __init__(self, file: LogFile, group: int) -> None:
        self._file, self._group = file, group
        self._read: dict[str, Any] = {}

    @property
    def streams(self) -> Sequence[Labels]:
        return self._file.streams

    def stream_at(self) -> Codes:
        mine = self._file.run_groups == self._group
        return np.repeat(self._file.run_streams[mine], self._file.run_rows[mine]).astype(np.int32)

    def times(self) -> Ints:
        found: Ints = self._column(TIME).to_numpy()
        return found

    def sizes(self) -> Ints:
        found: Ints = self._column(SIZE).to_numpy().astype(np.int64)
        return found

    def bodies(self) -> StringColumn:
        return self._column(TEXT)

    def more(self, name: str) -> StringColumn | None:
        return self._column(name) if name in self._file.extras else None

    def _column(self, name: str) -> Any:
        if name not in self._read:
            read = self._file.column if name in (TIME, SIZE) else self._file.bodies
            self._read[name] = read(self._group, name)
        return self._read[name]


def read_log_file(stem: Path) -> LogRows:
    """All of it, for rewriting."""
    file = LogFile(stem)
    sources = [GroupSource(file, group) for group in range(len(file.group_rows))]
    return LogRows(
        file.streams,
        np.concatenate([source.stream_at() for source in sources]),
        np.concatenate([source.times() for source in sources]),
        pa.concat_arrays([source.bodies() for source in sources]),
        {name: pa.concat_arrays([source.more(name) for source in sources]) for name in sorted(file.extras)},
    )


# How does a table deal with log lines? What its `Kind` asks, answered for columns of lines.


_OPEN_FILES_MAX = 128


class LogErasure(msgspec.Struct, array_like=True, frozen=True):
    """Lines of these streams and times that pass all filters."""

    matchers: tuple[tuple[str, str, str], ...]
    filters: tuple[tuple[str, str], ...]
    start_ns: int
    end_ns: int

    def wanted(self) -> LineSelector:
        return LineSelector(
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


def erased_places(source: LineSource, erasure: bytes) -> Ints:
    criteria = msgspec.msgpack.decode(erasure, type=LogErasure)
    return places_of(source, criteria.wanted(), criteria.start_ns, criteria.end_ns, None)


class LogRowStorage:
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

    def write(self, stem: Path, rows: LogRows, disk: FileSystem) -> int:
        return write_log_file(stem, rows, disk)

    def read(self, stem: Path) -> LogRows:
        return read_log_file(stem)

    def holds(self, stem: Path, erasure: bytes) -> bool:
        file = self.file(stem)
        return any(len(erased_places(source, erasure)) for source in group_sources(file, erasure))


def group_sources(file: LogFile, erasure: bytes) -> list[GroupSource]:
    """Groups that an erasure may concern."""
    criteria = msgspec.msgpack.decode(erasure, type=LogErasure)
    wanted = criteria.wanted()
    possible = groups_of(file, wanted, criteria.start_ns, criteria.end_ns)
    return [GroupSource(file, int(group)) for group in possible]


def groups_of(file: LogFile, wanted: LineSelector, start_ns: int, end_ns: int) -> Ints:
    """Groups that may have wanted lines, by streams, times and grams."""
    chosen = wanted.streams(file.streams)
    runs = chosen[file.run_streams] & (file.run_starts < end_ns) & (file.run_ends >= start_ns)
    if not runs.any():
        return np.empty(0, np.int64)
    found = np.unique(file.run_groups[runs])
    return found[file.candidates(wanted.grams)[found]]
