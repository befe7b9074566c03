"""What did the outside world send? Rows of JSON or NDJSON as arrays, and every row that is none with its reason.

A row names its time, its device, optionally its metric, flag and event id, and its values. Nothing in a row can raise:
what cannot be used is counted under a reason, and the first of them are kept with a sentence.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

from harch.pipelines.wire.columns import EventSchema, largest
from harch.pipelines.wire.header import TIME_NS_MAX

ROWS_MAX = 100_000
ROW_BYTES_MAX = 64 * 1024
REJECTED_KEPT_MAX = 100
_EXCERPT_CHARS = 120
UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Scalar = int | float | str | bool | None
_ROW = msgspec.json.Decoder(dict[str, _Scalar])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class Names(Protocol):
    """Who numbers devices and metrics? None for a name that is not known."""

    def device(self, name: str) -> int | None: ...

    def metric(self, name: str) -> int | None: ...


class RowFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which key of a row is what. Times are ISO 8601 text with a zone, or numbers since 1970 in `time_unit`."""

    time: str = "ts"
    time_unit: Literal["s", "ms", "us", "ns"] = "ms"
    device: str = "device"
    metric: str = "metric"
    flag: str = "flag"
    event_id: str = ""  # the key of an id that is unique per event; empty: rows have none
    values: Annotated[dict[str, str], Meta(max_length=64)] = field(default_factory=dict)  # column: key, if they differ


class RejectedRow(Struct, frozen=True):
    index: int
    reason: str
    detail: str
    excerpt: str = ""  # the start of the row, for people


class ParsedRows(Struct, kw_only=True):
    """Rows as arrays. `indexes` are their places in the input, `event_ids` is empty where rows have none."""

    times_ns: NDArray[np.int64]
    device: NDArray[np.uint32]
    metric: NDArray[np.uint16]
    flag: NDArray[np.uint16]
    values: NDArray[np.float64]  # (columns, rows)
    indexes: NDArray[np.int64]
    event_ids: tuple[str, ...] = ()
    rejected: tuple[RejectedRow, ...] = ()
    rejected_by_reason: Mapping[str, int] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.times_ns)


