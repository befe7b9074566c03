"""What are the columns of a batch, and how do arrays become its payload and back?

Names, types, roles and bounds, and each column contiguous in the order of the schema.
"""

# harch: pure

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from harch.base.errors import HarchError, InvariantBroken, Problems
from harch.base.rejection import Rejection
from harch.pipelines.wire.header import EVENTS_MAX, Buffer

# What is an event? The columns of a batch: their names, types, roles and bounds, and the number that stands for them.
#
# Value columns come last and share one type, so that a batch is read as a few vectors and one matrix of values, without
# copying. Times are unsigned offsets in ticks from the first event of the batch.


COLUMNS_MAX = 1024 + 4  # features travel as columns too
TICKS_NS = (1, 1_000, 1_000_000)  # a tick is a nanosecond, a microsecond or a millisecond
ColumnRole = Literal["time", "device", "metric", "flag", "value"]
TypeName = Literal["u8", "u16", "u32", "u64", "f32", "f64"]
_VALUE_TYPES = ("f32", "f64")
_WIDEST_DEVICE, _WIDEST_METRIC = 4, 2  # bytes: devices and metrics are dense numbers, not ids
_ROLE_COUNTS: dict[ColumnRole, tuple[int, int]] = {
    "time": (1, 1),
    "device": (1, 1),
    "metric": (0, 1),
    "flag": (0, 1),
    "value": (1, COLUMNS_MAX - 4),
}
_DTYPES: dict[str, np.dtype[np.generic]] = {
    "u8": np.dtype("<u1"),
    "u16": np.dtype("<u2"),
    "u32": np.dtype("<u4"),
    "u64": np.dtype("<u8"),
    "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
}


class SchemaColumn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One column. `low` and `high` bound a value: outside of them, or not a number, and the event is set aside."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_.-]{0,127}$")]
    type: TypeName
    role: ColumnRole
    low: float | None = None
    high: float | None = None
    unit: Annotated[str, Meta(max_length=16)] = ""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return _DTYPES[self.type]


def largest(column: SchemaColumn) -> int:
    """The largest number that an unsigned column can hold."""
    return int((1 << 8 * column.dtype.itemsize) - 1)


class EventSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The form of events. Two schemas with the same columns and tick have the same `id`, whatever they are called."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,47}$")]
    columns: Annotated[tuple[SchemaColumn, ...], Meta(min_length=3, max_length=COLUMNS_MAX)]
    tick_ns: int = 1_000

    @cached_property
    def id(self) -> int:
        """32 bits of a hash over names, types, roles and bounds; 0 is never an id."""
        canonical = msgspec.json.encode([self.tick_ns, self.columns])
        return int.from_bytes(hashlib.sha256(canonical).digest()[:4], "little") or 1

    @cached_property
    def event_bytes(self) -> int:
        return sum(column.dtype.itemsize for column in self.columns)

    @cached_property
    def values(self) -> tuple[SchemaColumn, ...]:
        return tuple(column for column in self.columns if column.role == "value")

    @cached_property
    def ticks_max(self) -> int:
        """The largest offset that the time column can hold."""
        return largest(self.column("time"))

    def column(self, role: ColumnRole) -> SchemaColumn:
        """The one column of this role; `value` has several, see `values`."""
        return self.by_role[role]

    @cached_property
    def by_role(self) -> dict[str, SchemaColumn]:
        return {column.role: column for column in reversed(self.columns)}


def schema_problems(schema: EventSchema) -> Problems:
    """Every mistake of a schema that its types do not exclude, with the path of the column."""
    problems = Problems()
    if schema.tick_ns not in TICKS_NS:
        problems.add("tick_ns", f"{schema.tick_ns} is not one of {', '.join(map(str, TICKS_NS))}")
    names = [column.name for column in schema.columns]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add("columns", f"two columns are named `{name}`")
    roles = [column.role for column in schema.columns]
    for role, (least, most) in _ROLE_COUNTS.items():
        if not least <= roles.count(role) <= most:
            problems.add("columns", f"{roles.count(role)} columns of role `{role}`; {_wanted(least, most)}")
    values = [column for column in schema.columns if column.role == "value"]
    if tuple(values) != schema.columns[len(schema.columns) - len(values) :]:
        problems.add("columns", "columns of role `value` must come last")
    if len({column.type for column in values}) > 1:
        problems.add("columns", "all columns of role `value` must have the same type")
    offset = 0
    for index, column in enumerate(schema.columns):
        _column_problems(problems, f"columns[{index}]", column)
        if offset % column.dtype.itemsize:
            problems.add(f"columns[{index}].type", f"`{column.name}` is not aligned; put wider columns first")
        offset += column.dtype.itemsize
    return problems


def checked_schema(schema: EventSchema) -> EventSchema:
    """The schema itself, or E0201 with all its mistakes."""
    if problems := schema_problems(schema):
        raise HarchError(
            "E0201", f"schema `{schema.name}`: {problems}", hint="docs/pipelines/sense.md describes events"
        )
    return schema


def _wanted(least: int, most: int) -> str:
    return f"exactly {least}" if least == most else f"{least} to {most}"


def _column_problems(problems: Problems, path: str, column: SchemaColumn) -> None:
    is_float = column.type in _VALUE_TYPES
    if (column.role == "value") is not is_float:
        problems.add(f"{path}.type", "values are f32 or f64, everything else is u8 to u64")
    if column.role == "device" and column.dtype.itemsize > _WIDEST_DEVICE:
        problems.add(f"{path}.type", "device numbers have at most 32 bits")
    if column.role in ("metric", "flag") and column.dtype.itemsize > _WIDEST_METRIC:
        problems.add(f"{path}.type", f"a {column.role} has at most 16 bits")
    if column.role != "value" and (column.low is not None or column.high is not None):
        problems.add(path, "only values have bounds")
    low = -math.inf if column.low is None else column.low
    high = math.inf if column.high is None else column.high
    if not low < high:
        problems.add(f"{path}.low", f"{column.low} is not below {column.high}")


def _time_device_metric_flag(
    time: TypeName, device: TypeName, metric: TypeName, flag: TypeName
) -> tuple[SchemaColumn, ...]:
    return (
        SchemaColumn(name="ts", type=time, role="time"),
        SchemaColumn(name="device", type=device, role="device"),
        SchemaColumn(name="metric", type=metric, role="metric"),
        SchemaColumn(name="flag", type=flag, role="flag"),
    )


# 16 bytes per event: what the fast lane carries unless a pipeline says otherwise.
COMPACT = EventSchema(
    name="compact",
    columns=(
        *_time_device_metric_flag("u32", "u16", "u8", "u8"),
        SchemaColumn(name="v0", type="f32", role="value"),
        SchemaColumn(name="v1", type="f32", role="value"),
    ),
)

# 64 bytes per event, with six values in full precision.
WIDE = EventSchema(
    name="wide",
    columns=(
        *_time_device_metric_flag("u64", "u32", "u16", "u16"),
        *(SchemaColumn(name=f"v{index}", type="f64", role="value") for index in range(6)),
    ),
    tick_ns=1,
)

SHIPPED = {schema.name: schema for schema in (COMPACT, WIDE)}


# How do arrays become the payload of a batch, and back? Columns in the order of the schema, each contiguous.
#
# Reading makes views, not copies, of memory that nobody may write to. Only a payload that does not start at a
# multiple of
# eight bytes is copied once, so that kernels always see one kind of array and are compiled once.


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
            "send complete columns in schema order",
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
        raise InvariantBroken("a batch spans no more time than its schema can express", schema.name, schema.ticks_max)
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
