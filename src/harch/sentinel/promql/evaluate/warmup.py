"""How is nobody made to wait for a compiler? A service asks some queries of a handful of samples at its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harch.sentinel.model.labels import Matcher, labels
from harch.sentinel.model.selection import Samples, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.selection.instant_vectors import histogram_rows

_STEP_MS = 15_000
_STEPS = 8
# Between them they call every kernel but one; a kernel is compiled once and kept on disk.
_QUERIES = (
    "sum by (job) (rate(made_total[1m]))",
    "topk(1, irate(made_total[1m]))",
    "limitk(1, made_total)",
    "quantile(0.5, increase(made_total[1m] anchored))",
    "histogram_quantile(0.9, made_total)",
    "histogram_fraction(0, 1, made_total)",
    "avg_over_time(made_total[1m]) / made_total",
    "made_total and made_total smoothed",
    "timestamp(made_total)",
)


def warm() -> None:
    """Compiles or loads all kernels; seconds the first time on a machine, some tenths of a second later."""
    engine, samples = QueryEngine(), _HandfulOfSamples()
    for query in _QUERIES:
        engine.range(query, 0, _STEP_MS * _STEPS, _STEP_MS, samples)
    floats = samples.select((), 0, 0, limit=1).samples
    histogram_rows(replace(floats, histogram_at=np.full(len(floats.values), -1, np.int32)))


class _HandfulOfSamples:
    """A Queryable with two series, whatever it is asked for."""

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        times = np.tile(np.arange(_STEPS, dtype=np.int64) * _STEP_MS, 2)
        first, count = np.array([0, _STEPS], np.int64), np.array([_STEPS, _STEPS], np.int64)
        values = np.arange(2.0 * _STEPS)
        return Selection(self.series(matchers, start, end), Samples(first, count, times, values))

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        names = [labels({"__name__": "made_total", "job": "a", "le": bound}) for bound in ("1", "+Inf")]
        return SeriesTable.of(names)

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()
