"""Which series of two vectors may belong together? Those of the same signature: equal labels, as far as they count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.selection import SeriesTable
from harch.sentinel.promql.evaluate.labels.columns import drop_columns, group_rows, joint_codes, keep_columns
from harch.sentinel.promql.evaluate.values import Ints
from harch.sentinel.promql.syntax.nodes import VectorMatching


@dataclass(frozen=True, slots=True)
class Signatures:
    """The signature of every series of both sides, numbered together."""

    left: Ints
    right: Ints
    count: int


def signatures_of(left: SeriesTable, right: SeriesTable, matching: VectorMatching) -> Signatures:
    """`on`: the labels named; otherwise all but those and the metric's name."""
    if matching.on:
        names = [name for name in dict.fromkeys(matching.labels) if name in left.columns or name in right.columns]
    else:
        ignored = {*matching.labels, METRIC_NAME}
        names = [name for name in dict.fromkeys([*left.columns, *right.columns]) if name not in ignored]
    counts = (left.count, right.count)
    columns = (np.concatenate(joint_codes(left.columns.get(name), right.columns.get(name), counts)) for name in names)
    groups = group_rows(left.count + right.count, columns)
    return Signatures(groups.of_row[: left.count], groups.of_row[left.count :], groups.count)


def signature_labels(series: SeriesTable, matching: VectorMatching) -> SeriesTable:
    """The labels that make up the signature."""
    if matching.on:
        return keep_columns(series, matching.labels)
    return drop_columns(series, (*matching.labels, METRIC_NAME))
