"""Which histograms came after a reset? Found on the fly where only their counts and sums are asked for.

Stores forget what they knew of resets. Upstream finds them again under `histogram_count`, `histogram_sum` and
`histogram_avg`, and warns there of sums over samples that contradict each other; so does this.
"""

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.model.histograms import Histogram, ResetHint
from harch.sentinel.model.selection import Samples, Selection
from harch.sentinel.promql.evaluate.context import Context
from harch.sentinel.promql.histograms.resets import detect_reset
from harch.sentinel.promql.syntax.nodes import Call

_STATISTICS = frozenset({"histogram_count", "histogram_sum", "histogram_avg"})
_WHOLE = frozenset({"histogram_quantile", "histogram_fraction"})


def inside_call(call: Call, context: Context) -> Context:
    """The context for a function's arguments."""
    if call.function in _WHOLE:
        return replace(context, finds_resets=False, may_find_resets=False)
    if call.function in _STATISTICS and context.may_find_resets and not context.finds_resets:
        return replace(context, finds_resets=True)
    return context


def inside_subquery(context: Context) -> Context:
    """Steps of a subquery are no neighbours, so nothing is found between them."""
    return replace(context, finds_resets=False, may_find_resets=False) if context.may_find_resets else context


def with_found_resets(selection: Selection, context: Context) -> Selection:
    """The selection with hints filled in, if this part of the query asks for it."""
    samples = selection.samples
    if not context.finds_resets or samples.histogram_at is None:
        return selection
    histograms = list(samples.histograms)
    for row in range(len(samples.first)):
        _fill_row(samples, row, histograms)
    return replace(selection, samples=replace(samples, histograms=histograms))


def _fill_row(samples: Samples, row: int, histograms: list[Histogram]) -> None:
    if samples.histogram_at is None:
        return
    begin = int(samples.first[row])
    before: Histogram | None = None
    for place in samples.histogram_at[begin : begin + int(samples.count[row])].tolist():
        if place < 0 or histograms[place].is_stale:
            continue
        now = histograms[place]
        if before is not None and now.reset_hint is ResetHint.UNKNOWN:
            hint = ResetHint.RESET if detect_reset(now, before) else ResetHint.NOT_RESET
            histograms[place] = replace(now, reset_hint=hint)
        before = now