class RowReader:
    """Reads rows of one schema. Not shared between threads."""

    def __init__(self, schema: EventSchema, names: Names, format: RowFormat) -> None:
        self._names = names
        self._format = format
        self._keys = [format.values.get(column.name, column.name) for column in schema.values]
        self._flag_max = largest(schema.by_role["flag"]) if "flag" in schema.by_role else 0
        self._unit_ns = UNIT_NS[format.time_unit]

    def json(self, body: bytes) -> ParsedRows:
        """One object, or a list of them."""
        if body.lstrip()[:1] != b"[":
            return self._read([body])
        try:
            return self._read(_LIST.decode(body))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return self._none("unreadable", f"not a list of JSON objects: {error}", body)

    def ndjson(self, body: bytes) -> ParsedRows:
        """One object per line; empty lines are passed over."""
        return self._read(line for line in body.split(b"\n") if line.strip())

    def mappings(self, rows: Iterable[Mapping[str, object]]) -> ParsedRows:
        """Rows that are read already, e.g. of a CSV file."""
        kept = _Kept(len(self._keys))
        for index, row in enumerate(rows):
            if index >= ROWS_MAX:
                kept.reject(index, "too_many", f"more than {ROWS_MAX} rows at once; the rest was ignored", b"")
                break
            if reason := self._take(kept, index, row):
                kept.reject(index, *reason, repr(dict(row))[:_EXCERPT_CHARS].encode("utf-8", "replace"))
        return kept.rows()

    def _read(self, raw_rows: Iterable[bytes | msgspec.Raw]) -> ParsedRows:
        kept = _Kept(len(self._keys))
        for index, text in enumerate(raw_rows):
            raw = bytes(text)
            if index >= ROWS_MAX:
                kept.reject(index, "too_many", f"more than {ROWS_MAX} rows at once; the rest was ignored", raw)
                break
            if len(raw) > ROW_BYTES_MAX:
                kept.reject(index, "too_large", f"{len(raw)} bytes; a row has at most {ROW_BYTES_MAX}", raw)
                continue
            try:
                row = _ROW.decode(raw)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                kept.reject(index, "unreadable", f"not a flat JSON object: {error}", raw)
                continue
            if reason := self._take(kept, index, row):
                kept.reject(index, *reason, raw)
        return kept.rows()

    def _none(self, reason: str, detail: str, raw: bytes) -> ParsedRows:
        kept = _Kept(len(self._keys))
        kept.reject(0, reason, detail, raw)
        return kept.rows()

    def _take(self, kept: _Kept, index: int, row: Mapping[str, object]) -> tuple[str, str] | None:
        """Adds the row, or says why not."""
        form = self._format
        time_ns = self._time_ns(row.get(form.time))
        if isinstance(time_ns, str):
            return "bad_time", f"`{form.time}` {time_ns}"
        device = self._number(self._names.device, row.get(form.device))
        if device is None:
            return "unknown_device", f"device `{str(row.get(form.device))[:60]}` is not in the table of devices"
        metric = self._number(self._names.metric, row.get(form.metric)) if form.metric in row else 0
        if metric is None:
            return "unknown_metric", f"metric `{str(row.get(form.metric))[:60]}` is not in the pipeline"
        flag = row.get(form.flag, 0)
        if type(flag) is not int or not 0 <= flag <= self._flag_max:
            return "bad_flag", f"`{form.flag}` is not a number from 0 to {self._flag_max}"
        values = []
        for key in self._keys:
            value = row.get(key, 0.0)  # a column that a row leaves out is zero, as in a batch of the fast lane
            if type(value) is int:
                value = float(value) if abs(value) < 1 << 53 else math.nan
            if type(value) is not float or not math.isfinite(value):
                return "bad_value", f"`{key}` is not a finite number"
            values.append(value)
        if self._keys and not any(key in row for key in self._keys):
            return "bad_value", f"none of {', '.join(f'`{key}`' for key in self._keys)} is there"
        event_id = row.get(form.event_id) if form.event_id else None
        if form.event_id and (type(event_id) not in (str, int) or len(str(event_id)) > 128):
            return "bad_event_id", f"`{form.event_id}` is not text of at most 128 characters"
        kept.add(index, time_ns, device, metric, flag, values, str(event_id) if form.event_id else "")
        return None

    def _number(self, numbering: Any, name: object) -> int | None:
        found: int | None = numbering(name) if isinstance(name, str) and len(name) <= 128 else None
        return found

    def _time_ns(self, value: object) -> int | str:
        """Nanoseconds, or what is wrong."""
        if isinstance(value, str):
            since = _since_1970(value)
            if since is None:
                return "is not a time such as 2026-05-01T12:00:00Z"
            ns = (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
        elif isinstance(value, datetime):
            return "is not text"
        elif type(value) is int and abs(value) < 1 << 63:
            ns = value * self._unit_ns
        elif type(value) is float and math.isfinite(value) and abs(value) < 1 << 63:
            ns = round(value * self._unit_ns)
        else:
            return "is missing, or not a time"
        return ns if 0 <= ns <= TIME_NS_MAX else "lies before 1970 or after 2116"


def _since_1970(text: str) -> timedelta | None:
    """None for what is no time, or has no zone: guessing one would move events by hours."""
    try:
        moment = datetime.fromisoformat(text) if len(text) <= 40 else None
        return None if moment is None or moment.tzinfo is None else moment - _EPOCH
    except (ValueError, OverflowError):
        return None


class _Kept:
    """Rows while they are read."""

    def __init__(self, value_columns: int) -> None:
        self._value_columns = value_columns
        self._whole: list[tuple[int, int, int, int, int]] = []
        self._values: list[list[float]] = []
        self._ids: list[str] = []
        self._rejected: list[RejectedRow] = []
        self._by_reason: dict[str, int] = {}

    def add(
        self, index: int, time_ns: int, device: int, metric: int, flag: int, values: list[float], event_id: str
    ) -> None:
        self._whole.append((index, time_ns, device, metric, flag))
        self._values.append(values)
        self._ids.append(event_id)

    def reject(self, index: int, reason: str, detail: str, raw: bytes) -> None:
        self._by_reason[reason] = self._by_reason.get(reason, 0) + 1
        if len(self._rejected) < REJECTED_KEPT_MAX:
            excerpt = raw[:_EXCERPT_CHARS].decode("utf-8", "replace")
            self._rejected.append(RejectedRow(index, reason, detail[:300], excerpt))

    def rows(self) -> ParsedRows:
        whole = np.array(self._whole, np.int64).reshape(len(self._whole), 5)
        values = np.array(self._values, np.float64).reshape(len(self._values), self._value_columns)
        return ParsedRows(
            indexes=whole[:, 0].copy(),
            times_ns=whole[:, 1].copy(),
            device=whole[:, 2].astype(np.uint32),
            metric=whole[:, 3].astype(np.uint16),
            flag=whole[:, 4].astype(np.uint16),
            values=np.ascontiguousarray(values.T),
            event_ids=tuple(self._ids) if any(self._ids) else (),
            rejected=tuple(self._rejected),
            rejected_by_reason=self._by_reason,
        )
