"""Which spans are taken? Those within the tenant's limits; others are counted by the reason why not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from harch.sentinel.archive.limits import SpanLimits
from harch.sentinel.model.spans import Attributes, Span, SpansWritten

_IDS = re.compile(r"[0-9a-f]{32} [0-9a-f]{16} (?:[0-9a-f]{16})?")
_NUMBER_MAX = 1 << 62


@dataclass(slots=True)
class AcceptedSpans:
    spans: list[Span] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    first_refusal: str = ""

    def written(self, count: int) -> SpansWritten:
        return SpansWritten(count, dict(self.refused), self.first_refusal)


def accept(spans: Sequence[Span], limits: SpanLimits) -> AcceptedSpans:
    accepted = AcceptedSpans()
    for span in spans:
        reason = _wrong(span, limits)
        if reason:
            accepted.refused["E0626"] += 1
            accepted.first_refusal = accepted.first_refusal or reason
        else:
            accepted.spans.append(span)
    return accepted


def _wrong(span: Span, limits: SpanLimits) -> str:
    """Why a span is not taken; empty if it is."""
    if not _IDS.fullmatch(f"{span.trace_id} {span.span_id} {span.parent_id}"):
        return f"ids `{span.trace_id[:40]}`, `{span.span_id[:20]}` are not of 32 and 16 hexadecimal digits"
    if len(span.attributes) + len(span.resource) > limits.attributes_per_span_max:
        return f"{len(span.attributes)} attributes; {limits.attributes_per_span_max} are allowed"
    if len(span.events) > limits.events_per_span_max or len(span.links) > limits.links_per_span_max:
        return f"{len(span.events)} events and {len(span.links)} links are too many"
    if not (-_NUMBER_MAX < span.start_ns < _NUMBER_MAX and -_NUMBER_MAX < span.duration_ns < _NUMBER_MAX):
        return "its times are out of range"
    try:
        size = len(f"{span.service}{span.name}{span.status_message}{span.scope}".encode())
        size += _size(span.attributes, limits) + _size(span.resource, limits)
        size += sum(_size(event.attributes, limits) for event in span.events)
        size += sum(_size(link.attributes, limits) for link in span.links)
        size += sum(len(event.name.encode()) for event in span.events)
    except UnicodeEncodeError:
        return "a text of it is no UTF-8"
    except ValueError as problem:
        return str(problem)
    return f"a span of {size} bytes; {limits.span_bytes_max} are allowed" if size > limits.span_bytes_max else ""


def _size(attributes: Attributes, limits: SpanLimits) -> int:
    """Bytes of names and values. Raises ValueError for one that is too long."""
    size = 0
    for name, value in attributes:
        if type(value) is str:
            length = len(value) if value.isascii() else len(value.encode())
            if length > limits.attribute_value_bytes_max:
                raise ValueError(f"attribute `{name[:40]}` has {length} bytes")
        else:
            length = 8
            if type(value) is int and not -_NUMBER_MAX < value < _NUMBER_MAX:
                raise ValueError(f"attribute `{name[:40]}` is out of range")
        name_length = len(name) if name.isascii() else len(name.encode())
        if not 0 < name_length <= limits.attribute_name_bytes_max:
            raise ValueError(f"the name of an attribute has {name_length} bytes")
        size += length + name_length
    return size
