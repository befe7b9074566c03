"""What does a part say to another country? Aggregates of large groups; what is too small is counted and left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.disclosure.encode import encode_series, refused
from harch.sentinel.federated.disclosure.groups import (
    Candidates,
    LookbackWindow,
    family_of,
    is_closed,
    page_ms,
    pages_of,
    permitted,
    regular_places,
)
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.disclosure.metric_shape import CrossBorderQuery, parse_cross_border
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.federated.messages import MetricPart, PartResult
from harch.sentinel.federated.query.merge import PlacesStore, SeriesRows
from harch.sentinel.federated.query.plans import place_selector
from harch.sentinel.model.histograms import STALE, NativeHistogram
from harch.sentinel.model.labels import METRIC_NAME, Labels, Matcher
from harch.sentinel.model.selection import Ints, Queryable, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.promql.evaluate.context import QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import MatrixResult, StepGrid, is_filled
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
class MetricDisclosure:
    """What answering takes besides the part itself."""

    tenant: str
    store: Queryable
    policy: TelemetryPolicy
    memory: Memory
    engine: QueryEngine
    options: QueryOptions
    now_s: float


def cross_border_metrics(part: MetricPart, disclosure: MetricDisclosure) -> PartResult:
    """The part's groups that may be disclosed. Says nothing of the engine's errors and warnings: they may show
    labels."""
    policy = disclosure.policy
    query = parse_cross_border(part.expression, policy)
    if isinstance(query, Rejection):
        return PartResult(refused=query)
    problem = _grid_problem(part, policy)
    if problem:
        fix = (
            f"start, step and range in multiples of {policy.quantum_s} s, at most {policy.cross_border_steps_max} steps"
        )
        return refused(part.expression, "time", problem, fix)
    watched = _Watched(disclosure.store)
    grid = StepGrid.between(part.start_ms, part.end_ms, part.step_ms or 1)
    times = QueryTimes(grid.start_ms, grid.end_ms, part.step_ms or 1)
    options = QueryOptions(part.lookback_ms, disclosure.options.timeout_s, disclosure.options.is_cancelled)
    try:
        value = disclosure.engine.of_tree(part.expression, query.inner, times, watched, options).value
    except HarchError as error:
        return refused(part.expression, error.code, "the query cannot be answered here", "reduce the query")
    if not isinstance(value, MatrixResult) or watched.read is None:
        return refused(part.expression, "type", "a part must be a vector", "query an aggregate")
    return _judged(part, query, value, watched.read, disclosure)


def _grid_problem(part: MetricPart, policy: TelemetryPolicy) -> str:
    quantum_ms = policy.quantum_s * 1000
    if part.start_ms % quantum_ms or part.step_ms % quantum_ms or part.end_ms < part.start_ms:
        return "a finer grid could isolate a sample"
    if part.step_ms == 0 and part.end_ms != part.start_ms:
        return "without a step there must be a single time"
    if not quantum_ms <= part.lookback_ms <= LOOKBACK_MS_MAX:
        return f"a look-back of {part.lookback_ms} ms"
    steps = (part.end_ms - part.start_ms) // part.step_ms + 1 if part.step_ms else 1
    return f"{steps} steps, {policy.cross_border_steps_max} allowed" if steps > policy.cross_border_steps_max else ""


def _judged(
    part: MetricPart, query: CrossBorderQuery, value: MatrixResult, read: Selection, disclosure: MetricDisclosure
) -> PartResult:
    policy = disclosure.policy
    series = [_with_name(value.series.labels_of(row), query.metric) for row in range(value.series.count)]
    groups, numbers = _groups(series, query)
    if not groups:
        return PartResult()
    if _is_mixed(value):
        detail = "some of these series are histograms, which the aggregate would exclude"
        return refused(part.expression, "type", detail, "query a metric of one kind")
    if len(groups) > policy.cross_border_groups_max:
        detail = f"{len(groups)} groups, {policy.cross_border_groups_max} allowed"
        return refused(part.expression, "size", detail, "group by fewer labels")
    pages = len(pages_of(part.start_ms, query.window_ms, policy))
    if len(groups) * pages * len(value.times) > LOOKS_MAX:
        detail = f"{len(groups)} groups at {len(value.times)} steps over {query.window_ms // 1000} s each"
        return refused(part.expression, "size", detail, "use fewer groups, a wider step or a shorter range")
    reading = LookbackWindow(value.times, query.window_ms, query.offset_ms)
    places = {_with_name(read.series.labels_of(row), query.metric): row for row in range(read.series.count)}
    regular = regular_places(read, [places[one] for one in series], reading, policy.quantum_s * 1000)
    found = Candidates(series, value.present, regular, numbers, len(groups))
    ledger = f"metric/{disclosure.tenant}/{family_of(query.metric)}/{page_ms(policy)}"
    allowed = permitted(ledger, found, reading, policy, disclosure.memory, now_s=disclosure.now_s)
    if allowed is None:
        return refused(part.expression, "memory", "the disclosure record is full", "try again later")
    disclosed = _disclose(part, query, value, numbers, np.vstack([allowed, np.zeros_like(allowed[:1])]), disclosure)
    closed = is_closed(reading, policy, disclosure.now_s)
    there = np.zeros_like(allowed)
    for row, group in enumerate(numbers.tolist()):
        if group >= 0:
            there[group] |= value.present[row] & closed
    warnings = () if closed.all() else ("data this recent is not disclosed yet",)
    return structs.replace(disclosed, suppressed=int((there & ~allowed).any(axis=1).sum()), warnings=warnings)


def _is_mixed(value: MatrixResult) -> bool:
    """Whether floats and histograms stand side by side. Some aggregations pass over one kind without a word."""
    if value.histograms is None:
        return False
    filled = is_filled(value.histograms)
    return bool((value.present & filled).any() and (value.present & ~filled).any())


def _with_name(labels: Labels, metric: str) -> Labels:
    return tuple(sorted({**dict(labels), METRIC_NAME: metric}.items()))


def _groups(series: Sequence[Labels], query: CrossBorderQuery) -> tuple[dict[Labels, int], Ints]:
    """The groups of the chosen series; -1 for all others."""
    groups: dict[Labels, int] = {}
    numbers = np.full(len(series), -1, np.int64)
    for row, one in enumerate(series):
        values = dict(one)
        if all(matcher.matches(values.get(matcher.name, "")) for matcher in query.matchers):
            key = tuple((name, values[name]) for name in query.aggregate.grouping if values.get(name))
            numbers[row] = groups.setdefault(key, len(groups))
    return groups, numbers


def _disclose(
    part: MetricPart,
    query: CrossBorderQuery,
    value: MatrixResult,
    numbers: Ints,
    allowed: np.ndarray,
    disclosure: MetricDisclosure,
) -> PartResult:
    """The aggregation over what may be disclosed; the last row of `allowed` is for series that were not chosen."""
    mask = value.present & allowed[numbers]
    values = np.where(mask, value.values, STALE)
    cells: dict[tuple[int, int], NativeHistogram] = {}
    if value.histograms is not None:
        for row, step in zip(*np.nonzero(mask), strict=True):
            if value.histograms[row, step] is not None:
                cells[int(row), int(step)] = value.histograms[row, step]
    labels = tuple(value.series.labels_of(row) for row in range(value.series.count))
    grid = StepGrid.between(part.start_ms, part.end_ms, part.step_ms or 1)
    store = PlacesStore([(grid, SeriesRows(labels, values, cells))])
    tree = replace(query.aggregate, expr=place_selector(0))
    times = QueryTimes(grid.start_ms, grid.end_ms, part.step_ms or 1)
    result = disclosure.engine.of_tree(part.expression, tree, times, store, QueryOptions(part.lookback_ms)).value
    return PartResult(series=encode_series(result)) if isinstance(result, MatrixResult) else PartResult()
