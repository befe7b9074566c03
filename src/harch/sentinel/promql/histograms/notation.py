"""How is a histogram written? `{{schema:0 sum:5 count:4 buckets:[1 2 1]}}`, and a form for people and labels."""

# harch: pure

from __future__ import annotations

import re
from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import (
    CUSTOM_BUCKETS_SCHEMA,
    EXPONENTIAL_SCHEMA_RANGE,
    BucketSpan,
    NativeHistogram,
    ResetHint,
)
from harch.sentinel.promql.histograms.buckets import (
    compacted,
    indexed,
    negative_buckets,
    positive_buckets,
    short,
    zero_bucket,
)

BUCKETS_MAX = 10_000
_ENTRY = re.compile(r"\s*(?P<key>[a-z_]+):(?:\[(?P<list>[^\]]*)\]|(?P<word>[^\s\]\[]+))", re.IGNORECASE)
_NUMBERS = frozenset({"sum", "count", "z_bucket", "z_bucket_w"})
_LISTS = frozenset({"buckets", "n_buckets", "custom_values"})
_INTEGERS = frozenset({"schema", "offset", "n_offset"})
_HINTS = {
    "unknown": ResetHint.UNKNOWN,
    "reset": ResetHint.RESET,
    "not_reset": ResetHint.NOT_RESET,
    "gauge": ResetHint.GAUGE,
}
_HINT_NAMES = {hint: name for name, hint in _HINTS.items()}


@dataclass(frozen=True, slots=True)
class WrittenHistogram:
    """A histogram as it was written; `names_hint` says whether its hint was written, too."""

    histogram: NativeHistogram
    names_hint: bool


def read_histogram(text: str) -> WrittenHistogram:
    """The histogram between `{{` and `}}`, braces included. Raises E0623."""
    if not (text.startswith("{{") and text.endswith("}}")):
        raise _broken(text, "a histogram must be between {{ and }}")
    inside = text[2:-2]
    fields: dict[str, str] = {}
    position = 0
    while inside[position:].strip():
        entry = _ENTRY.match(inside, position)
        if entry is None:
            raise _broken(text, f"expected `key:value` at {inside[position:].strip()[:20]!r}")
        key = entry["key"].lower()
        if key in fields:
            raise _broken(text, f"{key} is written twice")
        if key not in _NUMBERS | _LISTS | _INTEGERS | {"counter_reset_hint"}:
            raise _broken(text, f"{key} is not part of a histogram")
        if (key in _LISTS) != (entry["list"] is not None):
            raise _broken(text, f"{key} takes {'a list' if key in _LISTS else 'one value'}")
        fields[key] = entry["list"] if entry["list"] is not None else entry["word"]
        position = entry.end()
    return _assembled(text, fields)


def _assembled(text: str, fields: dict[str, str]) -> WrittenHistogram:
    try:
        numbers = {key: float(fields.get(key, "0")) for key in _NUMBERS}
        lists = {key: tuple(float(word) for word in fields.get(key, "").split()) for key in _LISTS}
        integers = {key: int(fields.get(key, "0")) for key in _INTEGERS}
        hint = _HINTS[fields.get("counter_reset_hint", "unknown")]
    except (KeyError, ValueError) as wrong:
        raise _broken(text, f"not a number or hint: {wrong}") from wrong
    schema = integers["schema"]
    lowest, highest = EXPONENTIAL_SCHEMA_RANGE
    if schema != CUSTOM_BUCKETS_SCHEMA and not lowest <= schema <= highest:
        raise _broken(text, f"schemas are {lowest} to {highest} and {CUSTOM_BUCKETS_SCHEMA}")
    histogram = NativeHistogram(
        count=numbers["count"],
        sum=numbers["sum"],
        schema=schema,
        zero_threshold=numbers["z_bucket_w"],
        zero_count=numbers["z_bucket"],
        positive_spans=_one_span(integers["offset"], lists["buckets"]),
        positive_counts=lists["buckets"],
        negative_spans=_one_span(integers["n_offset"], lists["n_buckets"]),
        negative_counts=lists["n_buckets"],
        custom_bounds=lists["custom_values"],
        reset_hint=hint,
    )
    return WrittenHistogram(histogram, "counter_reset_hint" in fields)


def _one_span(offset: int, counts: tuple[float, ...]) -> tuple[BucketSpan, ...]:
    return (BucketSpan(offset, len(counts)),) if counts else ()


def _broken(text: str, reason: str) -> HarchError:
    return HarchError("E0623", f"{text[:80]}: {reason}", hint="for example {{schema:0 sum:5 count:4 buckets:[1 2 1]}}")


def write_histogram(histogram: NativeHistogram) -> str:
    """The form that `read_histogram` reads; histograms whose buckets lie far apart get the form for people."""
    whole = compacted(histogram)
    parts = []
    if whole.schema:
        parts.append(f"schema:{whole.schema}")
    for key, value in (
        ("count", whole.count),
        ("sum", whole.sum),
        ("z_bucket", whole.zero_count),
        ("z_bucket_w", whole.zero_threshold),
    ):
        if value:
            parts.append(f"{key}:{short(value)}")
    if whole.uses_custom_buckets:
        parts.append(f"custom_values:[{' '.join(map(short, whole.custom_bounds))}]")
    if whole.reset_hint is not ResetHint.UNKNOWN:
        parts.append(f"counter_reset_hint:{_HINT_NAMES[whole.reset_hint]}")
    for prefix, counts in (
        ("", indexed(whole.positive_spans, whole.positive_counts)),
        ("n_", indexed(whole.negative_spans, whole.negative_counts)),
    ):
        if not counts:
            continue
        first, last = min(counts), max(counts)
        if last - first >= BUCKETS_MAX:
            return describe(histogram)
        if first:
            parts.append(f"{prefix}offset:{first}")
        filled = (short(counts.get(index, 0.0)) for index in range(first, last + 1))
        parts.append(f"{prefix}buckets:[{' '.join(filled)}]")
    return "{{" + " ".join(parts) + "}}"


def describe(histogram: NativeHistogram) -> str:
    """`{count:4, sum:5, (0.5,1]:1, …}`: every populated bucket with its bounds. The value that count_values gives."""
    buckets = [bucket for bucket in negative_buckets(histogram) if bucket.count][::-1]
    if histogram.zero_count and not histogram.uses_custom_buckets:
        buckets.append(zero_bucket(histogram))
    buckets.extend(bucket for bucket in positive_buckets(histogram) if bucket.count)
    head = (f"count:{short(histogram.count)}", f"sum:{short(histogram.sum)}")
    return "{" + ", ".join((*head, *map(str, buckets))) + "}"
