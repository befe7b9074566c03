"""What does THINK get? One row per device (or device and metric) of a window that is over: statistics as a matrix.

The key `(pipeline, partition, window_end_ns)` names a batch of features for good: when it is computed again after a
restart it has the same key and the same number. Features travel as batches like events do; their value columns are the
names of the features.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.pipelines.sense.devices import EnrichmentTable
from harch.pipelines.sense.forecast import FEATURES as FORECAST_FEATURES
from harch.pipelines.sense.kernels import COUNT, LAST, MAX, MIN, SHIFT, SQUARES, SUM
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.wire.columns import Columns, encode_columns
from harch.pipelines.wire.header import BatchHeader, Flags, Lane, pack_batch
from harch.pipelines.wire.schema import Column, EventSchema

Matrix = NDArray[np.float64]


class FeatureBatch(Struct, frozen=True, kw_only=True):
    """The features of one window. `juris_mask` is what all events in it permit."""

    pipeline: str
    partition: int
    window_start_ns: int
    window_end_ns: int
    seq: int  # gapless per partition
    juris_mask: int
    policy_version: int
    device: NDArray[np.uint32]
    metric: NDArray[np.uint16]  # zeros where a row is a whole device
    names: tuple[str, ...]
    matrix: Matrix  # (rows, names); NaN where a device had no such metric
    device_version: int = 0
    enrichment_version: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        return self.pipeline, self.partition, self.window_end_ns


class FeatureMaker:
    """Turns cells into rows, by the settings of one stage."""

    def __init__(self, settings: SenseSettings) -> None:
        self._devices, self._metrics = settings.devices_max, len(settings.metrics)
        self._values = len(settings.aggregated)
        self._per_device = settings.rows_per == "device"
        self._statistics = [STATISTICS[name] for name in settings.statistics]
        self._has_forecast = settings.forecast is not None
        enriched = settings.enrichment.columns if settings.enrichment else ()
        self.names = (*_cell_names(settings), *enriched)
        self._enriched = len(enriched)

    def rows(
        self, cells: Matrix, forecast: Matrix | None, table: EnrichmentTable | None
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16], Matrix]:
        """Devices, metrics and matrix of everything in these cells."""
        cells_per_row = self._values * (self._metrics if self._per_device else 1)
        counts = cells[:, COUNT].reshape(-1, cells_per_row)
        rows = np.flatnonzero(counts.any(axis=1))
        picked = cells.reshape(-1, cells_per_row, cells.shape[1])[rows]
        columns = [statistic(picked) for statistic in self._statistics]
        if forecast is not None:
            columns += list(np.moveaxis(forecast.reshape(-1, cells_per_row, forecast.shape[1])[rows], 2, 0))
        # From (feature, row, cell) to (row, cell, feature): all features of one metric stand side by side.
        matrix = np.moveaxis(np.array(columns), 0, 2).reshape(len(rows), -1)
        device = rows if self._per_device else rows // self._metrics
        metric = np.zeros(len(rows)) if self._per_device else rows % self._metrics
        if self._enriched:
            joined = table.matrix[device] if table else np.full((len(rows), self._enriched), np.nan)
            matrix = np.hstack((matrix, joined))
        return device.astype(np.uint32), metric.astype(np.uint16), np.ascontiguousarray(matrix)


def feature_schema(settings: SenseSettings) -> EventSchema:
    """The schema under which the features of these settings travel."""
    names = FeatureMaker(settings).names
    return EventSchema(
        name="features",
        columns=(
            Column(name="ts", type="u64", role="time"),
            Column(name="device", type="u32", role="device"),
            Column(name="metric", type="u16", role="metric"),
            Column(name="flag", type="u16", role="flag"),
            *(Column(name=name, type="f64", role="value") for name in names),
        ),
    )


def rule_names(settings: SenseSettings) -> tuple[str, ...]:
    """What rules call the features where there is no model between: a dash, which would be a minus, is `_` there."""
    return tuple(name.replace("-", "_") for name in FeatureMaker(settings).names)


def encode_features(
    batch: FeatureBatch, schema: EventSchema, *, source: int, lane: Lane = Lane.HOT, is_end: bool = False
) -> bytes:
    """The message that carries them to THINK. Its watermark is the end of the window."""
    n = len(batch.device)
    zeros = np.zeros(n, np.uint64)
    payload = encode_columns(schema, Columns(zeros, batch.device, batch.metric, zeros, batch.matrix.T))
    header = BatchHeader(
        schema=schema.id,
        n=n,
        juris_mask=batch.juris_mask,
        policy_version=batch.policy_version,
        source=source,
        seq=batch.seq,
        t_first_ns=batch.window_end_ns,
        watermark_ns=batch.window_end_ns,
        payload_len=len(payload),
        flags=Flags.END if is_end else 0,
        lane=lane,
    )
    return pack_batch(header, payload)


def _cell_names(settings: SenseSettings) -> list[str]:
    """`metric.value.statistic`, without the parts that there is only one of."""
    own = (*settings.statistics, *(FORECAST_FEATURES if settings.forecast else ()))
    metrics = settings.metrics if settings.rows_per == "device" and len(settings.metrics) > 1 else ("",)
    values = settings.aggregated if len(settings.aggregated) > 1 else ("",)
    return [
        ".".join(part for part in (metric, value, statistic) if part)
        for metric in metrics
        for value in values
        for statistic in own
    ]


def _mean(cells: Matrix) -> Matrix:
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Matrix = cells[..., SUM] / cells[..., COUNT]
    return mean


def _std(cells: Matrix) -> Matrix:
    """Of all events in the window, as they are and not as a sample of more."""
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = cells[..., SQUARES] / cells[..., COUNT] - (_mean(cells) - cells[..., SHIFT]) ** 2
    deviation: Matrix = np.sqrt(np.maximum(variance, 0.0))
    return deviation


def _where_any(index: int) -> Callable[[Matrix], Matrix]:
    def read(cells: Matrix) -> Matrix:
        found: Matrix = np.where(cells[..., COUNT] > 0, cells[..., index], np.nan)
        return found

    return read


STATISTICS: dict[str, Callable[[Matrix], Matrix]] = {
    "count": lambda cells: cells[..., COUNT],
    "sum": lambda cells: cells[..., SUM],
    "mean": _mean,
    "min": _where_any(MIN),
    "max": _where_any(MAX),
    "last": _where_any(LAST),
    "std": _std,
}
