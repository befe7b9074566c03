"""What does a part say to another country? Aggregates of large groups; what is too small is counted and left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.asking.partials import PlacesStore, Rows
from harch.sentinel.federated.asking.plans import place_selector
from harch.sentinel.federated.messages import MetricPart, Told
from harch.sentinel.federated.owning.memory import Memory
from harch.sentinel.federated.owning.metric_groups import (
    Candidates,
    Reading,
    family_of,
    is_closed,
    page_ms,
    pages_of,
    permitted,
    regular_places,
)
from harch.sentinel.federated.owning.metric_shape import AskedAbroad, asked_abroad
from harch.sentinel.federated.owning.policy import TelemetryPolicy
from harch.sentinel.federated.owning.telling import refused, series_told
from harch.sentinel.model.histograms import STALE, Histogram
from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import Ints, Queryable, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.options import QueryOptions
from harch.sentinel.promql.evaluate.results import MatrixResult
from harch.sentinel.promql.evaluate.values import is_filled
from harch.sentinel.promql.syntax.binding import QueryTimes

LOOKBACK_MS_MAX = 3_600_000
LOOKS_MAX = 200_000  # at pages of the memory, for one part: some seconds of CPU


class _Watched:
    """A store that remembers what was read, so that what is judged is what is summed up."""

    def __init__(self, store: Queryable) -> None:
        self._store = store
        self.read: Selection | None = None

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        self.read = self._store.select(matchers, start, end, limit=limit)
        return self.read

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        return self._store.series(matchers, start, end)

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


@dataclass(frozen=True, slots=True)
class MetricDesk:
    """What answering takes besides the part itself."""

    tenant: str
    store: Queryable
    policy: TelemetryPolicy
    memory: Memory
    engine: Engine
    options: QueryOptions
    now_s: float


def metrics_abroad(part: MetricPart, desk: MetricDesk) -> Told:
    """The part's groups that may be told. Says nothing of the engine's errors and warnings: they may show labels."""
    policy = desk.policy
    asked = asked_abroad(part.expression, policy)
    if isinstance(asked, Rejection):
        return Told(refused=asked)
    problem = _grid_problem(part, policy)
    if problem:
        fix = f"start, step and range in multiples of {policy.quantum_s} s, at most {policy.steps_abroad_max} steps"
        return refused(part.expression, "time", problem, fix)
    watched = _Watched(desk.store)
    grid = Grid.between(part.start_ms, part.end_ms, part.step_ms or 1)
    times = QueryTimes(grid.start_ms, grid.end_ms, part.step_ms or 1)
    options = QueryOptions(part.lookback_ms, desk.options.timeout_s, desk.options.is_cancelled)
    try:
        value = desk.engine.of_tree(part.expression, asked.inner, times, watched, options).value
    except HarchError as error:
        return refused(part.expression, error.code, "the query cannot be answered here", "ask for less")
    if not isinstance(value, MatrixResult) or watched.read is None:
        return refused(part.expression, "type", "a part is a vector", "ask for an aggregate")
    return _judged(part, asked, value, watched.read, desk)


def _grid_problem(part: MetricPart, policy: TelemetryPolicy) -> str:
    quantum_ms = policy.quantum_s * 1000
    if part.start_ms % quantum_ms or part.step_ms % quantum_ms or part.end_ms < part.start_ms:
        return "a finer grid could single out a sample"
    if part.step_ms == 0 and part.end_ms != part.start_ms:
        return "without a step there is one time"
    if not quantum_ms <= part.lookback_ms <= LOOKBACK_MS_MAX:
        return f"a look-back of {part.lookback_ms} ms"
    steps = (part.end_ms - part.start_ms) // part.step_ms + 1 if part.step_ms else 1
    return f"{steps} steps, {policy.steps_abroad_max} allowed" if steps > policy.steps_abroad_max else ""


def _judged(part: MetricPart, asked: AskedAbroad, value: MatrixResult, read: Selection, desk: MetricDesk) -> Told:
    policy = desk.policy
    series = [_with_name(value.series.labels_of(row), asked.metric) for row in range(value.series.count)]
    groups, numbers = _groups(series, asked)
    if not groups:
        return Told()
    if _is_mixed(value):
        detail = "some of these series are histograms, and an aggregate would be of the others alone"
        return refused(part.expression, "type", detail, "ask for a metric of one kind")
    if len(groups) > policy.groups_abroad_max:
        detail = f"{len(groups)} groups, {policy.groups_abroad_max} allowed"
        return refused(part.expression, "size", detail, "group by fewer labels")
    pages = len(pages_of(part.start_ms, asked.window_ms, policy))
    if len(groups) * pages * len(value.times) > LOOKS_MAX:
        detail = f"{len(groups)} groups at {len(value.times)} steps over {asked.window_ms // 1000} s each"
        return refused(part.expression, "size", detail, "ask for fewer groups, a wider step or a shorter range")
    reading = Reading(value.times, asked.window_ms, asked.offset_ms)
    places = {_with_name(read.series.labels_of(row), asked.metric): row for row in range(read.series.count)}
    regular = regular_places(read, [places[one] for one in series], reading, policy.quantum_s * 1000)
    found = Candidates(series, value.present, regular, numbers, len(groups))
    ledger = f"metric/{desk.tenant}/{family_of(asked.metric)}/{page_ms(policy)}"
    allowed = permitted(ledger, found, reading, policy, desk.memory, now_s=desk.now_s)
    if allowed is None:
        return refused(part.expression, "memory", "no more can be remembered of what was told", "ask again later")
    told = _told(part, asked, value, numbers, np.vstack([allowed, np.zeros_like(allowed[:1])]), desk)
    closed = is_closed(reading, policy, desk.now_s)
    there = np.zeros_like(allowed)
    for row, group in enumerate(numbers.tolist()):
        if group >= 0:
            there[group] |= value.present[row] & closed
    warnings = () if closed.all() else ("nothing is told yet of times this young",)
    return structs.replace(told, suppressed=int((there & ~allowed).any(axis=1).sum()), warnings=warnings)


def _is_mixed(value: MatrixResult) -> bool:
    """Whether floats and histograms stand side by side. Some aggregations pass over one kind without a word."""
    if value.histograms is None:
        return False
    filled = is_filled(value.histograms)
    return bool((value.present & filled).any() and (value.present & ~filled).any())


def _with_name(labels: Labels, metric: str) -> Labels:
    return tuple(sorted({**dict(labels), METRIC_NAME: metric}.items()))


def _groups(series: Sequence[Labels], asked: AskedAbroad) -> tuple[dict[Labels, int], Ints]:
    """The groups of the chosen series; -1 for all others."""
    groups: dict[Labels, int] = {}
    numbers = np.full(len(series), -1, np.int64)
    for row, one in enumerate(series):
        values = dict(one)
        if all(matcher.matches(values.get(matcher.name, "")) for matcher in asked.matchers):
            key = tuple((name, values[name]) for name in asked.aggregate.grouping if values.get(name))
            numbers[row] = groups.setdefault(key, len(groups))
    return groups, numbers


def _told(
    part: MetricPart, asked: AskedAbroad, value: MatrixResult, numbers: Ints, allowed: np.ndarray, desk: MetricDesk
) -> Told:
    """The aggregation over what may be told; the last row of `allowed` is for series that were not chosen."""
    mask = value.present & allowed[numbers]
    values = np.where(mask, value.values, STALE)
    cells: dict[tuple[int, int], Histogram] = {}
    if value.histograms is not None:
        for row, step in zip(*np.nonzero(mask), strict=True):
            if value.histograms[row, step] is not None:
                cells[int(row), int(step)] = value.histograms[row, step]
    labels = tuple(value.series.labels_of(row) for row in range(value.series.count))
    grid = Grid.between(part.start_ms, part.end_ms, part.step_ms or 1)
    store = PlacesStore([(grid, Rows(labels, values, cells))])
    tree = replace(asked.aggregate, expr=place_selector(0))
    times = QueryTimes(grid.start_ms, grid.end_ms, part.step_ms or 1)
    result = desk.engine.of_tree(part.expression, tree, times, store, QueryOptions(part.lookback_ms)).value
    return Told(series=series_told(result)) if isinstance(result, MatrixResult) else Told()
