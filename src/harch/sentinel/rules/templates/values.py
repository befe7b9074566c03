"""What can a template hold, and how does Go print it?

Truth, kinds, fields and comparison as Go has them; `%v` and `printf`.
"""

# harch: pure

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import ClassVar

from harch.base.errors import HarchError
from harch.sentinel.rules.templates.syntax import character

# What can a template hold? Go's values in Python's clothes: truth, kinds, fields, comparison.
#
# Strings, integers, floats and booleans are Python's own. A `dict` is a map whose missing keys are empty texts, a
# list is
# a slice, and a `Struct` has named fields and methods; asking it for others is an error, as in Go.


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
    return HarchError("E0641", what, hint="docs/sentinel/rules.md lists the values and functions")


# How does Go print a value? `%v` and `printf`, for the kinds of values that templates meet.


WIDTH_MAX = 1_000  # of `%50d`; Go allows a million, which one annotation can turn into megabytes
PRECISION_MAX = 100

_VERB = re.compile(
    r"%(?P<flags>[+\-# 0]*)(?P<width>\d+|\*)?(?P<point>\.(?P<precision>\d+|\*)?)?(?P<verb>.)?",
    re.DOTALL,
)
_EXPONENT_FROM = 6  # `%v` of a float without precision: from 1e+06 on, and below 1e-04


def show(value: object) -> str:
    """`%v`: what an action writes."""
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return show_float(value)
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{show(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list | tuple):
        return "[" + " ".join(show(item) for item in value) + "]"
    if isinstance(value, Struct):
        return value.text if value.text is not None else "{" + " ".join(show(v) for v in value.fields.values()) + "}"
    return str(value)


def show_float(value: float, verb: str = "g", precision: int | None = None) -> str:
    """A float as Go's strconv writes it; without a precision, with the fewest digits that read back equal."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    kind = verb.lower()
    text = _shortest(value, kind) if precision is None else f"{value:.{min(precision, PRECISION_MAX)}{kind}}"
    return text.upper() if verb.isupper() else text


def _shortest(value: float, kind: str) -> str:
    sign, digit_tuple, power = Decimal(repr(value)).as_tuple()
    digits = "".join(map(str, digit_tuple)).lstrip("0")
    trimmed = digits.rstrip("0")
    exponent = len(digits) - 1 + int(power) if digits else 0
    minus = "-" if sign else ""
    if kind == "e" or (kind == "g" and not -4 <= exponent < _EXPONENT_FROM and trimmed):
        tail = f".{trimmed[1:]}" if len(trimmed) > 1 else ""
        return f"{minus}{trimmed[:1] or '0'}{tail}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if not trimmed:
        return f"{minus}0"
    return f"{minus}{Decimal(trimmed).scaleb(exponent - len(trimmed) + 1):f}"


def sprint(values: Sequence[object]) -> str:
    """`print`: spaces between operands when neither is a text."""
    parts: list[str] = []
    for at, value in enumerate(values):
        if at and not isinstance(value, str) and not isinstance(values[at - 1], str):
            parts.append(" ")
        parts.append(show(value))
    return "".join(parts)


def sprintf(form: str, values: Sequence[object]) -> str:
    """`printf`. Mistakes appear in the text, as in Go: `%!d(float64=3.5)`."""
    pending = list(values)

    def number(text: str | None, limit: int) -> int | None:
        if text != "*":
            return min(int(text), limit) if text else None
        taken = pending.pop(0) if pending else 0
        return max(-limit, min(taken, limit)) if isinstance(taken, int) else 0

    def replace(match: re.Match[str]) -> str:
        verb, flags = match["verb"], match["flags"]
        if verb is None:
            return "%!(NOVERB)"
        width = number(match["width"], WIDTH_MAX)
        precision = number(match["precision"], PRECISION_MAX) if match["point"] else None
        if match["point"] and precision is None:
            precision = 0
        if verb == "%":
            return "%"
        if not pending:
            return f"%!{verb}(MISSING)"
        value = pending.pop(0)
        text = _verb(value, verb, flags, precision)
        if text is None:
            return f"%!{verb}({type_name(value)}={show(value)})" if value is not None else f"%!{verb}(<nil>)"
        return _padded(text, flags, width, is_number=isinstance(value, int | float))

    result = _VERB.sub(replace, form)
    if pending:
        result += f"%!(EXTRA {', '.join(f'{type_name(value)}={show(value)}' for value in pending)})"
    return result


def _verb(value: object, verb: str, flags: str, precision: int | None) -> str | None:
    """The text without padding; None where the verb does not fit the value."""
    if verb == "T":
        return type_name(value)
    if verb == "v":
        flags = flags.replace("+", "")  # `%+v` asks for names of fields and not for signs
    if isinstance(value, bool):
        return show(value) if verb in "tv" else None
    if isinstance(value, int):
        text = _integer(value, verb, flags)
        return _signed(text, flags) if text is not None and verb not in "cqU" else text
    if isinstance(value, float):
        if verb not in "vgGfFeE":
            return None
        shape = "g" if verb == "v" else verb
        digits = 6 if precision is None and shape in "fFeE" else precision
        return _signed(show_float(value, shape, digits), flags)
    if isinstance(value, str):
        return _text(value, verb, flags, precision)
    return show(value) if verb in "vs" else None


def _integer(value: int, verb: str, flags: str) -> str | None:
    match verb:
        case "d" | "v":
            return str(value)
        case "x" | "X" | "o" | "b":
            prefix = {"x": "0x", "X": "0X", "o": "0", "b": "0b"}[verb] if "#" in flags else ""
            return ("-" if value < 0 else "") + prefix + format(abs(value), verb)
        case "c" | "q" | "U" if 0 <= value < 0x110000:
            return {"c": character(value), "q": f"'{character(value)}'", "U": f"U+{value:04X}"}[verb]
        case _:
            return None


def _text(value: str, verb: str, flags: str, precision: int | None) -> str | None:
    cut = value if precision is None else value[:precision]
    match verb:
        case "s" | "v":
            return cut
        case "q":
            return f"`{cut}`" if "#" in flags and "`" not in cut else json.dumps(cut, ensure_ascii=False)
        case "x" | "X":
            digits = cut.encode().hex()
            return digits.upper() if verb == "X" else digits
        case _:
            return None


def _signed(text: str, flags: str) -> str:
    if text[:1] in "+-" or text == "NaN":
        return text
    return "+" + text if "+" in flags else " " + text if " " in flags else text


def _padded(text: str, flags: str, width: int | None, *, is_number: bool) -> str:
    if width is None or len(text) >= abs(width):
        return text
    if "-" in flags or width < 0:
        return text.ljust(abs(width))
    if "0" in flags and is_number and text[-1:].isdigit():
        sign = text[0] if text[0] in "+- " else ""
        return sign + text[len(sign) :].rjust(width - len(sign), "0")
    return text.rjust(width)
