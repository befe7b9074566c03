"""What would a classic histogram be with custom buckets? For `load_with_nhcb`, which loads it a second time so."""

from __future__ import annotations

import math

from harch.sentinel.model.histograms import CUSTOM_BUCKETS_SCHEMA, Histogram, Span
from harch.sentinel.model.labels import BUCKET_LABEL, METRIC_NAME, Labels, labels
from harch.testing.promqltest.commands import SeriesSamples, Value

_SUFFIXES = ("_bucket", "_count", "_sum")


def with_custom_buckets(series: tuple[SeriesSamples, ...]) -> tuple[SeriesSamples, ...]:
    """A series of native histograms for every classic one among these."""
    groups: dict[Labels, dict[str | float, SeriesSamples]] = {}
    for one in series:
        found = _part(one.labels)
        if found is not None:
            base, part = found
            groups.setdefault(base, {})[part] = one
    return tuple(
        SeriesSamples(base, _histograms(parts))
        for base, parts in groups.items()
        if any(isinstance(part, float) for part in parts)
    )


def _part(series: Labels) -> tuple[Labels, str | float] | None:
    """Which histogram a series belongs to, and which part of it it is: an upper bound, `_count` or `_sum`."""
    pairs = dict(series)
    name = pairs.get(METRIC_NAME, "")
    suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)
    if suffix is None:
        return None
    part: str | float = suffix
    if suffix == "_bucket":
        try:
            part = float(pairs.pop(BUCKET_LABEL))
        except (KeyError, ValueError):
            return None
    pairs[METRIC_NAME] = name.removesuffix(suffix)
    return labels(pairs), part


def _histograms(parts: dict[str | float, SeriesSamples]) -> tuple[Value | None, ...]:
    length = max(len(part.values) for part in parts.values())
    return tuple(_histogram_at(parts, place) for place in range(length))


def _histogram_at(parts: dict[str | float, SeriesSamples], place: int) -> Value | None:
    found = {name: _float_at(part, place) for name, part in parts.items()}
    cumulated = sorted((name, value) for name, value in found.items() if isinstance(name, float) and value is not None)
    if not cumulated:
        return None
    bounds = tuple(bound for bound, _ in cumulated if bound != math.inf)
    total = found.get("_count")
    if total is None:
        total = cumulated[-1][1]
    levels = [count for bound, count in cumulated if bound != math.inf] + [total]
    counts = tuple(level - before for level, before in zip(levels, [0.0, *levels], strict=False))
    histogram = Histogram(
        count=total,
        sum=found.get("_sum") or 0.0,
        schema=CUSTOM_BUCKETS_SCHEMA,
        positive_spans=(Span(0, len(counts)),),
        positive_counts=counts,
        custom_bounds=bounds,
    )
    return None if any(count < 0 for count in counts) else Value(histogram)


def _float_at(series: SeriesSamples, place: int) -> float | None:
    value = series.values[place] if place < len(series.values) else None
    return value.content if value is not None and isinstance(value.content, float) else None
