"""What does an Arrow stream hold? Record batches as rows; only at the edge, since opening one costs more than a batch.

Columns go by the names of a `RowFormat`. Times are integers in its unit or Arrow timestamps; devices and metrics are
text. Rows are then judged like any other, so that a bad value costs one row and not the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.wire.rows import ROWS_MAX, RowFormat, RowReader, Rows


def read_arrow(body: bytes, reader: RowReader, format: RowFormat) -> Rows | Rejection:
    """The rows of an Arrow IPC stream, or why it is none."""
    arrow = _library()
    try:
        table = arrow.ipc.open_stream(arrow.py_buffer(body)).read_all()
        if table.num_rows > ROWS_MAX:
            return Rejection("body", "too_many", f"{table.num_rows} rows; at most {ROWS_MAX}", "send smaller bodies")
        if format.time in table.column_names:
            table = _with_plain_times(arrow, table, format)
        table.validate(full=True)  # offsets that point outside of a buffer would be read later
        return reader.mappings(_rows(table))  # inside: values are read, and may be found unreadable, row by row
    except (arrow.ArrowException, ValueError, TypeError, KeyError, OverflowError, OSError) as error:
        return Rejection("body", "unreadable", f"not an Arrow IPC stream: {str(error)[:200]}")


def _rows(table: Any) -> Iterator[Mapping[str, object]]:
    for batch in table.to_batches(max_chunksize=4096):
        yield from batch.to_pylist()


def _with_plain_times(arrow: Any, table: Any, format: RowFormat) -> Any:
    """Timestamps as integers of the format's unit, without the detour over datetime, which has no nanoseconds."""
    at = table.column_names.index(format.time)
    column = table.column(at)
    if not arrow.types.is_timestamp(column.type):
        return table
    plain = column.cast(arrow.timestamp(format.time_unit), safe=False).cast(arrow.int64())
    return table.set_column(at, format.time, plain)


def _library() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as missing:
        raise HarchError(
            "E0740", "the package `pyarrow` is not installed", hint="pip install 'harch[pipelines]'"
        ) from missing
    return pyarrow
