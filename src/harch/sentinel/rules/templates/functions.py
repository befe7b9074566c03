"""Which functions does every template have? Go's own; those of alerts are in `alert_functions`."""

# harch: pure

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harch.sentinel.rules.templates.values import as_text, equal, failed, less, sprint, sprintf, truth, type_name

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


def query_escaped(text: str) -> str:
    content = text.encode(errors="replace")
    return "".join(chr(byte) if byte in _SAFE else "+" if byte == 0x20 else f"%{byte:02X}" for byte in content)


ANY_NUMBER = 1_000


@dataclass(frozen=True, slots=True)
class Function:
    """A function of templates and how many arguments it takes."""

    call: Callable[..., object]
    least: int
    most: int

    @classmethod
    def of(cls, call: Callable[..., object], least: int, most: int | None = None) -> Function:
        return cls(call, least, least if most is None else most)


def _equal_any(first: object, *others: object) -> bool:
    return any(equal(first, other) for other in others)


def _length(value: object) -> int:
    if not isinstance(value, str | list | tuple | dict):
        raise failed(f"len of type {type_name(value)}")
    return len(value.encode()) if isinstance(value, str) else len(value)


def _index(value: object, *keys: object) -> object:
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key, "")
        elif isinstance(value, list | tuple | str) and isinstance(key, int) and not isinstance(key, bool):
            content = value.encode() if isinstance(value, str) else value
            if not 0 <= key < len(content):
                raise failed(f"index out of range: {key}")
            value = content[key]
        else:
            raise failed(f"can't index item of type {type_name(value)} by {type_name(key)}")
    return value


def _slice(value: object, *bounds: object) -> object:
    if not isinstance(value, str | list | tuple):
        raise failed(f"can't slice item of type {type_name(value)}")
    places = [bound for bound in bounds if isinstance(bound, int)]
    start, stop = places[0] if places else 0, places[1] if len(places) > 1 else len(value)
    if len(places) != len(bounds) or not 0 <= start <= stop <= len(value):
        raise failed("slice index out of range")
    return value[start:stop]


def _javascript(text: object) -> str:
    quoted = sprint([text])
    for plain, escaped in (("\\", "\\\\"), ("'", "\\'"), ('"', '\\"'), ("<", "\\u003C"), (">", "\\u003E")):
        quoted = quoted.replace(plain, escaped)
    return quoted.replace("&", "\\u0026").replace("=", "\\u003D").replace("\n", "\\u000A").replace("\r", "\\u000D")


def _html(*values: object) -> str:
    return html.escape(sprint(values)).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


# `and` and `or` are not here: they do not evaluate what they do not need, so the runner has them.
GO_FUNCTIONS: Mapping[str, Function] = {
    "eq": Function.of(_equal_any, 2, ANY_NUMBER),
    "ne": Function.of(lambda left, right: not equal(left, right), 2),
    "lt": Function.of(less, 2),
    "le": Function.of(lambda left, right: less(left, right) or equal(left, right), 2),
    "gt": Function.of(lambda left, right: not less(left, right) and not equal(left, right), 2),
    "ge": Function.of(lambda left, right: not less(left, right), 2),
    "not": Function.of(lambda value: not truth(value), 1),
    "len": Function.of(_length, 1),
    "index": Function.of(_index, 1, ANY_NUMBER),
    "slice": Function.of(_slice, 1, 3),
    "print": Function.of(lambda *values: sprint(values), 0, ANY_NUMBER),
    "printf": Function.of(lambda form, *values: sprintf(as_text(form, "printf"), values), 1, ANY_NUMBER),
    "println": Function.of(lambda *values: " ".join(sprint([value]) for value in values) + "\n", 0, ANY_NUMBER),
    "html": Function.of(_html, 0, ANY_NUMBER),
    "js": Function.of(_javascript, 1),
    "urlquery": Function.of(lambda *values: query_escaped(sprint(values)), 0, ANY_NUMBER),
}
