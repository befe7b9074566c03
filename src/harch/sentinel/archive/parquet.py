"""How is a Parquet file read, and is it what was written? By groups and columns, each under a checksum of ours.

Parquet has checksums of pages only: its footer and the heads of pages have none, and a flipped bit there may read as
other rows. So the index beside a file has a checksum of each column of each group, and one of the footer. Several
threads read a file, each with a reader of its own: Arrow's are not made to be shared.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harch.sentinel.archive.files import DamagedFile, mapped
from harch.sentinel.store.disk import crc32c

_IDLE_MAX = 4  # readers that are kept for the next one who asks


class ParquetSums(msgspec.Struct, array_like=True, frozen=True):
    """What a file must be like."""

    size: int
    footer_begin: int
    footer_checksum: int
    columns: tuple[str, ...]
    chunks: bytes  # int64: of each column of each group where it begins, its length, its checksum


def sums_of(written: bytes) -> ParquetSums:
    metadata = pq.read_metadata(pa.BufferReader(written))
    view = memoryview(written)
    chunks = np.zeros((metadata.num_row_groups, metadata.num_columns, 3), np.int64)
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            begin = column.data_page_offset
            if column.has_dictionary_page:
                begin = min(begin, column.dictionary_page_offset)
            length = column.total_compressed_size
            chunks[group, place] = begin, length, crc32c(view[begin : begin + length])
    names = tuple(metadata.schema.column(place).path for place in range(metadata.num_columns))
    footer = int((chunks[:, :, 0] + chunks[:, :, 1]).max(initial=0))
    return ParquetSums(len(written), footer, crc32c(view[footer:]), names, chunks.tobytes())


class GroupReader:
    """Groups of rows of one file. The first one who asks opens it."""

    def __init__(self, path: Path, sums: ParquetSums | None, plain: Collection[str] | None = None) -> None:
        """All columns but the `plain` ones come as codes into few values; without it, all as they are.

        `sums` is None for files of older releases, of which only pages are checked.
        """
        self._path, self._plain, self._sums = path, plain, sums
        self._idle: deque[Any] = deque(maxlen=_IDLE_MAX)
        self._names: frozenset[str] | None = None
        self._map: mmap.mmap | None = None
        self._chunks = np.empty((0, 0, 3), np.int64)
        if sums is not None:
            self._chunks = np.frombuffer(sums.chunks, np.int64).reshape(-1, len(sums.columns), 3)

    @property
    def names(self) -> frozenset[str]:
        """Columns of the file. Raises E0613 where it cannot be read."""
        if self._names is None:
            self._check_footer()
            try:
                self._names = frozenset(pq.read_schema(self._path, memory_map=True).names)
            except (pa.ArrowException, OSError) as broken:
                raise self._damaged(str(broken)) from broken
        return self._names

    def read(self, group: int, columns: list[str] | None) -> Any:
        """A table of these columns, or of all. Raises E0613 where a checksum is wrong."""
        try:
            try:
                reader = self._idle.pop()
            except IndexError:
                reader = self._opened()
            self._check(group, columns)
            table = reader.read_row_group(group, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as broken:
            raise self._damaged(f"group {group}: {broken}") from broken
        self._idle.append(reader)
        return table

    def read_all(self) -> Any:
        """A table of all rows. Raises E0613."""
        self._check_footer()
        for group in range(len(self._chunks)):
            self._check(group, None)
        try:
            return pq.read_table(self._path, memory_map=True, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as broken:
            raise self._damaged(str(broken)) from broken

    def _opened(self) -> Any:
        coded = sorted(self.names - set(self._plain)) if self._plain is not None else None
        self._check_footer()
        only_pages = self._sums is None
        return pq.ParquetFile(self._path, memory_map=True, page_checksum_verification=only_pages, read_dictionary=coded)

    def _check_footer(self) -> None:
        if self._sums is None or self._map is not None:
            return
        found = mapped(self._path)
        if len(found) != self._sums.size:
            raise self._damaged(f"it has {len(found)} bytes, {self._sums.size} expected")
        if crc32c(memoryview(found)[self._sums.footer_begin :]) != self._sums.footer_checksum:
            raise self._damaged("its footer does not match its checksum")
        self._map = found

    def _check(self, group: int, columns: list[str] | None) -> None:
        if self._sums is None or self._map is None:
            return
        view = memoryview(self._map)
        for place, name in enumerate(self._sums.columns):
            if columns is None or name in columns:
                begin, length, checksum = self._chunks[group, place].tolist()
                if crc32c(view[begin : begin + length]) != checksum:
                    raise self._damaged(f"{name} of group {group} does not match its checksum")

    def _damaged(self, why: str) -> DamagedFile:
        return DamagedFile(self._path.with_suffix(""), why)
