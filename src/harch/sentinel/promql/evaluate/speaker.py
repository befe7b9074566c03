"""What was odd about one series? Says so, in the words of `annotations`."""

from __future__ import annotations

from dataclasses import dataclass

from harch.sentinel.model.histograms import Histogram
from harch.sentinel.promql.evaluate.annotations import Annotations
from harch.sentinel.promql.histograms.arithmetic import add, subtract
from harch.sentinel.promql.histograms.windows import Change, Finding
from harch.sentinel.promql.syntax.nodes import Span

ADDITION, SUBTRACTION, AGGREGATION = "addition", "subtraction", "aggregation"


@dataclass(frozen=True, slots=True)
class Speaker:
    """Tells the asker what was odd about one series."""

    notes: Annotations
    metric: str
    span: Span

    def mixed_types(self) -> None:
        self.notes.mixed_floats_and_histograms(self.metric, self.span)

    def mixed_schemas(self) -> None:
        self.notes.mixed_exponential_and_custom(self.metric, self.span)

    def not_a_counter(self) -> None:
        self.notes.histogram_not_counter(self.metric, self.span)

    def not_a_gauge(self) -> None:
        self.notes.histogram_not_gauge(self.metric, self.span)

    def changed(self, change: Change) -> Histogram | None:
        """Says what was found on the way to a difference, and hands it on."""
        for finding in change.findings:
            match finding:
                case Finding.NOT_A_COUNTER:
                    self.not_a_counter()
                case Finding.NOT_A_GAUGE:
                    self.not_a_gauge()
                case Finding.MIXED_BUCKETS:
                    self.mixed_schemas()
                case Finding.RECONCILED_IN_SUBTRACTION:
                    self.notes.reconciled_buckets(SUBTRACTION, self.span)
                case Finding.RECONCILED_IN_ADDITION:
                    self.notes.reconciled_buckets(ADDITION, self.span)
        return change.histogram

    def added(self, left: Histogram, right: Histogram) -> Histogram:
        result = add(left, right)
        if result.bounds_reconciled:
            self.notes.reconciled_buckets(ADDITION, self.span)
        return result.histogram

    def subtracted(self, left: Histogram, right: Histogram) -> Histogram:
        result = subtract(left, right)
        if result.bounds_reconciled:
            self.notes.reconciled_buckets(SUBTRACTION, self.span)
        return result.histogram
