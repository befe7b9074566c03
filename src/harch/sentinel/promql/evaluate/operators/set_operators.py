"""`and`, `or`, `unless`: which samples of one vector pass, given what the other has at the same step?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harch.sentinel.promql.evaluate.labels.columns import stacked
from harch.sentinel.promql.evaluate.labels.merging import counts_by_group, merge_equal_series, without_empty
from harch.sentinel.promql.evaluate.labels.signatures import signatures_of
from harch.sentinel.promql.evaluate.values import Vector, stacked_histograms
from harch.sentinel.promql.syntax.nodes import Binary, VectorMatching


def set_operation(node: Binary, left: Vector, right: Vector) -> Vector:
    found = signatures_of(left.series, right.series, node.matching or VectorMatching())
    if node.operator == "or":
        in_left = counts_by_group(found.left, found.count, left.present) > 0
        rest = replace(right, present=right.present & ~in_left[found.right])
        return _either(without_empty(left), without_empty(rest))
    in_right = counts_by_group(found.right, found.count, right.present) > 0
    passes = in_right[found.left] if node.operator == "and" else ~in_right[found.left]
    return replace(left, present=left.present & passes)


def _either(upper: Vector, lower: Vector) -> Vector:
    if not lower.count:
        return upper
    if not upper.count:
        return lower
    return merge_equal_series(
        Vector(
            stacked(upper.series, lower.series),
            np.concatenate([upper.values, lower.values]),
            np.concatenate([upper.present, lower.present]),
            np.concatenate([upper.drops_name, lower.drops_name]),
            stacked_histograms([upper, lower]),
        )
    )
