"""Which number does a line carry? The value of one label, read as a number, a duration or a size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harch.sentinel.logql.stages.filtering import amount_of, filter_labels
from harch.sentinel.logql.stages.page import Page
from harch.sentinel.logql.syntax.nodes import Unwrap
from harch.sentinel.logql.syntax.stages import Unit
from harch.sentinel.model.selection import Ints, Samples
from harch.sentinel.promql.evaluate.values import Floats

EXTRACTION_ERROR = "SampleExtractionErr"
_UNITS = {"": Unit.NUMBER, "duration": Unit.DURATION, "bytes": Unit.BYTES}
_VALUE = "__value__"  # the numbers on their way through filters, as texts of their places


def unwrapped(page: Page, unwrap: Unwrap) -> Floats:
    """The numbers of the lines that are left: lines without the label are dropped, unreadable ones have an error."""
    unit = _UNITS[unwrap.conversion]
    texts = page.values(unwrap.label)
    page.keep_where([bool(text) for text in texts])
    texts = [text for text in texts if text]
    known: dict[str, float | None] = {}
    for text in texts:
        if text not in known:
            amount = amount_of(text, unit)
            known[text] = amount / 1e9 if amount is not None and unit is Unit.DURATION else amount
    for place, text in enumerate(texts):
        if known[text] is None:
            page.fail(place, EXTRACTION_ERROR, f"label {unwrap.label}: `{text[:80]}` is no {unit.value}")
    if unwrap.filters:
        page.parsed[_VALUE] = list(texts)
        for stage in unwrap.filters:
            filter_labels(page, stage)
        texts = [text or "" for text in page.parsed.pop(_VALUE)]
    return np.array([known[text] or 0.0 for text in texts], np.float64)


@dataclass(slots=True)
class SamplesFound:
    """Numbers of lines with their times and series, as they come."""

    series: list[Ints] = field(default_factory=list)
    times_ns: list[Ints] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)

    def add(self, series: Ints, times_ns: Ints, values: Floats) -> None:
        self.series.append(series)
        self.times_ns.append(times_ns)
        self.values.append(values)

    def samples(self, series_count: int, unit_ns: int) -> Samples:
        """Sorted by series and time; lines of the same time stay in the order they came in."""
        series = np.concatenate([np.zeros(0, np.int64), *self.series])
        times = np.concatenate([np.zeros(0, np.int64), *self.times_ns])
        values = np.concatenate([np.zeros(0), *self.values])
        order = np.lexsort((times, series))
        count = np.bincount(series, minlength=series_count).astype(np.int64)
        return Samples(np.cumsum(count) - count, count, times[order] // unit_ns, values[order])
