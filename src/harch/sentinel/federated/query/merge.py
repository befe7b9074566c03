"""How do the answers of all hubs become one?

They fill the placeholders of the plan and the engine evaluates the rest; lines, traces and groups of spans are joined
by time and key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.messages import FederatedAnswer, PartResult, SeriesResult
from harch.sentinel.federated.query.plans import (
    FederatedPlan,
    Joining,
    Placeholder,
    joint_variance,
    place_number,
    steps_of,
)
from harch.sentinel.logql.evaluate.lines import LogEntry
from harch.sentinel.model.histograms import STALE, NativeHistogram
from harch.sentinel.model.labels import Labels, Matcher
from harch.sentinel.model.selection import Floats, Samples, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.model.spans import Span, SpanGroup, TraceSummary
from harch.sentinel.promql.evaluate.context import QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import QueryResult, StepGrid
from harch.sentinel.promql.syntax.binding import QueryTimes
from harch.sentinel.traces.search import MATCHED_MAX

# How does the engine read what hubs answered? As a store: every place of the rest is a set of series.
#
# A series has a sample at every step of its grid: what was result, or a marker that there is nothing. So nothing of an
# earlier step is ever taken for a later one.


@dataclass(frozen=True, slots=True)
class SeriesRows:
    """Series on a grid: `values[i]` has STALE where nothing is; histograms stand by (row, step)."""

    series: tuple[Labels, ...]
    values: Floats
    histograms: Mapping[tuple[int, int], NativeHistogram]


class PlacesStore:
    """A Queryable with one set of series for each place."""

    def __init__(self, places: Sequence[tuple[StepGrid, SeriesRows]]) -> None:
        self._selections = [_selection(grid, rows) for grid, rows in places]

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        number = place_number(tuple(matchers))
        return _selection(StepGrid(0, 0, 0), NOTHING) if number is None else self._selections[number]

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        return self.select(matchers, start, end, limit=0).series

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


NOTHING = SeriesRows((), np.zeros((0, 0)), {})


def rows_of(received: Sequence[SeriesResult], steps: int) -> SeriesRows:
    """What was result, one row a series, as it came."""
    values = np.full((len(received), steps), STALE)
    histograms: dict[tuple[int, int], NativeHistogram] = {}
    for row, one in enumerate(received):
        values[row, list(one.at)] = one.values
        for step, cell in zip(one.at, one.histograms, strict=False):
            if cell is not None:
                histograms[row, step] = cell
                values[row, step] = cell.sum
    return SeriesRows(tuple(one.labels for one in received), values, histograms)


def distinct_rows(received: Sequence[SeriesResult], steps: int) -> tuple[SeriesRows, int]:
    """One row for every label set, and how many were left out: of two hubs with the same series, the first counts."""
    kept: list[SeriesResult] = []
    seen: set[Labels] = set()
    for one in received:
        if one.labels not in seen:
            kept.append(one)
            seen.add(one.labels)
    return rows_of(kept, steps), len(received) - len(kept)


def spread_rows(hubs: Sequence[Sequence[Sequence[SeriesResult]]], steps: int, joining: Joining) -> SeriesRows:
    """`hubs` have counts, means and variances, each a list of series. What lacks one of them has no variance."""
    groups: dict[Labels, list[Floats]] = {}
    for counts, means, variances in hubs:
        others = [{one.labels: one for one in received} for received in (means, variances)]
        for count in counts:
            cells = np.full((3, steps), np.nan)
            known = np.zeros((3, steps), np.bool_)
            for row, one in enumerate((count, *(side.get(count.labels) for side in others))):
                if one is not None:
                    cells[row, list(one.at)] = one.values
                    known[row, list(one.at)] = True
            cells[0, ~known.all(axis=0)] = 0.0
            groups.setdefault(count.labels, []).append(cells)
    values = np.full((len(groups), steps), STALE)
    for row, cells_of_hubs in enumerate(groups.values()):
        numbers, centres, spreads = np.stack(cells_of_hubs, axis=1)
        result = joint_variance(numbers, centres, spreads)
        there = numbers.sum(axis=0) > 0
        values[row, there] = np.sqrt(result[there]) if joining is Joining.DEVIATION else result[there]
    return SeriesRows(tuple(groups), values, {})


def _selection(grid: StepGrid, rows: SeriesRows) -> Selection:
    count, steps = len(rows.series), grid.count
    sizes = np.full(count, steps, np.int64)
    times = np.tile(grid.times, count)
    first = np.arange(count, dtype=np.int64) * steps
    values = np.ascontiguousarray(rows.values, np.float64).reshape(-1)
    if not rows.histograms:
        return Selection(SeriesTable.of(rows.series), Samples(first, sizes, times, values))
    histogram_at = np.full(len(values), -1, np.int32)
    for number, (row, step) in enumerate(rows.histograms):
        histogram_at[row * steps + step] = number
    cells = tuple(rows.histograms.values())
    samples = Samples(first, sizes, times, values, histogram_at=histogram_at, histograms=cells)
    return Selection(SeriesTable.of(rows.series), samples)


# What do all hubs say together? Their answers fill the places of the plan, and the engine evaluates the rest.


@dataclass(frozen=True, slots=True)
class RefusedPart:
    """One hub's "no" to one part."""

    hub_id: str
    part: int
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Merged:
    """The answer of all hubs that disclosed something. It is complete if nobody refused and nothing was suppressed."""

    result: QueryResult
    refused: tuple[RefusedPart, ...] = ()
    suppressed: int = 0  # groups, over all hubs and parts
    warnings: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        return not self.refused and not self.suppressed


