"""How is a result put into words for another hub? Series by series, with the places of the grid that are filled."""

from __future__ import annotations

import numpy as np

from harch.base.rejection import Rejection
from harch.sentinel.federated.messages import SeriesTold, Told
from harch.sentinel.model.labels import Labels
from harch.sentinel.promql.evaluate.results import MatrixResult


def series_told(result: MatrixResult) -> tuple[SeriesTold, ...]:
    """Every series of a result that has a value somewhere."""
    told = []
    for row in range(result.series.count):
        at = np.flatnonzero(result.present[row])
        cells = () if result.histograms is None else tuple(result.histograms[row, at])
        if len(at):
            told.append(
                SeriesTold(
                    labels=_plain(result.series.labels_of(row)),
                    at=tuple(at.tolist()),
                    values=tuple(result.values[row, at].tolist()),
                    histograms=cells if any(cell is not None for cell in cells) else (),
                )
            )
    return tuple(told)


def _plain(labels: Labels) -> Labels:
    return tuple((str(name), str(value)) for name, value in labels)


def refused(subject: str, rule: str, detail: str, nearest_fix: str) -> Told:
    return Told(refused=Rejection(subject, rule, detail, nearest_fix))
