"""What does an attribute say?

Its value as text, number or truth, lists and maps as JSON; and where a message comes from.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from harch.sentinel.collect.part_limits import check_count
from harch.sentinel.model.spans import Attributes, AttributeValue

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


VALUES_MAX = 10_000  # of one list or map, and attributes of one thing
_DEPTH_MAX = 16


def text_of(value: AnyValue) -> str:
    """The value as people write it; lists and maps as JSON."""
    plain = plain_value(value)
    if isinstance(plain, str):
        return plain
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, float):
        return _number(plain)
    if plain is None:
        return ""
    return str(plain) if isinstance(plain, int) else orjson.dumps(plain).decode()


def plain_value(value: AnyValue, depth: int = 0) -> Any:
    """The value as Python has it. Bytes become hexadecimal text; what is too deep is left out. Raises E0606."""
    kind = value.WhichOneof("value")
    if kind is None or depth > _DEPTH_MAX:
        return None
    if kind == "array_value":
        check_count(len(value.array_value.values), VALUES_MAX, "values in one list")
        return [plain_value(item, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        check_count(len(value.kvlist_value.values), VALUES_MAX, "values in one map")
        return {item.key: plain_value(item.value, depth + 1) for item in value.kvlist_value.values}
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return getattr(value, kind)


def string_pairs(attributes: Iterable[KeyValue]) -> list[tuple[str, str]]:
    return [(item.key, text_of(item.value)) for item in attributes]


def origin(attributes: Iterable[KeyValue]) -> tuple[str, str, list[tuple[str, str]]]:
    """`job`, `instance` and all other attributes of a resource."""
    found = dict(string_pairs(attributes))
    name, space = found.pop("service.name", ""), found.pop("service.namespace", "")
    instance = found.pop("service.instance.id", "")
    job = f"{space}/{name}" if space and name else name
    return job, instance, list(found.items())


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


# What does an attribute of a log record or span say? Its value as text, number or truth; lists and maps as JSON.


_VALUE_DEPTH_MAX = 8


def attributes_of(pairs: Sequence[KeyValue]) -> Attributes:
    """Sorted by name; of a name that comes twice the last one counts. Raises E0606 for far too many."""
    check_count(len(pairs), VALUES_MAX, "attributes on one object")
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


def flat_strings(pairs: Sequence[KeyValue], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Names and texts; maps are taken apart, so that `{"a": {"b": 1}}` is found as `a_b`. Raises E0606."""
    check_count(len(pairs), VALUES_MAX, "attributes on one object")
    for pair in pairs:
        value = pair.value
        text = value.string_value
        if text:
            yield f"{prefix}{pair.key}" if prefix else pair.key, text
        elif value.WhichOneof("value") == "kvlist_value" and depth < _VALUE_DEPTH_MAX:
            yield from flat_strings(value.kvlist_value.values, f"{prefix}{pair.key}_", depth + 1)
        else:
            yield f"{prefix}{pair.key}", text_of(value)
