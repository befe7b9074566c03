"""What does an attribute of a log record or span say? Its value as text, number or truth; lists and maps as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harch.sentinel.collect.otlp.attributes import VALUES_MAX, text_of
from harch.sentinel.collect.parts import check_count
from harch.sentinel.model.spans import Attributes, AttributeValue

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

_DEPTH_MAX = 8


def attributes_of(pairs: Sequence[KeyValue]) -> Attributes:
    """Sorted by name; of a name that comes twice the last one counts. Raises E0606 for far too many."""
    check_count(len(pairs), VALUES_MAX, "attributes of one thing")
    found: dict[str, AttributeValue] = {}
    for pair in pairs:
        value = pair.value
        found[pair.key] = value.string_value or _other_value(value)  # a text that is not empty needs no more questions
    return tuple(sorted(found.items()))


def _other_value(value: AnyValue) -> AttributeValue:
    kind = value.WhichOneof("value")
    if kind == "int_value":
        return value.int_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "double_value":
        return value.double_value
    return text_of(value)


def flat_texts(pairs: Sequence[KeyValue], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Names and texts; maps are taken apart, so that `{"a": {"b": 1}}` is found as `a_b`. Raises E0606."""
    check_count(len(pairs), VALUES_MAX, "attributes of one thing")
    for pair in pairs:
        value = pair.value
        text = value.string_value
        if text:
            yield f"{prefix}{pair.key}" if prefix else pair.key, text
        elif value.WhichOneof("value") == "kvlist_value" and depth < _DEPTH_MAX:
            yield from flat_texts(value.kvlist_value.values, f"{prefix}{pair.key}_", depth + 1)
        else:
            yield f"{prefix}{pair.key}", text_of(value)