def merge(
    plan: FederatedPlan,
    answers: Sequence[FederatedAnswer],
    own: FederatedAnswer | None = None,
    *,
    engine: QueryEngine | None = None,
    options: QueryOptions | None = None,
) -> Merged:
    """One answer. `own` is this hub's; where two hubs tell the same series, the earlier in (own, *answers) counts.

    A hub that refused one part is left out of all: a sum over some hubs is not divided by the count of others. Raises
    E0695 for answers that do not fit the plan, and what the engine raises.
    """
    everyone = [*((own,) if own is not None else ()), *answers]
    for answer in everyone:
        _check(plan, answer)
    warnings: list[str] = []
    filled = []
    willing = [answer for answer in everyone if all(result.refused is None for result in answer.results)]
    for place in plan.places:
        rows, repeated = _filled(place, willing)
        filled.append((place.grid, rows))
        if repeated:
            warnings.append(f"{repeated} series are returned by more than one hub; each is counted once")
    chosen = options or QueryOptions()
    settled = QueryOptions(plan.lookback_ms, chosen.timeout_s, chosen.is_cancelled)
    grid = plan.grid
    times = QueryTimes(grid.start_ms, grid.start_ms if plan.is_instant else grid.end_ms, grid.step_ms)
    result = (engine or QueryEngine()).of_tree(plan.expression, plan.rest, times, PlacesStore(filled), settled)
    refused = tuple(
        RefusedPart(answer.hub_id, number, result.refused)
        for answer in everyone
        for number, result in enumerate(answer.results)
        if result.refused is not None
    )
    disclosed = [(answer.hub_id, result) for answer in everyone for result in answer.results]
    suppressed = sum(result.suppressed for _, result in disclosed)
    warnings += [f"{hub_id}: {text}" for hub_id, result in disclosed for text in result.warnings]
    return Merged(result, refused, suppressed, tuple(dict.fromkeys(warnings)))


def _filled(place: Placeholder, answers: Sequence[FederatedAnswer]) -> tuple[SeriesRows, int]:
    """The rows of a place, and how many series came twice."""
    steps = place.grid.count
    if not place.parts:
        return NOTHING, 0
    by_hub = [[answer.results[number].series for number in place.parts] for answer in answers]
    if place.joining in (Joining.SPREAD, Joining.DEVIATION):
        return spread_rows(by_hub, steps, place.joining), 0
    together: list[SeriesResult] = [one for parts in by_hub for one in parts[0]]
    if place.joining is Joining.ROWS:
        return rows_of(together, steps), 0
    return distinct_rows(together, steps)


def _check(plan: FederatedPlan, answer: FederatedAnswer) -> None:
    if len(answer.results) != len(plan.parts):
        raise _unusable(answer, f"{len(answer.results)} parts are result, {len(plan.parts)} requested")
    for part, result in zip(plan.parts, answer.results, strict=True):
        problem = _problem(result, steps_of(part))
        if problem:
            raise _unusable(answer, problem)


def _problem(result: PartResult, steps: int) -> str:
    for one in result.series:
        if len(one.at) != len(one.values) or (one.histograms and len(one.histograms) != len(one.at)):
            return "columns of unequal length"
        if any(left >= right for left, right in zip(one.at, one.at[1:], strict=False)):
            return "places out of order"
        if one.at and not 0 <= one.at[0] <= one.at[-1] < steps:
            return "a place outside the grid"
        names = [name for name, value in one.labels if value]
        if len(names) != len(one.labels) or names != sorted(set(names)):
            return "labels out of order"
    return ""


def _unusable(answer: FederatedAnswer, reason: str) -> HarchError:
    return HarchError("E0695", f"hub {answer.hub_id}: {reason}")


