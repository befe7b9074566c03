"""What should the asker know besides the answer? Warnings and infos, in the words that Prometheus' users know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from harch.sentinel.promql.evaluate.float_text import shortest_general, two_digits
from harch.sentinel.promql.syntax.nodes import Span
from harch.sentinel.promql.syntax.positions import line_and_column
from harch.sentinel.promql.syntax.quoting import quote

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
    span: Span
    detail: ForcedMonotonicity | None = None


class Annotations:
    """Collects notes; the same words are kept once, at the place that said them first."""

    def __init__(self) -> None:
        self._notes: dict[str, _Note] = {}

    def warn(self, text: str, span: Span) -> None:
        self._add(_Note(True, text, span))

    def inform(self, text: str, span: Span) -> None:
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

    def invalid_quantile(self, quantile: float, span: Span) -> None:
        self.warn(f"quantile value should be between 0 and 1, got {shortest_general(quantile)}", span)

    def invalid_ratio(self, ratio: float, capped: float, span: Span) -> None:
        got = f"got {shortest_general(ratio)}, capping to {shortest_general(capped)}"
        self.warn(f"ratio value should be between -1 and 1, {got}", span)

    def bad_bucket_label(self, metric: str, label: str, span: Span) -> None:
        text = f'bucket label "le" is missing or has a malformed value of {quote(label)}'
        self.warn(_with_metric(text, metric), span)

    def mixed_floats_and_histograms(self, metric: str, span: Span) -> None:
        self.warn(f"encountered a mix of histograms and floats for metric name {quote(metric)}", span)

    def mixed_in_aggregation(self, span: Span) -> None:
        self.warn("encountered a mix of histograms and floats for aggregation", span)

    def mixed_classic_and_native(self, metric: str, span: Span) -> None:
        self.warn(_with_metric("vector contains a mix of classic and native histograms", metric), span)

    def histogram_not_counter(self, metric: str, span: Span) -> None:
        self.warn(f"this native histogram metric is not a counter: {quote(metric)}", span)

    def histogram_not_gauge(self, metric: str, span: Span) -> None:
        self.warn(f"this native histogram metric is not a gauge: {quote(metric)}", span)

    def mixed_exponential_and_custom(self, metric: str, span: Span) -> None:
        text = "vector contains a mix of histograms with exponential and custom buckets schemas for metric name"
        self.warn(f"{text} {quote(metric)}", span)

    def incompatible_buckets(self, operator: str, span: Span) -> None:
        self.warn(f"incompatible bucket layout encountered for binary operator {operator}", span)

    def sort_in_range_query(self, span: Span) -> None:
        self.warn("sort is ineffective for range queries since results are always ordered by labels", span)

    def conflicting_resets(self, operation: str, span: Span) -> None:
        self.warn(f"conflicting counter resets during histogram {operation}", span)

    def overlapping_starts(self, metric: str, span: Span) -> None:
        text = "sample has start time that overlaps with previous sample timestamp for metric"
        self.warn(f"{text} {quote(metric)}", span)

    def possible_non_counter(self, metric: str, span: Span) -> None:
        text = "metric might not be a counter, name does not end in _total/_sum/_count/_bucket:"
        self.inform(f"{text} {quote(metric)}", span)

    def possible_non_counter_type(self, metric: str, kind: str, span: Span) -> None:
        text = 'metric might not be a counter, __type__ label is not set to "counter" or "histogram"'
        self.inform(f"{text}, got {quote(kind)}: {quote(metric)}", span)

    def incompatible_types(self, left: str, operator: str, right: str, span: Span) -> None:
        text = f"incompatible sample types encountered for binary operator {quote(operator)}"
        self.inform(f"{text}: {left} {operator} {right}", span)

    def ignored_in_aggregation(self, aggregation: str, span: Span) -> None:
        self.inform(f"ignored histogram in {aggregation} aggregation", span)

    def ignored_in_mixed_range(self, metric: str, span: Span) -> None:
        text = "ignored histograms in a range containing both floats and histograms for metric name"
        self.inform(f"{text} {quote(metric)}", span)

    def reconciled_buckets(self, operation: str, span: Span) -> None:
        self.inform(f"mismatched custom buckets were reconciled during {operation}", span)

    def nan_in_histogram(self, text: str, metric: str, span: Span) -> None:
        self.inform(_with_metric(text, metric), span)

    def forced_monotonicity(self, metric: str, detail: ForcedMonotonicity, span: Span) -> None:
        self._add(_Note(False, _with_metric(_MONOTONICITY, metric), span, detail))


def _with_metric(text: str, metric: str) -> str:
    return f"{text} for metric name {quote(metric)}" if metric else text


def _rendered(note: _Note, query: str) -> str:
    kind = "PromQL warning" if note.is_warning else "PromQL info"
    return f"{kind}: {note.text}{note.detail or ''} ({line_and_column(query, note.span.start)})"


def _seconds_text(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
