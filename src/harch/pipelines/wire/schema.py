"""What is an event? The columns of a batch: their names, types, roles and bounds, and the number that stands for them.

Value columns come last and share one type, so that a batch is read as a few vectors and one matrix of values, without
copying. Times are unsigned offsets in ticks from the first event of the batch.
"""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from harch.base.errors import HarchError, Problems

COLUMNS_MAX = 1024 + 4  # features travel as columns too
TICKS_NS = (1, 1_000, 1_000_000)  # a tick is a nanosecond, a microsecond or a millisecond
Role = Literal["time", "device", "metric", "flag", "value"]
TypeName = Literal["u8", "u16", "u32", "u64", "f32", "f64"]
_VALUE_TYPES = ("f32", "f64")
_WIDEST_DEVICE, _WIDEST_METRIC = 4, 2  # bytes: devices and metrics are dense numbers, not ids
_ROLE_COUNTS: dict[Role, tuple[int, int]] = {
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


class Column(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One column. `low` and `high` bound a value: outside of them, or not a number, and the event is set aside."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_.-]{0,127}$")]
    type: TypeName
    role: Role
    low: float | None = None
    high: float | None = None
    unit: Annotated[str, Meta(max_length=16)] = ""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return _DTYPES[self.type]


def largest(column: Column) -> int:
    """The largest number that an unsigned column can hold."""
    return int((1 << 8 * column.dtype.itemsize) - 1)


class EventSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The form of events. Two schemas with the same columns and tick have the same `id`, whatever they are called."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,47}$")]
    columns: Annotated[tuple[Column, ...], Meta(min_length=3, max_length=COLUMNS_MAX)]
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
    def values(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role == "value")

    @cached_property
    def ticks_max(self) -> int:
        """The largest offset that the time column can hold."""
        return largest(self.column("time"))

    def column(self, role: Role) -> Column:
        """The one column of this role; `value` has several, see `values`."""
        return self.by_role[role]

    @cached_property
    def by_role(self) -> dict[str, Column]:
        return {column.role: column for column in reversed(self.columns)}


def schema_problems(schema: EventSchema) -> Problems:
    """Every mistake of a schema that its types do not exclude, with the path of the column."""
    problems = Problems()
    if schema.tick_ns not in TICKS_NS:
        problems.add("tick_ns", f"{schema.tick_ns} is not one of {', '.join(map(str, TICKS_NS))}")
    names = [column.name for column in schema.columns]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add("columns", f"two columns are called `{name}`")
    roles = [column.role for column in schema.columns]
    for role, (least, most) in _ROLE_COUNTS.items():
        if not least <= roles.count(role) <= most:
            problems.add("columns", f"{roles.count(role)} columns of role `{role}`; {_wanted(least, most)}")
    values = [column for column in schema.columns if column.role == "value"]
    if tuple(values) != schema.columns[len(schema.columns) - len(values) :]:
        problems.add("columns", "columns of role `value` come last")
    if len({column.type for column in values}) > 1:
        problems.add("columns", "all columns of role `value` have the same type")
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


def _column_problems(problems: Problems, path: str, column: Column) -> None:
    is_float = column.type in _VALUE_TYPES
    if (column.role == "value") is not is_float:
        problems.add(f"{path}.type", "values are f32 or f64, everything else is u8 to u64")
    if column.role == "device" and column.dtype.itemsize > _WIDEST_DEVICE:
        problems.add(f"{path}.type", "devices are numbered in at most 32 bits")
    if column.role in ("metric", "flag") and column.dtype.itemsize > _WIDEST_METRIC:
        problems.add(f"{path}.type", f"a {column.role} has at most 16 bits")
    if column.role != "value" and (column.low is not None or column.high is not None):
        problems.add(path, "only values have bounds")
    low = -math.inf if column.low is None else column.low
    high = math.inf if column.high is None else column.high
    if not low < high:
        problems.add(f"{path}.low", f"{column.low} is not below {column.high}")


def _time_device_metric_flag(time: TypeName, device: TypeName, metric: TypeName, flag: TypeName) -> tuple[Column, ...]:
    return (
        Column(name="ts", type=time, role="time"),
        Column(name="device", type=device, role="device"),
        Column(name="metric", type=metric, role="metric"),
        Column(name="flag", type=flag, role="flag"),
    )


# 16 bytes per event: what the fast lane carries unless a pipeline says otherwise.
COMPACT = EventSchema(
    name="compact",
    columns=(
        *_time_device_metric_flag("u32", "u16", "u8", "u8"),
        Column(name="v0", type="f32", role="value"),
        Column(name="v1", type="f32", role="value"),
    ),
)

# 64 bytes per event, with six values in full precision.
WIDE = EventSchema(
    name="wide",
    columns=(
        *_time_device_metric_flag("u64", "u32", "u16", "u16"),
        *(Column(name=f"v{index}", type="f64", role="value") for index in range(6)),
    ),
    tick_ns=1,
)

SHIPPED = {schema.name: schema for schema in (COMPACT, WIDE)}
