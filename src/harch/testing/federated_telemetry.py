"""Hubs with telemetry, all from a seed, and a measure for answers: federated ones are compared with central ones.

The central answer is that of one store with the series of all hubs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.histograms import STALE, Histogram, ResetHint, Span
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import Samples, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.evaluate.results import MatrixResult, QueryResult, ScalarResult, VectorResult

Points = Sequence[tuple[int, float | Histogram]]
SCRAPE_MS = 15_000
BOUNDS = ("0.1", "0.5", "1", "5", "+Inf")
JOBS, MODELS, ZONES = ("train", "serve"), ("a100", "h100", "card"), ("north", "south")
RELATIVE, ABSOLUTE = 1e-9, 1e-11  # what is left when sums of many thousands cancel out has no digits of its own


class MemoryMetrics:
    """A Queryable over `{labels: [(time_ms, value), …]}`."""

    def __init__(self, series: Mapping[Labels, Points]) -> None:
        self._series = dict(series)

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        found = [one for one in self._series if _fits(matchers, one)]
        points = [[point for point in self._series[one] if start <= point[0] <= end] for one in found]
        flat = [point for each in points for point in each]
        cells = [value for _, value in flat if isinstance(value, Histogram)]
        numbers = iter(range(len(cells)))
        places = [next(numbers) if isinstance(value, Histogram) else -1 for _, value in flat]
        count = np.array([len(each) for each in points], np.int64)
        samples = Samples(
            np.cumsum(count) - count,
            count,
            np.array([time_ms for time_ms, _ in flat], np.int64),
            np.array([value.sum if isinstance(value, Histogram) else value for _, value in flat], np.float64),
            histogram_at=np.array(places, np.int32) if cells else None,
            histograms=cells,
        )
        return Selection(SeriesTable.of(found), samples)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        there = [
            one
            for one, points in self._series.items()
            if _fits(matchers, one) and any(start <= at <= end for at, _ in points)
        ]
        return SeriesTable.of(there)

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


def _fits(matchers: Sequence[Matcher], one: Labels) -> bool:
    values = dict(one)
    return all(matcher.matches(values.get(matcher.name, "")) for matcher in matchers)


@dataclass(frozen=True, slots=True)
class World:
    """Telemetry of several hubs, and the same in one place."""

    hubs: Mapping[str, MemoryMetrics]
    central: MemoryMetrics
    end_ms: int


def world(
    seed: int, *, hubs: int = 3, sources: int = 8, minutes: int = 40, hub_label: bool = True, churn: bool = True
) -> World:
    """Hubs with gauges `m`, counters `c_total`, classic histograms `b_bucket` and native ones `h`.

    With `churn`, some series begin late, end early, miss scrapes or restart; without it all are scraped alike.
    """
    chance = random.Random(seed)  # noqa: S311 - the same world for the same seed
    all_series: dict[Labels, Points] = {}
    stores = {}
    for hub in range(hubs):
        name = f"hub-{hub}"
        series = _hub_series(chance, name, sources, minutes, hub_label=hub_label, churn=churn)
        stores[name] = MemoryMetrics(series)
        all_series |= series
    return World(stores, MemoryMetrics(all_series), minutes * 60_000)


def _hub_series(
    chance: random.Random, hub: str, sources: int, minutes: int, *, hub_label: bool, churn: bool
) -> dict[Labels, Points]:
    series: dict[Labels, Points] = {}
    for source in range(sources):
        base = {
            "instance": f"{hub}-node-{source}",
            "job": chance.choice(JOBS),
            "model": chance.choice(MODELS),
            "zone": chance.choice(ZONES),
            **({"hub": hub} if hub_label else {}),
        }
        times = _times(chance, minutes, churn=churn)
        level, total, native = chance.uniform(-50, 1000), 0.0, [0.0, 0.0, 0.0]
        gauge: list[tuple[int, float]] = []
        counter: list[tuple[int, float]] = []
        natives: list[tuple[int, Histogram]] = []
        buckets: dict[str, list[tuple[int, float]]] = {bound: [] for bound in BOUNDS}
        filled = [0.0] * len(BOUNDS)
        for time_ms in times:
            level += chance.gauss(0, 10)
            total += chance.expovariate(0.2)
            if churn and chance.random() < 0.01:
                total = 0.0
            gauge.append((time_ms, level))
            counter.append((time_ms, total))
            native = [each + chance.randrange(5) for each in native]
            spans, sums = (Span(0, 3),), native[0] + 2 * native[1] + 4 * native[2]
            natives.append((time_ms, Histogram(sum(native), sums, 0, 0.0, 0.0, spans, tuple(native))))
            grown = [chance.randrange(4) for _ in BOUNDS]
            filled = [old + sum(grown[: place + 1]) for place, old in enumerate(filled)]
            for bound, count in zip(BOUNDS, filled, strict=True):
                buckets[bound].append((time_ms, count))
        if churn and gauge and chance.random() < 0.2:
            gauge.append((gauge[-1][0] + SCRAPE_MS, STALE))
        series[labels({"__name__": "m", **base})] = gauge
        series[labels({"__name__": "c_total", **base})] = counter
        series[labels({"__name__": "h", **base})] = natives
        for bound in BOUNDS:
            series[labels({"__name__": "b_bucket", "le": bound, **base})] = buckets[bound]
    return series


def _times(chance: random.Random, minutes: int, *, churn: bool) -> list[int]:
    offset = chance.randrange(SCRAPE_MS)
    times = [offset + SCRAPE_MS * number for number in range(minutes * 4)]
    if not churn:
        return times
    begin = chance.randrange(len(times) // 2) if chance.random() < 0.2 else 0
    end = len(times) - (chance.randrange(len(times) // 2) if chance.random() < 0.2 else 0)
    return [time_ms for time_ms in times[begin:end] if chance.random() > 0.03]


Shown = dict[tuple[Labels, int], float | Histogram]


def shown(result: QueryResult) -> Shown:
    """The values of an answer by labels and time."""
    value = result.value
    if isinstance(value, ScalarResult):
        return {((), value.time_ms): value.value}
    if isinstance(value, VectorResult):
        cells = value.histograms
        return {
            (value.series.labels_of(row), value.time_ms): number if cells is None or cells[row] is None else cells[row]
            for row, number in enumerate(value.values.tolist())
        }
    if not isinstance(value, MatrixResult):
        raise TypeError(f"nothing to compare: {type(value).__name__}")
    found: Shown = {}
    for row, step in zip(*np.nonzero(value.present), strict=True):
        cell = None if value.histograms is None else value.histograms[row, step]
        key = (value.series.labels_of(int(row)), int(value.times[step]))
        found[key] = float(value.values[row, step]) if cell is None else cell
    return found


def difference(left: Shown, right: Shown) -> str:
    """What differs by more than rounding; empty if nothing does."""
    if left.keys() != right.keys():
        return f"only one has {sorted(left.keys() ^ right.keys())[:3]}"
    for key, value in left.items():
        other = right[key]
        if isinstance(value, Histogram) or isinstance(other, Histogram):
            if not (isinstance(value, Histogram) and isinstance(other, Histogram) and _alike(value, other)):
                return f"{key}: {value} and {other}"
        elif not _near(value, other):
            return f"{key}: {value!r} and {other!r}"
    return ""


def _near(left: float, right: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right or math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _alike(left: Histogram, right: Histogram) -> bool:
    numbers = [(left.count, right.count), (left.sum, right.sum), (left.zero_count, right.zero_count)]
    numbers += zip(left.positive_counts, right.positive_counts, strict=False)
    hints = {left.reset_hint, right.reset_hint} <= {ResetHint.UNKNOWN, ResetHint.GAUGE}
    return (
        left.positive_spans == right.positive_spans
        and all(_near(one, other) for one, other in numbers)
        and (hints or left.reset_hint == right.reset_hint)
    )
