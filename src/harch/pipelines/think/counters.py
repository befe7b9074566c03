"""How does a version do? Counters for people and dashboards, and the window on which rules judge it."""

# harch: pure

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct, field

from harch.base.rejection import Rejection
from harch.pipelines.think.settings import RollbackRules

# Upper bounds in milliseconds, roughly a factor of 1.6 apart; what is slower falls into one more bucket.
LATENCY_BOUNDS_MS = (
    *(0.05, 0.1, 0.16, 0.25, 0.4, 0.63, 1.0, 1.6, 2.5, 4.0, 6.3, 10.0),
    *(16.0, 25.0, 40.0, 63.0, 100.0, 160.0, 250.0, 400.0, 630.0, 1000.0, 2500.0, 10_000.0),
)


class LatencyHistogram(Struct):
    """Counts by latency. A quantile is the upper bound of its bucket: never better than what was measured."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))

    def add(self, latency_ms: float, weight: int = 1) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += weight

    def quantile_ms(self, share: float) -> float:
        """Infinite beyond the last bound; 0 without any measurement."""
        total, seen = sum(self.counts), 0
        if total == 0:
            return 0.0
        for bound, count in zip((*LATENCY_BOUNDS_MS, float("inf")), self.counts, strict=True):
            seen += count
            if seen >= share * total:
                return bound
        return float("inf")


class VersionCounters(Struct):
    """Totals since the version was loaded. `rows_bad`: rows that failed or came out as NaN or infinite."""

    batches: int = 0
    rows: int = 0
    rows_bad: int = 0
    rows_nan: int = 0
    batches_failed: int = 0
    rows_compared: int = 0
    rows_disagreed: int = 0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)


class BatchOutcome(Struct, frozen=True, kw_only=True):
    """One batch of one version, as it went."""

    rows: int
    latency_ms: float
    rows_nan: int = 0
    failed: bool = False
    rows_compared: int = 0
    rows_disagreed: int = 0

    @property
    def rows_bad(self) -> int:
        return self.rows if self.failed else self.rows_nan


class VersionWatch(Struct):
    """A version under its rules: all since it was loaded, since it has its role, and since it was last judged."""

    rules: RollbackRules
    total: VersionCounters = field(default_factory=VersionCounters)
    in_role: VersionCounters = field(default_factory=VersionCounters)
    window: VersionCounters = field(default_factory=VersionCounters)
    failures_in_a_row: int = 0

    def note(self, outcome: BatchOutcome) -> Rejection | None:
        """Counts a batch; the reason if the version has to go, else None."""
        for counters in (self.total, self.in_role, self.window):
            _count(counters, outcome)
        self.failures_in_a_row = self.failures_in_a_row + 1 if outcome.failed else 0
        verdict = judge(self.rules, self.window, self.failures_in_a_row)
        if verdict is not None or self.window.rows >= self.rules.rows:
            self.start_again()
        return verdict

    def begin_role(self) -> None:
        """What a version did in one role is not held against it in the next."""
        self.in_role = VersionCounters()
        self.start_again()

    def start_again(self) -> None:
        """Forgets the window."""
        self.window, self.failures_in_a_row = VersionCounters(), 0


def judge(rules: RollbackRules, window: VersionCounters, failures_in_a_row: int) -> Rejection | None:
    """A full window is judged by every rule; before that only what no further row could mend."""
    if failures_in_a_row >= rules.failures_in_a_row_max:
        return _bad("failures", f"{failures_in_a_row} batches in a row failed")
    full = window.rows >= rules.rows
    if (limit := rules.errors_percent_max) is not None:
        rows = max(window.rows, rules.rows)  # as if all rows still to come went well
        if window.rows_bad * 100 > limit * rows:
            return _bad("errors", f"{window.rows_bad} of {window.rows} rows failed, more than {limit:g} % of {rows}")
    if (limit := rules.disagreement_percent_max) is not None and full and window.rows_compared:
        share = window.rows_disagreed * 100 / window.rows_compared
        if share > limit:
            return _bad("disagreement", f"{share:.2f} % of {window.rows_compared} rows disagree, more than {limit:g} %")
    if (bound_ms := rules.latency_p99_ms_max) is not None and full:
        p99_ms = window.latency.quantile_ms(0.99)
        if p99_ms > bound_ms:
            return _bad("latency", f"p99 of {window.batches} batches is up to {p99_ms:g} ms, more than {bound_ms:g} ms")
    return None


def _count(counters: VersionCounters, outcome: BatchOutcome) -> None:
    counters.batches += 1
    counters.rows += outcome.rows
    counters.rows_bad += outcome.rows_bad
    counters.rows_nan += outcome.rows_nan
    counters.batches_failed += outcome.failed
    counters.rows_compared += outcome.rows_compared
    counters.rows_disagreed += outcome.rows_disagreed
    counters.latency.add(outcome.latency_ms)


def _bad(rule: str, detail: str) -> Rejection:
    return Rejection("version", rule, detail, "see its errors, then load a fixed version")
