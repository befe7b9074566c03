"""Functions that look at labels, or at the order of series: replace, join, sort."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cmp_to_key, lru_cache
from typing import Protocol, cast

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.matchers import whole_text_pattern
from harch.sentinel.model.selection import LabelColumn
from harch.sentinel.promql.evaluate.aggregation.counted_values import is_label_name
from harch.sentinel.promql.evaluate.context import refuse
from harch.sentinel.promql.evaluate.labels.columns import column_of, column_values, mapped_column, with_column
from harch.sentinel.promql.evaluate.labels.merging import merge_equal_series
from harch.sentinel.promql.evaluate.values import Vector

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
    texts = [_expanded(replacement, match, pattern.groupindex, pattern.groups) for match in found]
    matched = np.array([match is not None for match in found], np.bool_)[inverse]
    if not matched.any():
        return vector
    known = column_values(vector.series, target)
    values = [texts[at] if hit else old for at, hit, old in zip(inverse.tolist(), matched.tolist(), known, strict=True)]
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
