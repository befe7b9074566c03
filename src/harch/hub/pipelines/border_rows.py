"""What does an export say, and what do the rows of one become where it arrives? Features in, JSON out, events in.

JSON, so that whoever watches a border can read what crosses it. `(state, partition, seq)` names a window for good: the
source that takes it in recognises by that what came twice. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from harch.base.rejection import Rejection
from harch.pipelines.sense.devices import DeviceTable
from harch.pipelines.sense.edge import Edge, Permit
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.gate import PolicyTable
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.sense.source_settings import HttpSource
from harch.pipelines.wire.columns import decode_columns
from harch.pipelines.wire.header import BatchHeader, check_payload, unpack_header
from harch.pipelines.wire.rows import UNIT_NS, RowReader

BODY_BYTES_MAX = 7 << 20  # below what the border server takes in one message


class ExportRow(Struct, frozen=True, array_like=True):
    device: str
    metric: str
    values: tuple[float | None, ...]


class ExportBatch(Struct, frozen=True, kw_only=True):
    """One window of one partition."""

    state: int
    partition: int
    seq: int
    window_end_ns: int
    columns: tuple[str, ...]
    rows: tuple[ExportRow, ...]


class Leaving(Struct, frozen=True, kw_only=True):
    """What may leave of a message of features, and how many rows that is."""

    body: bytes
    rows: int


class FeatureReader:
    """Makes exports of the features of one pipeline."""

    def __init__(self, settings: SenseSettings) -> None:
        self._schema = feature_schema(settings)
        self._names = tuple(column.name for column in self._schema.values)
        self._devices, self._metrics = settings.devices, settings.metrics
        self._per_device = settings.rows_per == "device"

    def leaving(
        self,
        message: bytes,
        *,
        state: int,
        partition: int,
        columns: Sequence[str],
        hub: str,
        tables: Sequence[PolicyTable],
        released: bool = False,
    ) -> Leaving | Rejection:
        """The rows with these columns, for that hub. A window whose events may not be there does not leave, whatever
        the pipeline permits. `state`: the version of what the numbers of windows mean. `released`: what the pipeline's
        data permits was loosened for this export, which covers no window whose events permit less than that."""
        header = unpack_header(message)
        if isinstance(header, Rejection):
            return header
        payload = check_payload(header, message)
        if isinstance(payload, Rejection):
            return payload
        table = next((one for one in tables if one.version == header.policy_version), None)
        if table is None or not (_permits_all(header, table) if released else _may_be_at(header, hub, table)):
            return Rejection(f"{hub}", "juris_mask", "events of this window may not be there", "it stays here")
        found = decode_columns(self._schema, header.n, payload)
        if isinstance(found, Rejection):
            return found
        picked = [self._names.index(name) for name in columns] if columns else list(range(len(self._names)))
        matrix = found.values[picked].T.tolist()
        rows = tuple(
            ExportRow(
                self._device(int(device)),
                "" if self._per_device else self._metrics[int(metric)],
                tuple(value if math.isfinite(value) else None for value in values),
            )
            for device, metric, values in zip(found.device, found.metric, matrix, strict=True)
        )
        batch = ExportBatch(
            state=state,
            partition=partition,
            seq=header.seq,
            window_end_ns=header.t_first_ns,
            columns=tuple(self._names[index] for index in picked),
            rows=rows,
        )
        body = msgspec.json.encode(batch)
        if len(body) > BODY_BYTES_MAX:
            detail = f"{len(body)} bytes of one window; at most {BODY_BYTES_MAX} cross a border at once"
            return Rejection("export", "size", detail, "export fewer columns, or use more partitions")
        return Leaving(body=body, rows=len(rows))

    def _device(self, number: int) -> str:
        return self._devices[number] if number < len(self._devices) else str(number)


class Arrived(Struct, frozen=True, kw_only=True):
    """A ready-made batch for a source; empty if none of its rows can be used. `left_out`: why, with counts."""

    message: bytes
    rows: int
    left_out: dict[str, int]


class RowTaker:
    """Makes batches for one HTTP source of a pipeline of what arrives from one export."""

    def __init__(self, settings: SenseSettings, source: HttpSource, permit: Permit, name: str) -> None:
        self._settings, self._source, self._permit, self._name = settings, source, permit, name
        table = DeviceTable(settings.devices, settings.devices_max, settings.metrics)
        self._reader = RowReader(settings.event_schema, table, source.rows)

    def arrived(self, body: bytes, now_ns: int) -> Arrived | Rejection:
        try:
            batch = msgspec.json.decode(body, type=ExportBatch)
        except (msgspec.MsgspecError, RecursionError) as error:
            return Rejection("import", "body", f"is no export: {error}", "do both hubs run the same version?")
        format, unit_ns = self._source.rows, UNIT_NS[self._source.rows.time_unit]
        named: list[dict[str, object]] = [
            {
                **dict(zip(batch.columns, row.values, strict=False)),
                format.time: batch.window_end_ns // unit_ns,
                format.device: row.device,
                **({format.metric: row.metric} if row.metric else {}),
            }
            for row in batch.rows
        ]
        # The number of the window is the number of the batch, and each partition a sender of its own.
        edge = Edge(
            f"{self._name}/{batch.state}/{batch.partition}",
            self._settings,
            self._permit,
            disorder_s=self._source.disorder_s,
            priority=self._source.priority,
            seq=max(0, batch.seq - 1),
        )
        prepared = edge.prepare(self._reader.mappings(named), now_ns)
        left_out: dict[str, int] = {}
        for example, count in prepared.aside:
            left_out[example.reason] = left_out.get(example.reason, 0) + count
        message = prepared.messages[0] if prepared.messages else b""
        return Arrived(message=message, rows=prepared.events, left_out=left_out)


def _may_be_at(header: BatchHeader, hub: str, table: PolicyTable) -> bool:
    return hub in table.bits and bool(header.juris_mask & table.ceiling & (1 << table.bits[hub]))


def _permits_all(header: BatchHeader, table: PolicyTable) -> bool:
    """Nothing in it is stricter than the tag that the statement is about."""
    return header.juris_mask & table.ceiling == table.ceiling
