"""How do histograms of one layout become rows of a matrix, and rows histograms again?"""

from __future__ import annotations

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.promql.histograms.layout import compacted

COUNT, SUM, ZERO, BUCKETS = 0, 1, 2, 3  # columns; from the last one on, positive buckets and then negative ones


def layout_of(histogram: Histogram) -> tuple[object, ...]:
    """Equal layouts have the same buckets, so their counts can be added number by number."""
    return (
        histogram.schema,
        histogram.zero_threshold,
        histogram.positive_spans,
        histogram.negative_spans,
        histogram.custom_bounds,
    )


def row_of(histogram: Histogram) -> tuple[float, ...]:
    head = (histogram.count, histogram.sum, histogram.zero_count)
    return (*head, *histogram.positive_counts, *histogram.negative_counts)


def histogram_of(row: list[float], pattern: Histogram, hint: ResetHint) -> Histogram:
    """A histogram of these numbers in the layout of another.

    Empty buckets stay, so that results go on sharing a layout; they go at the end of the query. A side without any
    observations goes at once, because it matters whether a histogram has negative buckets at all.
    """
    split = BUCKETS + len(pattern.positive_counts)
    positive, negative = tuple(row[BUCKETS:split]), tuple(row[split:])
    histogram = Histogram(
        row[COUNT],
        row[SUM],
        pattern.schema,
        pattern.zero_threshold,
        row[ZERO],
        pattern.positive_spans,
        positive,
        pattern.negative_spans,
        negative,
        pattern.custom_bounds,
        hint,
    )
    is_bare = (positive and not any(positive)) or (negative and not any(negative))
    return compacted(histogram) if is_bare else histogram
