"""How do several threads read one Parquet file? Each with a reader of its own: Arrow's are not made to be shared."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harch.sentinel.archive.damage import DamagedFile

_IDLE_MAX = 4  # readers that are kept for the next one who asks


class GroupReader:
    """Groups of rows of one file. The first one who asks opens it."""

    def __init__(self, path: Path, plain: Collection[str] | None = None) -> None:
        """All columns but the `plain` ones come as codes into few values; without it, all as they are."""
        self._path, self._plain = path, plain
        self._idle: deque[Any] = deque(maxlen=_IDLE_MAX)
        self._names: frozenset[str] | None = None

    @property
    def names(self) -> frozenset[str]:
        """Columns of the file. Raises E0613 where it cannot be read."""
        if self._names is None:
            try:
                self._names = frozenset(pq.read_schema(self._path, memory_map=True).names)
            except (pa.ArrowException, OSError) as broken:
                raise DamagedFile(self._path.with_suffix(""), str(broken)) from broken
        return self._names

    def read(self, group: int, columns: list[str] | None) -> Any:
        """A table of these columns, or of all. Raises E0613 where a checksum is wrong."""
        try:
            try:
                reader = self._idle.pop()
            except IndexError:
                reader = self._opened()
            table = reader.read_row_group(group, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as broken:
            raise DamagedFile(self._path.with_suffix(""), f"group {group}: {broken}") from broken
        self._idle.append(reader)
        return table

    def _opened(self) -> Any:
        coded = sorted(self.names - set(self._plain)) if self._plain is not None else None
        return pq.ParquetFile(self._path, memory_map=True, page_checksum_verification=True, read_dictionary=coded)
