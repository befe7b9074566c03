"""What do attributes say? Values of any kind as text, and where a message comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import orjson

from harch.sentinel.collect.parts import check_count

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


def texts(attributes: Iterable[KeyValue]) -> list[tuple[str, str]]:
    return [(item.key, text_of(item.value)) for item in attributes]


def origin(attributes: Iterable[KeyValue]) -> tuple[str, str, list[tuple[str, str]]]:
    """`job`, `instance` and all other attributes of a resource."""
    found = dict(texts(attributes))
    name, space = found.pop("service.name", ""), found.pop("service.namespace", "")
    instance = found.pop("service.instance.id", "")
    job = f"{space}/{name}" if space and name else name
    return job, instance, list(found.items())


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)
