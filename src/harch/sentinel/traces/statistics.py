"""How long do spans take, by service, name or status? Counts and quantiles, estimated from buckets of durations."""

from __future__ import annotations

from collections.abc import Sequence

from harch.base.errors import HarchError
from harch.sentinel.model.spans import BUCKET_BOUNDS_NS, Field, SpanGroup, SpanQuery
from harch.sentinel.traces.query import TraceQuery, span_query

GROUPABLE = (Field.SERVICE, Field.NAME, Field.STATUS, Field.KIND)
QUANTILES = (0.5, 0.95, 0.99)


def fields_of(texts: Sequence[str]) -> tuple[Field, ...]:
    """What to group by. Raises E0201."""
    known = {field.value: field for field in GROUPABLE}
    for text in texts:
        if text not in known:
            hint = f"choose from {', '.join(known)}"
            raise HarchError("E0201", f"spans are not grouped by `{text[:40]}`", field="by", hint=hint)
    return tuple(dict.fromkeys(known[text] for text in texts))


def counted_query(query: TraceQuery, *, start_ns: int, end_ns: int) -> SpanQuery:
    """What a store can count at once. Raises E0691 for alternatives and for conditions on whole traces."""
    (first, *others) = query.alternatives
    if others or first.traces:
        raise HarchError(
            "E0691",
            "only spans that satisfy all conditions can be counted",
            hint="leave out `||` and conditions on whole traces",
        )
    return span_query(first, start_ns=start_ns, end_ns=end_ns, limit=1)


def quantile_ns(buckets: Sequence[int], quantile: float) -> int | None:
    """The estimated duration that this share of the spans did not exceed; None without spans.

    Bounds of buckets grow by a factor of 1.41, and inside of one its spans are taken for evenly spread.
    """
    total = sum(buckets)
    if not total:
        return None
    rank, before = quantile * total, 0
    for place, count in enumerate(buckets):
        if count and before + count >= rank:
            if place >= len(BUCKET_BOUNDS_NS):
                return BUCKET_BOUNDS_NS[-1]
            low = BUCKET_BOUNDS_NS[place - 1] if place else 0
            return round(low + (BUCKET_BOUNDS_NS[place] - low) * (rank - before) / count)
        before += count
    return BUCKET_BOUNDS_NS[-1]


def group_view(group: SpanGroup, by: Sequence[Field]) -> dict[str, object]:
    """A group as JSON. `p50Ns` and the others are estimated."""
    return {
        **{field.value: value for field, value in zip(by, group.key, strict=True)},
        "count": group.count,
        "errors": group.errors,
        "meanNs": group.duration_sum_ns // group.count if group.count else None,
        **{f"p{round(quantile * 100)}Ns": quantile_ns(group.buckets, quantile) for quantile in QUANTILES},
    }
