"""What should a user know besides the answer?

Warnings and infos in the words of upstream, also of single series, with numbers as upstream writes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.promql.histograms.arithmetic import add, subtract
from harch.sentinel.promql.histograms.counters import HistogramChange, HistogramWarning
from harch.sentinel.promql.syntax.errors import line_and_column
from harch.sentinel.promql.syntax.literals import quote
from harch.sentinel.promql.syntax.nodes import TextSpan

_EXPONENT_FROM = 6


def shortest_plain(value: float) -> str:
    """The shortest digits that read back as the value, never with an exponent: what `count_values` puts in labels."""
    special = _special(value)
    if special is not None:
        return special
    text = format(Decimal(repr(value)), "f")
    return text[:-2] if text.endswith(".0") else text


def shortest_general(value: float) -> str:
    """The shortest digits, with an exponent from 1e+06 on and below 1e-04: `%g` of Go."""
    special = _special(value)
    return special if special is not None else _with_exponent(value)


def two_digits(value: float) -> str:
    """Two significant digits: `%.2g` of Go."""
    special = _special(value)
    return special if special is not None else format(value, ".2g")


def open_metrics(value: float) -> str:
    """A float as OpenMetrics writes it in labels: always recognisable as one, such as 1.0."""
    special = _special(value)
    if special is not None:
        return special
    text = _with_exponent(value)
    return text if "." in text or "e" in text else f"{text}.0"


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return None


def _with_exponent(value: float) -> str:
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int) or value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    power = len(digits) + exponent - 1
    if -5 < power < _EXPONENT_FROM:
        return shortest_plain(value)
    mantissa = "".join(map(str, digits))
    mantissa = f"{mantissa[0]}.{mantissa[1:]}" if len(mantissa) > 1 else mantissa
    return f"{'-' if sign else ''}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"


# What should the asker know besides the answer? Warnings and infos, in the words that Prometheus' users know.


_MONOTONICITY = (
    "input to histogram_quantile needed to be fixed for monotonicity "
    "(see https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile)"
)
_KEPT_MAX = 1_000  # distinct annotations a query; a name per series could make millions


@dataclass(frozen=True, slots=True)
class ForcedMonotonicity:
    """Which buckets of classic histograms had to be mended, and when."""

    samples: int
    first_ms: int
    last_ms: int
    bucket_min: float
    bucket_max: float
    difference_max: float

    def merged(self, other: ForcedMonotonicity) -> ForcedMonotonicity:
        return ForcedMonotonicity(
            self.samples + other.samples,
            min(self.first_ms, other.first_ms),
            max(self.last_ms, other.last_ms),
            min(self.bucket_min, other.bucket_min),
            max(self.bucket_max, other.bucket_max),
            max(self.difference_max, other.difference_max),
        )

    def __str__(self) -> str:
        first, last = (_seconds_text(moment) for moment in (self.first_ms, self.last_ms))
        buckets = f"from buckets {shortest_general(self.bucket_min)} to {shortest_general(self.bucket_max)}"
        difference = f"with a max diff of {two_digits(self.difference_max)}"
        return f", {buckets}, {difference}, over {self.samples} samples from {first} to {last}"


@dataclass(frozen=True, slots=True)
class _Note:
    is_warning: bool
    text: str
    span: TextSpan
    detail: ForcedMonotonicity | None = None


class Annotations:
    """Collects notes; the same words are kept once, at the place that said them first."""

    def __init__(self) -> None:
        self._notes: dict[str, _Note] = {}

    def warn(self, text: str, span: TextSpan) -> None:
        self._add(_Note(True, text, span))

    def inform(self, text: str, span: TextSpan) -> None:
        self._add(_Note(False, text, span))

    def warnings(self, query: str) -> tuple[str, ...]:
        return tuple(_rendered(note, query) for note in self._notes.values() if note.is_warning)

    def infos(self, query: str) -> tuple[str, ...]:
        return tuple(_rendered(note, query) for note in self._notes.values() if not note.is_warning)

    def _add(self, note: _Note) -> None:
        known = self._notes.get(note.text)
        if known is None:
            if len(self._notes) < _KEPT_MAX:
                self._notes[note.text] = note
        elif known.detail is not None and note.detail is not None:
            self._notes[note.text] = replace(known, detail=known.detail.merged(note.detail))

    # Words of upstream, one method each; users grep for them.

    def invalid_quantile(self, quantile: float, span: TextSpan) -> None:
        self.warn(f"quantile value should be between 0 and 1, got {shortest_general(quantile)}", span)

    def invalid_ratio(self, ratio: float, capped: float, span: TextSpan) -> None:
        got = f"got {shortest_general(ratio)}, capping to {shortest_general(capped)}"
        self.warn(f"ratio value should be between -1 and 1, {got}", span)

    def bad_bucket_label(self, metric: str, label: str, span: TextSpan) -> None:
        text = f'bucket label "le" is missing or has a malformed value of {quote(label)}'
        self.warn(_with_metric(text, metric), span)

    def mixed_floats_and_histograms(self, metric: str, span: TextSpan) -> None:
        self.warn(f"encountered a mix of histograms and floats for metric name {quote(metric)}", span)

    def mixed_in_aggregation(self, span: TextSpan) -> None:
        self.warn("encountered a mix of histograms and floats for aggregation", span)

    def mixed_classic_and_native(self, metric: str, span: TextSpan) -> None:
        self.warn(_with_metric("vector contains a mix of classic and native histograms", metric), span)

    def histogram_not_counter(self, metric: str, span: TextSpan) -> None:
        self.warn(f"this native histogram metric is not a counter: {quote(metric)}", span)

    def histogram_not_gauge(self, metric: str, span: TextSpan) -> None:
        self.warn(f"this native histogram metric is not a gauge: {quote(metric)}", span)

    def mixed_exponential_and_custom(self, metric: str, span: TextSpan) -> None:
        text = "vector contains a mix of histograms with exponential and custom buckets schemas for metric name"
        self.warn(f"{text} {quote(metric)}", span)

    def incompatible_buckets(self, operator: str, span: TextSpan) -> None:
        self.warn(f"incompatible bucket layout encountered for binary operator {operator}", span)

    def sort_in_range_query(self, span: TextSpan) -> None:
        self.warn("sort is ineffective for range queries since results are always ordered by labels", span)

    def conflicting_resets(self, operation: str, span: TextSpan) -> None:
        self.warn(f"conflicting counter resets during histogram {operation}", span)

    def overlapping_starts(self, metric: str, span: TextSpan) -> None:
        text = "sample has start time that overlaps with previous sample timestamp for metric"
        self.warn(f"{text} {quote(metric)}", span)

    def possible_non_counter(self, metric: str, span: TextSpan) -> None:
        text = "metric might not be a counter, name does not end in _total/_sum/_count/_bucket:"
        self.inform(f"{text} {quote(metric)}", span)

    def possible_non_counter_type(self, metric: str, kind: str, span: TextSpan) -> None:
        text = 'metric might not be a counter, __type__ label is not set to "counter" or "histogram"'
        self.inform(f"{text}, got {quote(kind)}: {quote(metric)}", span)

    def incompatible_types(self, left: str, operator: str, right: str, span: TextSpan) -> None:
        text = f"incompatible sample types encountered for binary operator {quote(operator)}"
        self.inform(f"{text}: {left} {operator} {right}", span)

    def ignored_in_aggregation(self, aggregation: str, span: TextSpan) -> None:
        self.inform(f"ignored histogram in {aggregation} aggregation", span)

    def ignored_in_mixed_range(self, metric: str, span: TextSpan) -> None:
        text = "ignored histograms in a range containing both floats and histograms for metric name"
        self.inform(f"{text} {quote(metric)}", span)

    def reconciled_buckets(self, operation: str, span: TextSpan) -> None:
        self.inform(f"mismatched custom buckets were reconciled during {operation}", span)

    def nan_in_histogram(self, text: str, metric: str, span: TextSpan) -> None:
        self.inform(_with_metric(text, metric), span)

    def forced_monotonicity(self, metric: str, detail: ForcedMonotonicity, span: TextSpan) -> None:
        self._add(_Note(False, _with_metric(_MONOTONICITY, metric), span, detail))


def _with_metric(text: str, metric: str) -> str:
    return f"{text} for metric name {quote(metric)}" if metric else text


def _rendered(note: _Note, query: str) -> str:
    kind = "PromQL warning" if note.is_warning else "PromQL info"
    return f"{kind}: {note.text}{note.detail or ''} ({line_and_column(query, note.span.start)})"


def _seconds_text(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# What was odd about one series? Says so, in the words of `annotations`.


ADDITION, SUBTRACTION, AGGREGATION = "addition", "subtraction", "aggregation"


@dataclass(frozen=True, slots=True)
class SeriesAnnotator:
    """Tells the asker what was odd about one series."""

    notes: Annotations
    metric: str
    span: TextSpan

    def mixed_types(self) -> None:
        self.notes.mixed_floats_and_histograms(self.metric, self.span)

    def mixed_schemas(self) -> None:
        self.notes.mixed_exponential_and_custom(self.metric, self.span)

    def not_a_counter(self) -> None:
        self.notes.histogram_not_counter(self.metric, self.span)

    def not_a_gauge(self) -> None:
        self.notes.histogram_not_gauge(self.metric, self.span)

    def changed(self, change: HistogramChange) -> NativeHistogram | None:
        """Says what was found on the way to a difference, and hands it on."""
        for finding in change.findings:
            match finding:
                case HistogramWarning.NOT_A_COUNTER:
                    self.not_a_counter()
                case HistogramWarning.NOT_A_GAUGE:
                    self.not_a_gauge()
                case HistogramWarning.MIXED_BUCKETS:
                    self.mixed_schemas()
                case HistogramWarning.RECONCILED_IN_SUBTRACTION:
                    self.notes.reconciled_buckets(SUBTRACTION, self.span)
                case HistogramWarning.RECONCILED_IN_ADDITION:
                    self.notes.reconciled_buckets(ADDITION, self.span)
        return change.histogram

    def added(self, left: NativeHistogram, right: NativeHistogram) -> NativeHistogram:
        result = add(left, right)
        if result.bounds_reconciled:
            self.notes.reconciled_buckets(ADDITION, self.span)
        return result.histogram

    def subtracted(self, left: NativeHistogram, right: NativeHistogram) -> NativeHistogram:
        result = subtract(left, right)
        if result.bounds_reconciled:
            self.notes.reconciled_buckets(SUBTRACTION, self.span)
        return result.histogram
