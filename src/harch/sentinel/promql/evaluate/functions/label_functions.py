"""What do functions of labels, or of the order of series, give?

Replace, join, sort, and `info`, which adds labels of series that describe the same job and instance.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cmp_to_key, lru_cache
from typing import Protocol, cast

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME, Labels, Matcher, MatchKind, labels, whole_text_pattern
from harch.sentinel.model.selection import Ints, LabelColumn, Selection, SeriesTable
from harch.sentinel.promql.evaluate.aggregates import is_label_name
from harch.sentinel.promql.evaluate.context import EvaluationContext, refuse
from harch.sentinel.promql.evaluate.label_columns import (
    column_of,
    column_values,
    labels_text,
    mapped_column,
    merge_equal_series,
    with_column,
)
from harch.sentinel.promql.evaluate.selection.instant_vectors import histogram_rows, places_at, read
from harch.sentinel.promql.evaluate.values import Bools, StepGrid, Vector
from harch.sentinel.promql.syntax.nodes import Expr, FunctionCall, Subquery, VectorSelector, children, unwrap

# Functions that look at labels, or at the order of series: replace, join, sort.


_REFERENCE = re.compile(r"\$(?:\$|\{(?P<braced>\w+)\}|(?P<bare>\w+))")
_CHUNK = re.compile(r"\d+|\D+")


class _Match(Protocol):
    def group(self, which: int) -> str | None: ...


def replaced_label(vector: Vector, target: str, replacement: str, source: str, expression: str) -> Vector:
    """`label_replace`: where the source label matches as a whole, the target becomes the replacement."""
    try:
        pattern = whole_text_pattern(expression)
    except HarchError as broken:
        raise refuse(f"invalid regular expression in label_replace(): {expression}") from broken
    if not is_label_name(target):
        raise refuse(f"invalid destination label name in label_replace(): {target}")
    column = vector.series.columns.get(source) or LabelColumn(np.zeros(vector.count, np.int32), ("",))
    used, inverse = np.unique(column.codes, return_inverse=True)
    found = [cast("_Match | None", pattern.fullmatch(column.values[code])) for code in used.tolist()]
    strings = [_expanded(replacement, match, pattern.groupindex, pattern.groups) for match in found]
    matched = np.array([match is not None for match in found], np.bool_)[inverse]
    if not matched.any():
        return vector
    known = column_values(vector.series, target)
    values = [
        strings[at] if hit else old for at, hit, old in zip(inverse.tolist(), matched.tolist(), known, strict=True)
    ]
    return _relabelled(vector, target, column_of(values), matched)


def _relabelled(vector: Vector, target: str, column: LabelColumn, changed: np.typing.NDArray[np.bool_]) -> Vector:
    series = with_column(vector.series, target, column)
    drops_name = vector.drops_name & ~changed if target == METRIC_NAME else vector.drops_name
    return merge_equal_series(replace(vector, series=series, drops_name=drops_name))


def _expanded(template: str, match: _Match | None, names: dict[str, int], groups: int) -> str:
    """The template with `$1`, `${1}`, `$name` and `$$` filled in; what the pattern has no group for is empty."""
    if match is None:
        return ""

    def filled(reference: re.Match[str]) -> str:
        name = reference["braced"] or reference["bare"]
        if name is None:
            return "$"
        which = int(name) if name.isdecimal() else names.get(name, -1)
        return (match.group(which) or "") if 0 <= which <= groups else ""

    return _REFERENCE.sub(filled, template)


def joined_labels(vector: Vector, target: str, separator: str, sources: Sequence[str]) -> Vector:
    """`label_join`: the values of some labels, put together in another."""
    for source in sources:
        if not is_label_name(source):
            raise refuse(f"invalid source label name in label_join(): {source}")
    if not is_label_name(target):
        raise refuse(f"invalid destination label name in label_join(): {target}")
    if len(sources) == 1 and sources[0] in vector.series.columns:
        column = mapped_column(vector.series.columns[sources[0]], lambda value: value)
    else:
        parts = [column_values(vector.series, source) for source in sources]
        rows = zip(*parts, strict=True) if parts else ((),) * vector.count
        column = column_of([separator.join(values) for values in rows])
    return _relabelled(vector, target, column, np.ones(vector.count, np.bool_))


def sorted_by_value(vector: Vector, *, descending: bool) -> Vector:
    """The series of one step by value, NaNs last; histograms are left out."""
    floats = vector.floats_only()
    if vector.steps != 1:
        return floats
    rows = np.flatnonzero(floats.present[:, 0])
    values = floats.values[rows, 0]
    keys = -values if descending else values  # NumPy puts NaNs last, too
    return floats.take(rows[np.argsort(keys, kind="stable")])


def sorted_by_label(vector: Vector, names: Sequence[str], *, descending: bool) -> Vector:
    """The series of one step by labels, numbers in them by size; all labels decide where those named are equal."""
    if vector.steps != 1:
        return vector
    columns = [column_values(vector.series, name) for name in names]
    whole = [vector.series.labels_of(row) for row in range(vector.count)]

    def compare(left: int, right: int) -> int:
        for column in columns:
            if column[left] != column[right]:
                return -1 if is_naturally_before(column[left], column[right]) else 1
        return (whole[left] > whole[right]) - (whole[left] < whole[right])

    rows = sorted(range(vector.count), key=cmp_to_key(compare), reverse=descending)
    return vector.take(np.array(rows, np.int64))


def is_naturally_before(left: str, right: str) -> bool:
    """Digits compare as numbers, the rest as text."""
    ours, theirs = _chunks(left), _chunks(right)
    for place, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine.isdecimal() and other.isdecimal():
            if int(mine) != int(other):
                return int(mine) < int(other)
        elif mine != other:
            return mine < other
        if place == len(ours) - 1:
            return True
        if place == len(theirs) - 1:
            return False
    return not ours and bool(theirs)


@lru_cache(maxsize=4096)
def _chunks(text: str) -> tuple[str, ...]:
    return tuple(_CHUNK.findall(text))


# What else is known about a series? `info` adds labels of info series that describe the same job and instance.


_IDENTIFYING = ("instance", "job")
_DEFAULT_NAME = Matcher(MatchKind.EQUAL, METRIC_NAME, "target_info")
_ANY_NAME = Matcher(MatchKind.REGEX, METRIC_NAME, ".+_info")
_Key = tuple[str, ...]  # the name of an info metric and the identifying labels


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which info metrics, and which of their labels?"""

    names: tuple[Matcher, ...]
    data: tuple[Matcher, ...]

    def is_info(self, metric: str) -> bool:
        return all(matcher.matches(metric) for matcher in self.names)

    def takes(self, label: str) -> bool:
        return not self.data or any(matcher.name == label for matcher in self.data)

    @property
    def needs_match(self) -> bool:
        return not all(matcher.matches_empty() for matcher in self.data)


