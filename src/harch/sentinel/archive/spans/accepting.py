"""Which spans are taken? Those within the tenant's limits; others are counted by the reason why not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from harch.sentinel.archive.limits import SpanLimits
from harch.sentinel.archive.spans.rows import encoded_span
from harch.sentinel.model.spans import Attributes, Span, SpansWritten

_IDS = re.compile(r"[0-9a-f]{32} [0-9a-f]{16} (?:[0-9a-f]{16})?")
_TIME_MAX = 1 << 62


@dataclass(slots=True)
class AcceptedSpans:
    """Spans with their bytes for the log."""

    spans: list[Span] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    first_refusal: str = ""

    @property
    def written(self) -> SpansWritten:
        return SpansWritten(len(self.spans), dict(self.refused), self.first_refusal)


def accept(spans: Sequence[Span], limits: SpanLimits) -> AcceptedSpans:
    accepted = AcceptedSpans()
    plain_bytes = min(limits.span_bytes_max, limits.attribute_value_bytes_max, limits.attribute_name_bytes_max)
    for span in spans:
        reason = _wrong(span, limits)
        if not reason:
            try:
                record = encoded_span(span)
            except UnicodeEncodeError:
                reason = "a text of it is no UTF-8"
            except OverflowError:
                reason = "a number of it has more than 64 bits"
            else:
                # What is small as a whole has nothing in it that is too long.
                if len(record) > plain_bytes:
                    reason = _too_long(span, len(record), limits)
        if reason:
            accepted.refused["E0626"] += 1
            accepted.first_refusal = accepted.first_refusal or reason
        else:
            accepted.spans.append(span)
            accepted.records.append(record)
    return accepted


def _wrong(span: Span, limits: SpanLimits) -> str:
    """Why a span is not taken; empty if it is."""
    if not _IDS.fullmatch(f"{span.trace_id} {span.span_id} {span.parent_id}"):
        return f"ids `{span.trace_id[:40]}`, `{span.span_id[:20]}` are not of 32 and 16 hexadecimal digits"
    if len(span.attributes) + len(span.resource) > limits.attributes_per_span_max:
        return f"{len(span.attributes)} attributes; {limits.attributes_per_span_max} are allowed"
    if len(span.events) > limits.events_per_span_max or len(span.links) > limits.links_per_span_max:
        return f"{len(span.events)} events and {len(span.links)} links are too many"
    if not (-_TIME_MAX < span.start_ns < _TIME_MAX and -_TIME_MAX < span.duration_ns < _TIME_MAX):
        return "its times are out of range"
    return ""


def _too_long(span: Span, size: int, limits: SpanLimits) -> str:
    if size > limits.span_bytes_max:
        return f"a span of {size} bytes; {limits.span_bytes_max} are allowed"
    more: tuple[Attributes, ...] = (
        *(event.attributes for event in span.events),
        *(link.attributes for link in span.links),
    )
    for attributes in (span.attributes, span.resource, *more):
        for name, value in attributes:
            if len(name.encode()) > limits.attribute_name_bytes_max:
                return f"the name of attribute `{name[:40]}` is longer than {limits.attribute_name_bytes_max} bytes"
            if isinstance(value, str) and len(value.encode()) > limits.attribute_value_bytes_max:
                return f"attribute `{name[:40]}` is longer than {limits.attribute_value_bytes_max} bytes"
    return ""
