"""What is the sum of a group of native histograms at every step? As matrices, if all of them share one layout."""

from __future__ import annotations

import numpy as np

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.promql.evaluate.histogram_rows import histogram_of, layout_of, row_of
from harch.sentinel.promql.evaluate.values import Floats, Objects, is_filled


def uniform_totals(cells: Objects, *, is_mean: bool) -> dict[int, Histogram] | None:
    """The sum (or mean) at each step that has some; None if layouts or reset hints differ, or numbers are not finite.

    `cells` holds the histograms of a group, a row for each series, None where there is none.
    """
    there = is_filled(cells)
    members: list[Histogram] = cells[there].tolist()
    if not members:
        return {}
    pattern = max(members, key=lambda each: len(each.positive_counts) + len(each.negative_counts))
    layout, hint, width = layout_of(pattern), pattern.reset_hint, len(row_of(pattern))
    empty = (*layout[:2], (), (), layout[4])  # what an idle series has: the same resolution and no buckets
    if any(each.reset_hint is not hint or layout_of(each) not in (layout, empty) for each in members):
        return None
    numbers = np.zeros((*cells.shape, width))
    numbers[there] = [_padded(row_of(each), width) for each in members]
    totals = _summed(numbers)
    if not np.isfinite(totals).all():
        return None
    counts = there.sum(axis=0)
    if is_mean:
        totals /= np.maximum(counts, 1)[:, np.newaxis]
    return {step: histogram_of(totals[step].tolist(), pattern, hint) for step in np.flatnonzero(counts).tolist()}


def _padded(row: tuple[float, ...], width: int) -> tuple[float, ...]:
    return row if len(row) == width else (*row, *(0.0,) * (width - len(row)))


def _summed(numbers: Floats) -> Floats:
    """Neumaier's sum over the first axis: small numbers survive beside large ones."""
    total, lost = np.zeros(numbers.shape[1:]), np.zeros(numbers.shape[1:])
    with np.errstate(all="ignore"):
        for values in numbers:
            new = total + values
            lost += np.where(np.abs(total) >= np.abs(values), (total - new) + values, (values - new) + total)
            total = new
    return total + lost
