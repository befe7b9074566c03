"""What do functions over ranges of lines give? Counts from times alone, or values that were unwrapped from lines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harch.sentinel.logql.evaluate.counting import MS, Counters, Steps, per_second
from harch.sentinel.logql.evaluate.requests import Planned, planned
from harch.sentinel.logql.evaluate.series import SeriesFound
from harch.sentinel.logql.evaluate.unwrapping import SamplesFound, unwrapped
from harch.sentinel.logql.evaluate.work import Work
from harch.sentinel.logql.stages.page import Page, pages
from harch.sentinel.logql.stages.reading import labels_read
from harch.sentinel.logql.stages.wanting import LabelsRead
from harch.sentinel.logql.syntax.nodes import Grouping, RangeAggregation
from harch.sentinel.model.logs import Order
from harch.sentinel.model.selection import Ints, Samples
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.evaluate.functions.absence import absent
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.evaluate.ranges.range_functions import range_function
from harch.sentinel.promql.evaluate.selection.range_vectors import RangeVector
from harch.sentinel.promql.evaluate.values import Scalar, Vector
from harch.sentinel.promql.syntax.nodes import Call, NumberLiteral, RangeMode, VectorSelector

# What may be summed up over groups while it is counted: sum by (x) (…) needs no more than the label x.
ADDITIVE = frozenset({"count_over_time", "rate", "bytes_over_time", "bytes_rate", "sum_over_time"})
_IN_ORDER = frozenset({"first_over_time", "last_over_time"})
_SIZES = frozenset({"bytes_over_time", "bytes_rate"})
_NOTHING = Grouping(())


def range_result(
    node: RangeAggregation, grid: Grid, work: Work, context: Context, summed_by: Grouping | None = None
) -> Vector:
    """The vector of a range aggregation. `summed_by`: how a sum around it groups, so that its series may be those."""
    steps = Steps.of(grid, node.range_ns, node.offset_ns)
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


def _plan(node: RangeAggregation, grouping: Grouping | None, steps: Steps, work: Work) -> Planned:
    pipeline = (*node.query.stages, *(() if node.unwrap is None else node.unwrap.filters))
    wanted: LabelsRead | None = None
    if grouping is not None and not grouping.without:
        unwrap = () if node.unwrap is None else (node.unwrap.label,)
        wanted = labels_read(pipeline, (*grouping.labels, *unwrap))
    order = Order.OLDEST_FIRST if node.function in _IN_ORDER else Order.ANY
    return planned(
        node.query,
        steps.start_ns,
        steps.end_ns,
        order,
        work,
        wanted=wanted,
        answer_texts=False,
        answer_labels=node.unwrap is not None or _needs_metadata(node, grouping, steps, work),
    )


def _needs_metadata(node: RangeAggregation, grouping: Grouping | None, steps: Steps, work: Work) -> bool:
    """Labels of streams come first, so where every stream has those asked for, metadata changes nothing."""
    if grouping is None or grouping.without:
        return True
    if not grouping.labels:
        return False
    streams = work.readable.streams(node.query.matchers, steps.start_ns, steps.end_ns)
    return any(not {name for name, _ in labels}.issuperset(grouping.labels) for labels in streams)


def _pages(plan: Planned, work: Work) -> Iterator[Page]:
    """What comes out of the pipeline. Lines without labels of their own, and without stages, stay together."""
    for chunk in work.chunks(plan.request):
        for page in pages(chunk, plan.pipeline.wanted, whole=not plan.pipeline.stages and not len(chunk.metadata)):
            work.budget.check()
            plan.pipeline.run(page)
            yield page


def _counted(node: RangeAggregation, steps: Steps, series: SeriesFound, work: Work) -> Vector:
    plan = _plan(node, series.grouping, steps, work)
    counters = Counters(steps, work.budget, node.function in _SIZES)
    for page in _pages(plan, work):
        counters.add(series.of_lines(page), page.times_ns, _sizes(page), series.count)
    lines = counters.lines(series.count)
    values = (counters.sizes(series.count) if node.function in _SIZES else lines).astype(np.float64)
    if node.function in ("rate", "bytes_rate"):
        values = per_second(values, node.range_ns)
    return Vector(series.table(), values, lines > 0, np.zeros(series.count, np.bool_))


def _sizes(page: Page) -> Ints:
    if not page.changed_texts:
        return page.text_bytes
    return np.array([len(text.encode("utf-8", "replace")) for text in page.texts], np.int64)


def _absent(node: RangeAggregation, steps: Steps, work: Work) -> Vector:
    """1 where no line is; the labels are those that the selector asks for by `=`."""
    plan = _plan(node, _NOTHING, steps, work)
    counters = Counters(steps, work.budget, with_bytes=False)
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
    node: RangeAggregation, grid: Grid, steps: Steps, series: SeriesFound, work: Work, context: Context
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
    node: RangeAggregation, steps: Steps, series: SeriesFound, samples: Samples, grid: Grid, context: Context
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
    return range_function(Call(function, arguments, span=node.span), ranges, parameters, grid, context)
