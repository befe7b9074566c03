"""How is a result put into words for another hub? Series by series, with the places of the grid that are filled."""

# harch: pure

from __future__ import annotations

import numpy as np

from harch.base.rejection import Rejection
from harch.sentinel.federated.messages import PartResult, SeriesResult
from harch.sentinel.model.labels import Labels
from harch.sentinel.promql.evaluate.values import MatrixResult


def encode_series(result: MatrixResult) -> tuple[SeriesResult, ...]:
    """Every series of a result that has a value somewhere."""
    encoded = []
    for row in range(result.series.count):
        at = np.flatnonzero(result.present[row])
        cells = () if result.histograms is None else tuple(result.histograms[row, at])
        if len(at):
            encoded.append(
                SeriesResult(
                    labels=_plain(result.series.labels_of(row)),
                    at=tuple(at.tolist()),
                    values=tuple(result.values[row, at].tolist()),
                    histograms=cells if any(cell is not None for cell in cells) else (),
                )
            )
    return tuple(encoded)


def _plain(labels: Labels) -> Labels:
    return tuple((str(name), str(value)) for name, value in labels)


def refused(subject: str, rule: str, detail: str, nearest_fix: str) -> PartResult:
    return PartResult(refused=Rejection(subject, rule, detail, nearest_fix))


def bytes_of(encoded: PartResult) -> int:
    """About how many bytes this takes on its way, rather more than less."""
    size = len(encoded.body) + sum(map(len, encoded.warnings)) + 64
    for one in encoded.series:
        size += 14 * len(one.at) + sum(len(name) + len(value) + 8 for name, value in one.labels) + 32
        size += sum(60 + 9 * (len(cell.positive_counts) + len(cell.negative_counts)) for cell in one.histograms if cell)
        size += sum(20 * (len(cell.positive_spans) + len(cell.negative_spans)) for cell in one.histograms if cell)
    return size
