"""What does THINK get?

One row per device (or device and metric) of a window that is over: statistics and the Holt trend of a rolling history
as a matrix.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.errors import InvariantBroken
from harch.pipelines.sense.devices import EnrichmentTable
from harch.pipelines.sense.kernels import COUNT, LAST, MAX, MIN, SHIFT, SQUARES, SUM, holt
from harch.pipelines.sense.settings import ForecastSettings, SenseSettings
from harch.pipelines.wire.columns import Columns, EventSchema, SchemaColumn, encode_columns
from harch.pipelines.wire.header import BatchHeader, BatchLane, Flags, pack_batch

# Where is a value going? A rolling history of means per key, by default of four hours, and a Holt trend through it.
#
# Holt's method keeps a level and a trend, both by exponential weights. It is computed anew from the history each time
# that a step is complete, so that what is older than the span is forgotten for good; in between the last answer stands.
# It knows no seasons: over an hour it serves as a warning, not as a plan. Means are kept in 32 bits, half the
# checkpoint.


FEATURES = ("level", "trend_per_s", "forecast")
_NOT_STARTED = -1


class TrendForecast:
    """Histories of all keys of one partition."""

    def __init__(self, settings: ForecastSettings, keys: int, pane_ns: int) -> None:
        self._settings = settings
        self._panes_per_step = settings.step_ns // pane_ns
        self.history: NDArray[np.float32] = np.full((settings.steps, keys), np.nan, np.float32)
        self.step = _NOT_STARTED  # the one that is being filled
        self.filled = 0
        self.count: Matrix = np.zeros(keys)
        self.sum: Matrix = np.zeros(keys)
        self._trend: Matrix = np.full((keys, 3), np.nan)

    def pane_closed(self, pane: int, cells: Matrix) -> None:
        """Adds a pane that takes no more events; completes the step before it."""
        step = pane // self._panes_per_step
        if self.step == _NOT_STARTED:
            self.step = step
        if step > self.step:
            self._complete(step)
        self.count += cells[:, COUNT]
        self.sum += cells[:, SUM]

    def columns(self) -> Matrix:
        """Level, trend per second, and the value expected at the horizon; NaN until two steps have values."""
        settings = self._settings
        answer = np.full((len(self._trend), len(FEATURES)), np.nan)
        known = self._trend[:, 2] >= 2
        level, trend_per_s = self._trend[known, 0], self._trend[known, 1] / settings.step_s
        answer[known] = np.column_stack((level, trend_per_s, level + trend_per_s * settings.horizon_s))
        return answer

    def refresh(self) -> None:
        """Computes the trends from the history; also needed after a history was restored."""
        size = self._settings.steps
        oldest = (self.step - self.filled) % size if self.filled else 0
        weights = self._settings.level_weight, self._settings.trend_weight
        if holt(self.history, oldest, self.filled, *weights, self._trend) < 0:
            raise InvariantBroken("a history has as many keys as its windows", self.history.shape)

    def _complete(self, next_step: int) -> None:
        size = self._settings.steps
        with np.errstate(invalid="ignore", divide="ignore"):
            self.history[self.step % size] = np.where(self.count > 0, self.sum / self.count, np.nan)
        for empty in range(self.step + 1, min(next_step, self.step + 1 + size)):
            self.history[empty % size] = np.nan
        self.filled = min(size, self.filled + next_step - self.step)
        self.step = next_step
        self.count[:] = 0.0
        self.sum[:] = 0.0
        self.refresh()


# What does THINK get? One row per device (or device and metric) of a window that is over: statistics as a matrix.
#
# The key `(pipeline, partition, window_end_ns)` names a batch of features for good: when it is computed again after a
# restart it has the same key and the same number. Features travel as batches like events do; their value columns are
# the
# names of the features.


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
            SchemaColumn(name="ts", type="u64", role="time"),
            SchemaColumn(name="device", type="u32", role="device"),
            SchemaColumn(name="metric", type="u16", role="metric"),
            SchemaColumn(name="flag", type="u16", role="flag"),
            *(SchemaColumn(name=name, type="f64", role="value") for name in names),
        ),
    )


def rule_names(settings: SenseSettings) -> tuple[str, ...]:
    """What rules call the features where there is no model between: a dash, which would be a minus, is `_` there."""
    return tuple(name.replace("-", "_") for name in FeatureMaker(settings).names)


def encode_features(
    batch: FeatureBatch, schema: EventSchema, *, source: int, lane: BatchLane = BatchLane.HOT, is_end: bool = False
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
    own = (*settings.statistics, *(FEATURES if settings.forecast else ()))
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
