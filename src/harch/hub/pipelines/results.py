"""What has a pipeline without ACT made? Rows of its lane of results, for people and programs."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import numpy as np

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.hub.pipelines.views import ResultRow, ResultsView
from harch.pipelines.client.errors import JetStreamRefused, NatsError, as_harch_error
from harch.pipelines.engine.jetstream_api import JetStreamAdmin
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.settings import NS_PER_S, SenseSettings
from harch.pipelines.think.messages import decode_outputs
from harch.pipelines.wire.columns import decode_columns
from harch.pipelines.wire.header import BatchHeader, check_payload, unpack_header
from harch.pipelines.workers.names import PipelineNames

MESSAGES_MAX = 200  # of one page; a message is a window of one partition
ROWS_MAX = 10_000
_NO_MESSAGE = 10037


async def read_results(
    admin: JetStreamAdmin, names: PipelineNames, sense: SenseSettings, *, after: int, thinks: bool
) -> ResultsView:
    """Rows of messages behind number `after`; a negative one means so many messages before the end. Raises E0701."""
    rows: list[ResultRow] = []
    try:
        seq = after if after >= 0 else await _before_end(admin, names, -after)
        for _ in range(MESSAGES_MAX):
            message = await _next(admin, names, seq + 1)
            if message is None or len(rows) >= ROWS_MAX:
                break
            seq = int(message["seq"])
            payload = base64.b64decode(message.get("data", ""))
            rows += _outputs(payload, sense, seq) if thinks else _features(payload, sense, seq)
    except NatsError as error:
        raise as_harch_error(error, "reading results") from error
    return ResultsView(pipeline=names.pipeline, subject=names.results("*"), items=tuple(rows), next_after=seq)


async def _before_end(admin: JetStreamAdmin, names: PipelineNames, count: int) -> int:
    info = await admin.call(f"STREAM.INFO.{names.results_stream}")
    state = info.get("state")
    last = int(state.get("last_seq", 0)) if isinstance(state, dict) else 0
    return max(0, last - min(count, MESSAGES_MAX))


async def _next(admin: JetStreamAdmin, names: PipelineNames, seq: int) -> dict[str, Any] | None:
    try:
        found = await admin.call(
            f"STREAM.MSG.GET.{names.results_stream}", {"seq": seq, "next_by_subj": names.results("*")}
        )
    except JetStreamRefused as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    message = found.get("message")
    if not isinstance(message, dict):
        raise HarchError("E1001", "the engine answered something that is no message")
    return message


def _features(payload: bytes, sense: SenseSettings, seq: int) -> list[ResultRow]:
    """What cannot be read is of an earlier file, and is passed over."""
    header = unpack_header(payload)
    schema = feature_schema(sense)
    if isinstance(header, Rejection) or header.schema != schema.id:
        return []
    body = check_payload(header, payload)
    columns = body if isinstance(body, Rejection) else decode_columns(schema, header.n, body)
    if isinstance(columns, Rejection):
        return []
    names = [column.name for column in schema.values]
    return _rows(header, sense, seq, columns.device, dict(zip(names, columns.values, strict=True)), columns.metric)


def _outputs(payload: bytes, sense: SenseSettings, seq: int) -> list[ResultRow]:
    found = decode_outputs(payload)
    if isinstance(found, Rejection):
        return []
    header, decided = found
    model = f"{decided.ref.model}@{decided.ref.version}"
    return _rows(header, sense, seq, decided.devices, decided.outputs, model=model)


def _rows(
    header: BatchHeader,
    sense: SenseSettings,
    seq: int,
    devices: np.ndarray,
    columns: dict[str, np.ndarray],
    metrics: np.ndarray | None = None,
    *,
    model: str = "",
) -> list[ResultRow]:
    at = datetime.fromtimestamp(header.t_first_ns / NS_PER_S, UTC)
    by_metric = metrics is not None and sense.rows_per == "metric"
    return [
        ResultRow(
            seq=seq,
            window_end=at,
            device=sense.devices[number] if number < len(sense.devices) else str(number),
            metric=sense.metrics[int(metrics[row])] if by_metric and metrics is not None else "",
            model=model,
            values={name: _number(column[row]) for name, column in columns.items()},
        )
        for row, number in enumerate(devices.tolist())
    ]


def _number(value: float) -> float | None:
    """JSON knows no NaN: a metric of which a device sent nothing is null."""
    return float(value) if np.isfinite(value) else None
