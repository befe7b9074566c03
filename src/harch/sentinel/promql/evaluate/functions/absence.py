"""Is there nothing? `absent` and `absent_over_time`, with the labels that the selector itself names."""

from __future__ import annotations

import numpy as np

from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.matchers import MatchKind
from harch.sentinel.model.selection import LabelColumn, SeriesTable
from harch.sentinel.promql.evaluate.values import Vector
from harch.sentinel.promql.syntax.nodes import Expr, MatrixSelector, VectorSelector, unwrap

_ONE = np.ones(1, np.int32)


def absent(vector: Vector, argument: Expr) -> Vector:
    """1 at every step without a sample. The labels are the selector's own, so no dictionary of the store is touched."""
    missing = np.logical_not(vector.present.any(axis=0, keepdims=True))
    return Vector(absent_labels(argument), np.ones((1, vector.steps)), missing, np.zeros(1, np.bool_))


def absent_labels(argument: Expr) -> SeriesTable:
    """The labels that are asked for by `=` exactly once."""
    node = unwrap(argument)
    if isinstance(node, MatrixSelector):
        node = node.selector
    if not isinstance(node, VectorSelector):
        return SeriesTable(1, {})
    seen: set[str] = set()
    found: dict[str, str] = {}
    for matcher in node.matchers:
        if matcher.name == METRIC_NAME:
            continue
        if matcher.kind is MatchKind.EQUAL and matcher.name not in seen:
            found[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            found.pop(matcher.name, None)
    return SeriesTable(1, {name: LabelColumn(_ONE, ("", value)) for name, value in found.items() if value})
