"""What can a template hold? Go's values in Python's clothes: truth, kinds, fields, comparison.

Strings, integers, floats and booleans are Python's own. A `dict` is a map whose missing keys are empty texts, a list is
a slice, and a `Struct` has named fields and methods; asking it for others is an error, as in Go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from harch.base.errors import HarchError


@dataclass(frozen=True, slots=True)
class Struct:
    name: str  # of the type, for messages
    fields: Mapping[str, object]
    methods: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    text: str | None = None  # how it prints, where it does not print its fields


class Map(dict[str, object]):
    """A map with methods of its own type, which come before its keys."""

    methods: ClassVar[Mapping[str, Callable[..., object]]] = {}


class Items(list[object]):
    """A list with methods of its own type."""

    methods: ClassVar[Mapping[str, Callable[..., object]]] = {}


def type_name(value: object) -> str:
    """Go's name of the type, as its messages show it."""
    match value:
        case None:
            return "nil"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float64"
        case str():
            return "string"
        case dict():
            return "map[string]string"
        case list() | tuple():
            return "[]interface {}"
        case Struct():
            return value.name
        case _:
            return type(value).__name__


def truth(value: object) -> bool:
    """Empty values are false: 0, "", nil, false, and maps and lists without elements. Structs are always true."""
    return True if isinstance(value, Struct) else bool(value)


def field_of(value: object, name: str) -> object:
    """`value.name`. A field that is a method is called by the runner, which has its arguments."""
    if isinstance(value, Map | Items) and name in value.methods:
        return partial(value.methods[name], value)
    if isinstance(value, dict):
        return value.get(name, "")
    if isinstance(value, Struct):
        if name in value.fields:
            return value.fields[name]
        if name in value.methods:
            return value.methods[name]
    if value is None:
        raise failed(f"nil data; no entry for key `{name}`")
    raise failed(f"can't evaluate field {name} in type {type_name(value)}")


def kind_of(value: object) -> str:
    """The basic kind, for comparisons. Integers and floats do not compare with each other in Go."""
    kind = type_name(value)
    if kind not in ("bool", "int", "float64", "string"):
        raise failed("invalid type for comparison")
    return kind


def equal(left: object, right: object) -> bool:
    if left is None or right is None:
        return left is right
    if kind_of(left) != kind_of(right):
        raise failed("incompatible types for comparison")
    return left == right


def less(left: object, right: object) -> bool:
    kind = kind_of(left)
    if kind != kind_of(right):
        raise failed("incompatible types for comparison")
    if kind == "bool":
        raise failed("invalid type for comparison")
    return left < right  # type: ignore[operator, no-any-return]  # both are numbers, or both are texts


def as_text(value: object, function: str) -> str:
    if not isinstance(value, str):
        raise failed(f"wrong type for value in {function}; expected string; got {type_name(value)}")
    return value


def as_float(value: object, function: str) -> float:
    """A number, or a text that is one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise failed(f"can't convert {type_name(value)} to float in {function}")
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise failed(f"`{str(value)[:40]}` is not a number in {function}") from error


def failed(what: str) -> HarchError:
    return HarchError("E0641", what, hint="docs/sentinel/rules.md says which values and functions there are")
