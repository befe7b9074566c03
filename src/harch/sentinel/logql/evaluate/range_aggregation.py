"""What do functions over ranges of lines give?

Counts from times alone, or values unwrapped from lines, for the series that each line counts for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.context import LogQueryContext
from harch.sentinel.logql.evaluate.lines import PlannedScan, planned
from harch.sentinel.logql.stages.page import ERROR, ERROR_DETAILS, LabelsRead, LinePage, pages
from harch.sentinel.logql.stages.pipeline import amount_of, filter_labels
from harch.sentinel.logql.stages.requirements import labels_read
from harch.sentinel.logql.syntax.nodes import Grouping, RangeAggregation, Unit, Unwrap
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LineOrder
from harch.sentinel.model.selection import Ints, Samples, SeriesTable
from harch.sentinel.promql.evaluate.context import EvaluationContext, QueryBudget
from harch.sentinel.promql.evaluate.functions.calls import absent
from harch.sentinel.promql.evaluate.label_columns import labels_text
from harch.sentinel.promql.evaluate.ranges.range_functions import range_function
from harch.sentinel.promql.evaluate.selection.range_vectors import RangeVector
from harch.sentinel.promql.evaluate.values import Floats, Scalar, StepGrid, Vector
from harch.sentinel.promql.syntax.nodes import FunctionCall, NumberLiteral, RangeMode, VectorSelector

# How many lines, and how many bytes, lie in each window? Sums of differences over steps, chunk by chunk.
#
# A line at time t is in the windows `(end - range, end]` of a run of steps. Adding it where the run begins and taking
# it
# away behind its end, then summing along the steps, counts all windows at once; whole numbers, so nothing is rounded.


MS = 1_000_000


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """The ends of all windows, in nanoseconds: `first_ns`, then one every `step_ns`."""

    first_ns: int
    step_ns: int
    count: int
    range_ns: int

    @staticmethod
    def of(grid: StepGrid, range_ns: int, offset_ns: int) -> WindowSteps:
        return WindowSteps(grid.start_ms * MS - offset_ns, grid.step_ms * MS, grid.count, range_ns)

    @property
    def last_ns(self) -> int:
        return self.first_ns + (self.count - 1) * self.step_ns

    @property
    def start_ns(self) -> int:
        """The first time that is in any window."""
        return self.first_ns - self.range_ns + 1

    @property
    def end_ns(self) -> int:
        """Behind the last time that is in any window."""
        return self.last_ns + 1

    @property
    def ends_ns(self) -> Ints:
        return self.first_ns + np.arange(self.count, dtype=np.int64) * self.step_ns

    def runs(self, times_ns: Ints) -> tuple[Ints, Ints]:
        """The first window of each time, and the first one behind its last."""
        if self.count == 1 or not self.step_ns:
            inside = (times_ns > self.first_ns - self.range_ns) & (times_ns <= self.first_ns)
            return np.zeros(len(times_ns), np.int64), inside.astype(np.int64)
        ahead = times_ns - self.first_ns
        begin = np.maximum(-(-ahead // self.step_ns), 0)
        behind = np.minimum(-(-(ahead + self.range_ns) // self.step_ns), self.count)
        return begin, np.maximum(behind, begin)


@dataclass(slots=True)
class LineCounters:
    """Counts and sizes of lines, by series and step."""

    steps: WindowSteps
    budget: QueryBudget
    with_bytes: bool
    _lines: Ints = field(init=False)
    _bytes: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._lines = np.zeros((0, self.steps.count + 1), np.int64)
        self._bytes = self._lines

    def add(self, series: Ints, times_ns: Ints, text_bytes: Ints, series_count: int) -> None:
        self._grow(series_count)
        begin, behind = self.steps.runs(times_ns)
        inside = begin < behind
        series, begin, behind = series[inside], begin[inside], behind[inside]
        np.add.at(self._lines, (series, begin), 1)
        np.subtract.at(self._lines, (series, behind), 1)
        if self.with_bytes:
            np.add.at(self._bytes, (series, begin), text_bytes[inside])
            np.subtract.at(self._bytes, (series, behind), text_bytes[inside])

    def _grow(self, series_count: int) -> None:
        if series_count <= len(self._lines):
            return
        room = max(series_count, 2 * len(self._lines))
        self.budget.reserve_points(room * (2 if self.with_bytes else 1), self.steps.count + 1)
        self._lines = _wider(self._lines, room)
        if self.with_bytes:
            self._bytes = _wider(self._bytes, room)

    def lines(self, series_count: int) -> Ints:
        """[series, step]"""
        return self._summed(self._lines, series_count)

    def sizes(self, series_count: int) -> Ints:
        return self._summed(self._bytes, series_count)

    def _summed(self, matrix: Ints, series_count: int) -> Ints:
        self._grow(series_count)
        summed: Ints = np.cumsum(matrix[:series_count], axis=1)[:, : self.steps.count]
        return summed


def _wider(matrix: Ints, rows: int) -> Ints:
    wider = np.zeros((rows, matrix.shape[1]), np.int64)
    wider[: len(matrix)] = matrix
    return wider


def per_second(values: Floats, range_ns: int) -> Floats:
    result: Floats = values / (range_ns / 1e9)
    return result


# Which series does each line count for? Labels of lines become numbers of series, made once for equal labels.


@dataclass(slots=True)
class SeriesFound:
    """The series of one aggregation. `grouping` says which labels they keep; None: all but `left_out`."""

    series_max: int
    grouping: Grouping | None = None
    left_out: frozenset[str] = frozenset()
    known: dict[Labels, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.known)

    def table(self) -> SeriesTable:
        return SeriesTable.of(list(self.known))

    def by_labels(self) -> Ints:
        """The series in the order of their labels: stores hand out lines in any order, and answers do not show it."""
        return np.array([self.known[labels] for labels in sorted(self.known)], np.int64)

    def of_lines(self, page: LinePage) -> Ints:
        """The series of every line. Raises E0686 for lines that went wrong on the way."""
        if page.has_errors():
            self._refuse(page)
        layered = [name for name in dict.fromkeys((*page.metadata, *page.parsed)) if self._keeps(name)]
        if not layered:
            by_stream = np.array([self._code(dict(labels)) for labels in page.streams], np.int64)
            return by_stream[page.stream_at]
        columns = [page.values(name) for name in layered]
        rows = zip(page.codes, *columns, strict=True)
        seen: dict[tuple[object, ...], int] = {}
        codes = np.empty(len(page), np.int64)
        for place, row in enumerate(rows):
            code = seen.get(row)
            if code is None:
                labels = dict(page.streams[page.codes[place]])
                labels.update({name: values[place] for name, values in zip(layered, columns, strict=True)})
                code = seen[row] = self._code(labels)
            codes[place] = code
        return codes

    def _keeps(self, name: str) -> bool:
        if self.grouping is None:
            return name not in self.left_out
        return (name in self.grouping.labels) is not self.grouping.without and name not in self.left_out

    def _code(self, labels: dict[str, str]) -> int:
        key = tuple(sorted((name, value) for name, value in labels.items() if value and self._keeps(name)))
        code = self.known.setdefault(key, len(self.known))
        if len(self.known) > self.series_max:
            raise HarchError(
                "E0687",
                f"the query produces more than {self.series_max} series of its lines",
                hint="group by fewer labels: sum by (…) (…), or extract fewer",
            )
        return code

    def _refuse(self, page: LinePage) -> None:
        errors = page.values(ERROR)
        place = next(place for place, error in enumerate(errors) if error)
        labels = {name: value for name, value in page.labels_at(place).items() if name != ERROR_DETAILS}
        details = page.value(ERROR_DETAILS, place)
        raise HarchError(
            "E0686",
            f"pipeline error: '{errors[place]}' for series: '{labels_text(labels)}': {details}",
            hint='exclude such lines with `| __error__=""`, or inspect them with a query for lines',
        )


# Which number does a line carry? The value of one label, read as a number, a duration or a size.


EXTRACTION_ERROR = "SampleExtractionErr"
_UNITS = {"": Unit.NUMBER, "duration": Unit.DURATION, "bytes": Unit.BYTES}
_VALUE = "__value__"  # the numbers on their way through filters, as texts of their places


def unwrapped(page: LinePage, unwrap: Unwrap) -> Floats:
    """The numbers of the lines that are left: lines without the label are dropped, unreadable ones have an error."""
    unit = _UNITS[unwrap.conversion]
    strings = page.values(unwrap.label)
    page.keep_where([bool(text) for text in strings])
    strings = [text for text in strings if text]
    known: dict[str, float | None] = {}
    for text in strings:
        if text not in known:
            amount = amount_of(text, unit)
            known[text] = amount / 1e9 if amount is not None and unit is Unit.DURATION else amount
    for place, text in enumerate(strings):
        if known[text] is None:
            page.fail(place, EXTRACTION_ERROR, f"label {unwrap.label}: `{text[:80]}` is not a valid {unit.value}")
    if unwrap.filters:
        page.parsed[_VALUE] = list(strings)
        for stage in unwrap.filters:
            filter_labels(page, stage)
        strings = [text or "" for text in page.parsed.pop(_VALUE)]
    return np.array([known[text] or 0.0 for text in strings], np.float64)


@dataclass(slots=True)
class SamplesFound:
    """Numbers of lines with their times and series, as they come."""

    series: list[Ints] = field(default_factory=list)
    times_ns: list[Ints] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)

    def add(self, series: Ints, times_ns: Ints, values: Floats) -> None:
        self.series.append(series)
        self.times_ns.append(times_ns)
        self.values.append(values)

    def samples(self, series_count: int, unit_ns: int) -> Samples:
        """Sorted by series and time; lines of the same time stay in the order they came in."""
        series = np.concatenate([np.zeros(0, np.int64), *self.series])
        times = np.concatenate([np.zeros(0, np.int64), *self.times_ns])
        values = np.concatenate([np.zeros(0), *self.values])
        order = np.lexsort((times, series))
        count = np.bincount(series, minlength=series_count).astype(np.int64)
        return Samples(np.cumsum(count) - count, count, times[order] // unit_ns, values[order])


# What do functions over ranges of lines give? Counts from times alone, or values that were unwrapped from lines.


# What may be summed up over groups while it is counted: sum by (x) (…) needs no more than the label x.
ADDITIVE = frozenset({"count_over_time", "rate", "bytes_over_time", "bytes_rate", "sum_over_time"})
_IN_ORDER = frozenset({"first_over_time", "last_over_time"})
_SIZES = frozenset({"bytes_over_time", "bytes_rate"})
_NOTHING = Grouping(())


def range_result(
    node: RangeAggregation,
    grid: StepGrid,
    work: LogQueryContext,
    context: EvaluationContext,
    summed_by: Grouping | None = None,
) -> Vector:
    """The vector of a range aggregation. `summed_by`: how a sum around it groups, so that its series may be those."""
    steps = WindowSteps.of(grid, node.range_ns, node.offset_ns)
    if node.function == "absent_over_time":
        return _absent(node, steps, work)
    grouping = node.grouping or (summed_by if node.function in ADDITIVE else None)
    is_named = grouping is not None and not grouping.without
    left_out = frozenset() if node.unwrap is None or is_named else frozenset({node.unwrap.label})
    series = SeriesFound(work.limits.series_max, grouping, left_out)
    if node.unwrap is None:
        found = _counted(node, steps, series, work)
    else:
        found = _folded(node, grid, steps, series, work, context)
    return found.take(series.by_labels())


def _plan(node: RangeAggregation, grouping: Grouping | None, steps: WindowSteps, work: LogQueryContext) -> PlannedScan:
    pipeline = (*node.query.stages, *(() if node.unwrap is None else node.unwrap.filters))
    wanted: LabelsRead | None = None
    if grouping is not None and not grouping.without:
        unwrap = () if node.unwrap is None else (node.unwrap.label,)
        wanted = labels_read(pipeline, (*grouping.labels, *unwrap))
    order = LineOrder.OLDEST_FIRST if node.function in _IN_ORDER else LineOrder.ANY
    return planned(
        node.query,
        steps.start_ns,
        steps.end_ns,
        order,
        work,
        wanted=wanted,
        answer_bodies=False,
        answer_labels=node.unwrap is not None or _needs_metadata(node, grouping, steps, work),
    )


def _needs_metadata(
    node: RangeAggregation, grouping: Grouping | None, steps: WindowSteps, work: LogQueryContext
) -> bool:
    """Labels of streams come first, so where every stream has those asked for, metadata changes nothing."""
    if grouping is None or grouping.without:
        return True
    if not grouping.labels:
        return False
    streams = work.readable.streams(node.query.matchers, steps.start_ns, steps.end_ns)
    return any(not {name for name, _ in labels}.issuperset(grouping.labels) for labels in streams)


def _pages(plan: PlannedScan, work: LogQueryContext) -> Iterator[LinePage]:
    """What comes out of the pipeline. Lines without labels of their own, and without stages, stay together."""
    for chunk in work.chunks(plan.request):
        for page in pages(chunk, plan.pipeline.wanted, whole=not plan.pipeline.stages and not len(chunk.metadata)):
            work.budget.check()
            plan.pipeline.run(page)
            yield page


def _counted(node: RangeAggregation, steps: WindowSteps, series: SeriesFound, work: LogQueryContext) -> Vector:
    plan = _plan(node, series.grouping, steps, work)
    counters = LineCounters(steps, work.budget, node.function in _SIZES)
    for page in _pages(plan, work):
        counters.add(series.of_lines(page), page.times_ns, _sizes(page), series.count)
    lines = counters.lines(series.count)
    values = (counters.sizes(series.count) if node.function in _SIZES else lines).astype(np.float64)
    if node.function in ("rate", "bytes_rate"):
        values = per_second(values, node.range_ns)
    return Vector(series.table(), values, lines > 0, np.zeros(series.count, np.bool_))


def _sizes(page: LinePage) -> Ints:
    if not page.bodies_changed:
        return page.text_bytes
    return np.array([len(text.encode("utf-8", "replace")) for text in page.bodies], np.int64)


def _absent(node: RangeAggregation, steps: WindowSteps, work: LogQueryContext) -> Vector:
    """1 where no line is; the labels are those that the selector asks for by `=`."""
    plan = _plan(node, _NOTHING, steps, work)
    counters = LineCounters(steps, work.budget, with_bytes=False)
    for page in _pages(plan, work):
        if node.unwrap is not None:
            unwrapped(page, node.unwrap)
        counters.add(np.zeros(len(page), np.int64), page.times_ns, page.text_bytes, 1)
    lines = counters.lines(1)
    found = SeriesFound(1, _NOTHING)
    found.known[()] = 0
    present = Vector(found.table(), lines.astype(np.float64), lines > 0, np.zeros(1, np.bool_))
    return absent(present, VectorSelector("", node.query.matchers))


def _folded(
    node: RangeAggregation,
    grid: StepGrid,
    steps: WindowSteps,
    series: SeriesFound,
    work: LogQueryContext,
    context: EvaluationContext,
) -> Vector:
    plan = _plan(node, series.grouping, steps, work)
    found = SamplesFound()
    for page in _pages(plan, work):
        if node.unwrap is not None and len(page):
            values = unwrapped(page, node.unwrap)
            work.budget.count_samples(len(values))
            found.add(series.of_lines(page), page.times_ns, values)
    # PromQL's kernels compare times and do not ask for their unit; only rates of counters are per second of it.
    is_counter = node.function == "rate_counter"
    samples = found.samples(series.count, MS if is_counter else 1)
    vector = _through_kernels(node, steps, series, samples, grid, context)
    if node.function == "rate":
        return Vector(vector.series, per_second(vector.values, node.range_ns), vector.present, vector.drops_name)
    return vector


def _through_kernels(
    node: RangeAggregation,
    steps: WindowSteps,
    series: SeriesFound,
    samples: Samples,
    grid: StepGrid,
    context: EvaluationContext,
) -> Vector:
    function = {"rate": "sum_over_time", "rate_counter": "rate"}.get(node.function, node.function)
    unit = MS if node.function == "rate_counter" else 1
    ranges = RangeVector(
        series.table(),
        samples,
        np.zeros(series.count, np.bool_),
        steps.ends_ns // unit,
        node.range_ns // unit,
        RangeMode.PLAIN,
        node.span,
    )
    parameters: list[Scalar] = []
    arguments: tuple[NumberLiteral, ...] = ()
    if node.parameter is not None:
        parameters.append(np.full(grid.count, node.parameter))
        arguments = (NumberLiteral(node.parameter, span=node.span),)
    return range_function(FunctionCall(function, arguments, span=node.span), ranges, parameters, grid, context)