# What do all hubs say together where no grid is? Lines by time, traces by their start, groups of spans added up.


ERRORS_UNKNOWN = -1  # of a group of spans: how many failed may not be disclosed

Body = TypeVar("Body")

_lines = msgspec.json.Decoder(list[LogEntry]).decode
_summaries = msgspec.json.Decoder(list[TraceSummary]).decode
_spans = msgspec.json.Decoder(list[Span]).decode
_groups = msgspec.json.Decoder(list[SpanGroup]).decode


@dataclass(frozen=True, slots=True)
class MergeNotes:
    """What came with bodies besides them."""

    refused: tuple[RefusedPart, ...]
    suppressed: int
    warnings: tuple[str, ...]


def merge_notes(answers: Sequence[FederatedAnswer]) -> MergeNotes:
    """Refusals, suppressed groups and warnings of questions with one part."""
    results = [(answer.hub_id, answer.results[0]) for answer in answers if answer.results]
    return MergeNotes(
        tuple(RefusedPart(hub_id, 0, one.refused) for hub_id, one in results if one.refused is not None),
        sum(one.suppressed for _, one in results),
        tuple(dict.fromkeys(f"{hub_id}: {text}" for hub_id, one in results for text in one.warnings)),
    )


def lines_together(answers: Sequence[FederatedAnswer], *, limit: int, newest_first: bool = True) -> list[LogEntry]:
    """The lines of all hubs in order, at most `limit`. Raises E0695."""
    lines = [line for _, lines in _bodies(answers, _lines) for line in lines]
    lines.sort(key=lambda line: line.stream)
    lines.sort(key=lambda line: line.time_ns, reverse=newest_first)
    return lines[:limit]


def traces_together(answers: Sequence[FederatedAnswer], *, limit: int) -> list[TraceSummary]:
    """Traces of all hubs, the newest first. One that has spans at several hubs is one trace. Raises E0695."""
    found: dict[str, TraceSummary] = {}
    for _, summaries in _bodies(answers, _summaries):
        for one in summaries:
            known = found.get(one.trace_id)
            found[one.trace_id] = one if known is None else _joint(known, one)
    return sorted(found.values(), key=lambda one: (-one.start_ns, one.trace_id))[:limit]


def _joint(left: TraceSummary, right: TraceSummary) -> TraceSummary:
    first = left if left.start_ns <= right.start_ns else right
    end_ns = max(left.start_ns + left.duration_ns, right.start_ns + right.duration_ns)
    return TraceSummary(
        trace_id=left.trace_id,
        root_service=first.root_service,
        root_name=first.root_name,
        start_ns=first.start_ns,
        duration_ns=end_ns - first.start_ns,
        spans=left.spans + right.spans,
        errors=left.errors + right.errors,
        matched=(*left.matched, *right.matched)[:MATCHED_MAX],
    )


def spans_together(answers: Sequence[FederatedAnswer]) -> list[Span]:
    """The spans of one trace from all hubs, each once. Raises E0695."""
    found = {span.span_id: span for _, spans in _bodies(answers, _spans) for span in reversed(spans)}
    return sorted(found.values(), key=lambda span: (span.start_ns, span.span_id))


def groups_together(answers: Sequence[FederatedAnswer]) -> list[SpanGroup]:
    """Groups of all hubs, added up. What one hub may not tell is unknown of all: errors, and durations in buckets."""
    found: dict[tuple[str, ...], SpanGroup] = {}
    for _, groups in _bodies(answers, _groups):
        for one in groups:
            known = found.get(one.key)
            found[one.key] = one if known is None else _added(known, one)
    return [found[key] for key in sorted(found)]


def _added(left: SpanGroup, right: SpanGroup) -> SpanGroup:
    unknown = ERRORS_UNKNOWN in (left.errors, right.errors)
    same = len(left.buckets) == len(right.buckets)
    return SpanGroup(
        key=left.key,
        count=left.count + right.count,
        errors=ERRORS_UNKNOWN if unknown else left.errors + right.errors,
        duration_sum_ns=left.duration_sum_ns + right.duration_sum_ns,
        buckets=tuple(one + other for one, other in zip(left.buckets, right.buckets, strict=True)) if same else (),
    )


def _bodies(answers: Sequence[FederatedAnswer], read: Callable[[bytes], Body]) -> list[tuple[str, Body]]:
    found = []
    for answer in answers:
        for result in answer.results[:1]:
            if result.refused is None and result.body:
                try:
                    found.append((answer.hub_id, read(result.body)))
                except msgspec.DecodeError as problem:
                    raise HarchError("E0695", f"hub {answer.hub_id}: {problem}") from problem
    return found