def with_info(call: FunctionCall, base: Vector, grid: StepGrid, context: EvaluationContext) -> Vector:
    """Every series of the base with the labels of its info series, as they were when the base was sampled."""
    wanted = _wanted(call)
    moments = _moments(call.arguments[0], grid)
    found = _info_series(base, wanted, moments, context)
    chosen = {} if found is None else _latest(found, moments, context)
    names = sorted({key[0] for key in chosen})
    metrics = column_values(base.series, METRIC_NAME)
    rows: list[int] = []
    labels_out: list[Labels] = []
    masks: list[Bools] = []
    for row in context.budget.watched(range(base.count)):
        own = base.series.labels_of(row)
        if wanted.is_info(metrics[row]):  # info series are not described by others of their kind
            parts: Iterator[tuple[Labels, Bools]] = iter([(own, base.present[row])])
        else:
            known = dict(own)
            keys = [(name, *(known.get(label, "") for label in _IDENTIFYING)) for name in names]
            choices = [chosen[key] for key in keys if key in chosen]
            parts = _enriched(own, base.present[row], choices, found, wanted)
        for result, mask in parts:
            rows.append(row)
            labels_out.append(result)
            masks.append(mask)
    at = np.array(rows, np.int64)
    present = np.array(masks, np.bool_).reshape(len(rows), grid.count)
    histograms = None if base.histograms is None else base.histograms[at]
    series = SeriesTable.of(labels_out)
    return merge_equal_series(Vector(series, base.values[at], present, base.drops_name[at], histograms))


def _wanted(call: FunctionCall) -> _Wanted:
    if len(call.arguments) < 2:
        return _Wanted((_DEFAULT_NAME,), ())
    selector = unwrap(call.arguments[1])
    matchers = selector.matchers if isinstance(selector, VectorSelector) else ()
    names = tuple(matcher for matcher in matchers if matcher.name == METRIC_NAME)
    if not names:
        names = (_DEFAULT_NAME,)
    elif all(matcher.kind in (MatchKind.NOT_EQUAL, MatchKind.NOT_REGEX) for matcher in names):
        names = (_ANY_NAME, *names)  # else everything but what was left out would be an info series
    return _Wanted(names, tuple(matcher for matcher in matchers if matcher.name != METRIC_NAME))


