"""How do arrays become the payload of a batch, and back? Columns in the order of the schema, each contiguous.

Reading makes views, not copies, of memory that nobody may write to. Only a payload that does not start at a multiple of
eight bytes is copied once, so that kernels always see one kind of array and are compiled once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.errors import InvariantBroken
from harch.base.rejection import Rejection
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.header import EVENTS_MAX
from harch.pipelines.wire.schema import EventSchema

Array = NDArray[Any]
_ALIGNED_BYTES = 8


class Columns(Struct, frozen=True):
    """The events of one batch. Absent metric and flag columns are zeros; `values` is (columns, events)."""

    ticks: Array
    device: Array
    metric: Array
    flag: Array
    values: Array

    @property
    def n(self) -> int:
        return len(self.ticks)


def decode_columns(schema: EventSchema, n: int, payload: Buffer) -> Columns | Rejection:
    """Views of the columns of `n` events."""
    if n > EVENTS_MAX or len(payload) != n * schema.event_bytes:
        return Rejection(
            "batch",
            "columns",
            f"{len(payload)} bytes for {n} events of {schema.event_bytes} bytes (schema `{schema.name}`)",
            "send every column whole, in the order of the schema",
        )
    whole = np.frombuffer(payload, np.uint8)
    if whole.ctypes.data % _ALIGNED_BYTES:
        whole = whole.copy()
    whole.flags.writeable = False
    found: dict[str, Array] = {}
    at = 0
    for column in schema.columns:
        if column.role == "value":
            break
        end = at + n * column.dtype.itemsize
        found[column.role] = whole[at:end].view(column.dtype)
        at = end
    values = whole[at:].view(schema.values[0].dtype).reshape(len(schema.values), n)
    for role in ("metric", "flag"):
        if role not in found:
            found[role] = _zeros(n)
    return Columns(found["time"], found["device"], found["metric"], found["flag"], values)


def encode_columns(schema: EventSchema, columns: Columns) -> bytes:
    """The payload. Arrays that do not fit the schema are a fault of the caller."""
    n = columns.n
    vectors = {"time": columns.ticks, "device": columns.device, "metric": columns.metric, "flag": columns.flag}
    if columns.values.shape != (len(schema.values), n) or any(len(vector) != n for vector in vectors.values()):
        raise InvariantBroken("all columns of a batch have the same length", schema.name, n)
    if n and int(columns.ticks.max()) > schema.ticks_max:  # a narrower integer would wrap to another time
        raise InvariantBroken("a batch spans no more time than its schema can say", schema.name, schema.ticks_max)
    parts = [
        np.ascontiguousarray(vectors[column.role], dtype=column.dtype).tobytes()
        for column in schema.columns
        if column.role != "value"
    ]
    parts.append(np.ascontiguousarray(columns.values, dtype=schema.values[0].dtype).tobytes())
    return b"".join(parts)


def select(columns: Columns, picks: Array) -> Columns:
    """Some of the events, copied, so that they outlive the message that they came in."""
    return Columns(
        columns.ticks[picks],
        columns.device[picks],
        columns.metric[picks],
        columns.flag[picks],
        columns.values[:, picks],
    )


def _zeros(n: int) -> Array:
    zeros = np.zeros(n, np.uint8)
    zeros.flags.writeable = False
    return zeros