def _moments(argument: Expr, grid: StepGrid) -> Ints:
    """When the base was sampled: the grid, moved by `offset` and `@` on the way to its first selector."""
    moments = grid.times
    for node in _path_to_selector(argument):
        if isinstance(node, VectorSelector | Subquery):
            moments = (moments if node.at_ms is None else np.full(grid.count, node.at_ms, np.int64)) - node.offset_ms
    return moments


def _path_to_selector(node: Expr) -> Sequence[Expr]:
    if isinstance(node, VectorSelector):
        return (node,)
    for child in children(node):
        path = _path_to_selector(child)
        if path:
            return (node, *path)
    return ()


def _info_series(base: Vector, wanted: _Wanted, moments: Ints, context: EvaluationContext) -> Selection | None:
    """The info series of any job and instance that the base knows; None if it knows none."""
    metrics = column_values(base.series, METRIC_NAME)
    rows = [row for row in range(base.count) if not wanted.is_info(metrics[row])]
    matchers: list[Matcher] = []
    part = base.series.take(np.array(rows, np.int64))
    for label in _IDENTIFYING:
        values = sorted({value for value in column_values(part, label) if value})
        if values:
            expression = "|".join(map(_literal, values))
            matchers.append(Matcher(MatchKind.REGEX, label, expression))
    if not matchers:
        return None
    matchers.extend((*wanted.names, *wanted.data))
    node = VectorSelector("", tuple(matchers))
    selection = read(node, int(moments[0]) - context.lookback_ms + 1, int(moments[-1]), context)
    for row in np.flatnonzero(histogram_rows(selection.samples))[:1].tolist():
        raise refuse(
            "this should be an info metric, with float samples: " + labels_text(selection.series.labels_of(row))
        )
    return selection


def _literal(text: str) -> str:
    """The text as a pattern for itself."""
    return "".join(char if char.isalnum() or char == "_" or ord(char) > 127 else f"\\{char}" for char in text)


def _latest(found: Selection, moments: Ints, context: EvaluationContext) -> dict[_Key, Ints]:
    """For each name and identity the info series that was sampled last, at every step; -1 where there is none."""
    places = places_at(found.samples, moments, context)
    times = np.where(
        places >= 0, found.samples.timestamps[np.maximum(places, 0)] if found.samples.timestamps.size else 0, 0
    )
    members: dict[_Key, list[int]] = defaultdict(list)
    keys = zip(*(column_values(found.series, label) for label in (METRIC_NAME, *_IDENTIFYING)), strict=True)
    for row, key in enumerate(keys):
        members[key].append(row)
    chosen: dict[_Key, Ints] = {}
    for key, rows in members.items():
        best = np.full(len(moments), -1, np.int64)
        newest = np.zeros(len(moments), np.int64)
        for row in rows:
            here = places[row] >= 0
            _refuse_equal(found, best, row, here & (best >= 0) & (newest == times[row]), times[row])
            wins = here & ((best < 0) | (times[row] > newest))
            best[wins], newest[wins] = row, times[row][wins]
        chosen[key] = best
    return chosen


def _refuse_equal(found: Selection, best: Ints, row: int, equal: Bools, times: Ints) -> None:
    for step in np.flatnonzero(equal)[:1].tolist():
        existing, new = (labels_text(found.series.labels_of(each)) for each in (int(best[step]), row))
        at = int(times[step])
        raise refuse(f"found duplicate series for info metric: existing {existing} @ {at}, new {new} @ {at}")


def _enriched(
    own: Labels, present: Bools, choices: list[Ints], found: Selection | None, wanted: _Wanted
) -> Iterator[tuple[Labels, Bools]]:
    """One series for each set of info series that described the base at some of the steps."""
    if not choices or found is None:
        if not wanted.needs_match:
            yield own, present
        return
    sets, which = np.unique(np.stack(choices), axis=1, return_inverse=True)
    for place in range(sets.shape[1]):
        mask = present & (which.reshape(-1) == place)
        rows = [row for row in sets[:, place].tolist() if row >= 0]
        if mask.any() and (rows or not wanted.needs_match):
            yield _joined(own, [found.series.labels_of(row) for row in rows], wanted), mask


def _joined(own: Labels, infos: list[Labels], wanted: _Wanted) -> Labels:
    known, added = dict(own), dict[str, str]()
    for info in infos:
        for name, value in info:
            if name == METRIC_NAME or not wanted.takes(name):
                continue
            if added.get(name, value) != value:
                raise refuse(f"conflicting label: {name}")
            if name not in known:
                added[name] = value
    return labels({**known, **added})
