"""Which functions do line_format and label_format have beside Go's own? Those of Loki."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from harch.sentinel.logql.syntax.units import duration_ns, size_bytes
from harch.sentinel.logql.texts.moments import formatted, moment_of, ns_of, parsed_date
from harch.sentinel.model.matchers import whole_text_pattern
from harch.sentinel.rules.templates.alert_functions import replace_all, title
from harch.sentinel.rules.templates.escaping import query_escaped
from harch.sentinel.rules.templates.functions import ANY_NUMBER, GO_FUNCTIONS, Function
from harch.sentinel.rules.templates.go_format import sprint
from harch.sentinel.rules.templates.values import failed, truth

PADDING_MAX = 10_000  # of repeat, indent and their like: one short template must not make megabytes


_HEX = re.compile(rb"%([0-9a-fA-F]{2})")


def _text(value: object) -> str:
    return value if isinstance(value, str) else sprint([value])


def _whole(value: object) -> int:
    try:
        return int(float(value)) if isinstance(value, str) else int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError) as problem:
        raise failed(f"`{_text(value)[:40]}` is no whole number") from problem


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as problem:
        raise failed(f"`{_text(value)[:40]}` is no number") from problem


def _bounded(count: object) -> int:
    number = _whole(count)
    if number > PADDING_MAX:
        raise failed(f"more than {PADDING_MAX} characters are asked for")
    return max(number, 0)


def _truncated(length: object, text: object) -> str:
    """A negative length takes from the end."""
    count, shown = _whole(length), _text(text)
    return shown[:count] if count >= 0 else shown[count:]


def _substring(start: object, end: object, text: object) -> str:
    begin, stop, shown = _whole(start), _whole(end), _text(text)
    if begin < 0:
        return shown[: max(stop, 0)]
    return shown[begin:] if stop < 0 or stop > len(shown) else shown[begin:stop]


def _replaced(old: object, new: object, text: object) -> str:
    return _text(text).replace(_text(old), _text(new))


def _indented(count: object, text: object) -> str:
    padding = " " * _bounded(count)
    return padding + _text(text).replace("\n", "\n" + padding)


def _repeated(count: object, text: object) -> str:
    shown = _text(text)
    if _whole(count) * len(shown) > PADDING_MAX:
        raise failed(f"more than {PADDING_MAX} characters are asked for")
    return shown * max(_whole(count), 0)


def _aligned(count: object, text: object, *, left: bool) -> str:
    width, shown = _bounded(count), _text(text)
    if left:
        return shown[:width].ljust(width)
    return shown[-width:].rjust(width) if width else ""


def _literal_replaced(pattern: object, text: object, replacement: object) -> str:
    return replace_all(_text(pattern), _text(replacement).replace("$", "$$"), _text(text))


def _counted(pattern: object, text: object) -> int:
    compiled: Any = whole_text_pattern(_text(pattern))
    return sum(1 for _ in compiled.finditer(_text(text)))


def _decoded(text: object) -> str:
    try:
        return base64.b64decode(_text(text), validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError) as problem:
        raise failed("illegal base64 data") from problem


def _unescaped(text: object) -> str:
    plain = _text(text).replace("+", " ").encode()
    return _HEX.sub(lambda found: bytes([int(found[1], 16)]), plain).decode("utf-8", "replace")


def _from_json(text: object) -> object:
    try:
        return json.loads(_text(text))
    except (ValueError, RecursionError) as problem:
        raise failed("this is no JSON") from problem


def _seconds(text: object) -> float:
    ns = duration_ns(_text(text))
    if ns is None:
        raise failed(f"`{_text(text)[:40]}` is no duration")
    return ns / 1e9


def _size(text: object) -> float:
    found = size_bytes(_text(text))
    if found is None:
        raise failed(f"`{_text(text)[:40]}` is no size")
    return float(found)


def _divided(left: object, right: object) -> int:
    divisor = _whole(right)
    if not divisor:
        raise failed("division by zero")
    return math.trunc(_whole(left) / divisor)


def _remainder(left: object, right: object) -> int:
    divisor = _whole(right)
    if not divisor:
        raise failed("division by zero")
    return int(math.fmod(_whole(left), divisor))


def _float_divided(left: object, right: object) -> float:
    divisor = _float(right)
    if not divisor:
        raise failed("division by zero")
    return _float(left) / divisor


def _folded(combine: Callable[[Any, Any], Any], convert: Callable[[object], Any]) -> Callable[..., object]:
    def call(first: object, *others: object) -> object:
        result = convert(first)
        for other in others:
            result = combine(result, convert(other))
        return result

    return call


def _rounded(value: object, places: object = 0) -> float:
    digits = _whole(places)
    factor = 10.0 ** max(-15, min(digits, 15))
    number = _float(value) * factor
    return (math.floor(number + 0.5) if number >= 0 else math.ceil(number - 0.5)) / factor


def _edge(of: Callable[[float], int]) -> Callable[[object], float]:
    def call(value: object) -> float:
        number = _float(value)
        return float(of(number)) if math.isfinite(number) else number

    return call


def _epoch(text: object, unit_ns: int) -> str:
    return str(ns_of(text, "unixEpoch") // unit_ns)


def _from_epoch(text: object) -> object:
    """Seconds, milliseconds, microseconds or nanoseconds, told apart by the number of digits."""
    digits = _text(text).strip()
    powers = {5: 86_400 * 10**9, 10: 10**9, 13: 10**6, 16: 10**3, 19: 1}
    if not digits.isdecimal() or len(digits) not in powers:
        raise failed(f"unable to parse time '{digits[:40]}'")
    return moment_of(int(digits) * powers[len(digits)])


_STRINGS = {
    "lower": Function.of(lambda text: _text(text).lower(), 1),
    "upper": Function.of(lambda text: _text(text).upper(), 1),
    "ToLower": Function.of(lambda text: _text(text).lower(), 1),
    "ToUpper": Function.of(lambda text: _text(text).upper(), 1),
    "title": Function.of(lambda text: title(_text(text)), 1),
    "trim": Function.of(lambda text: _text(text).strip(), 1),
    "TrimSpace": Function.of(lambda text: _text(text).strip(), 1),
    "Trim": Function.of(lambda text, cut: _text(text).strip(_text(cut)), 2),
    "TrimLeft": Function.of(lambda text, cut: _text(text).lstrip(_text(cut)), 2),
    "TrimRight": Function.of(lambda text, cut: _text(text).rstrip(_text(cut)), 2),
    "TrimPrefix": Function.of(lambda text, cut: _text(text).removeprefix(_text(cut)), 2),
    "TrimSuffix": Function.of(lambda text, cut: _text(text).removesuffix(_text(cut)), 2),
    "trimAll": Function.of(lambda cut, text: _text(text).strip(_text(cut)), 2),
    "trimPrefix": Function.of(lambda cut, text: _text(text).removeprefix(_text(cut)), 2),
    "trimSuffix": Function.of(lambda cut, text: _text(text).removesuffix(_text(cut)), 2),
    "trunc": Function.of(_truncated, 2),
    "substr": Function.of(_substring, 3),
    "replace": Function.of(_replaced, 3),
    "Replace": Function.of(lambda text, old, new, count: _text(text).replace(_text(old), _text(new), _whole(count)), 4),
    "contains": Function.of(lambda part, text: _text(part) in _text(text), 2),
    "hasPrefix": Function.of(lambda part, text: _text(text).startswith(_text(part)), 2),
    "hasSuffix": Function.of(lambda part, text: _text(text).endswith(_text(part)), 2),
    "indent": Function.of(_indented, 2),
    "nindent": Function.of(lambda count, text: "\n" + _indented(count, text), 2),
    "repeat": Function.of(_repeated, 2),
    "alignLeft": Function.of(lambda count, text: _aligned(count, text, left=True), 2),
    "alignRight": Function.of(lambda count, text: _aligned(count, text, left=False), 2),
    "regexReplaceAll": Function.of(lambda pattern, text, new: replace_all(_text(pattern), _text(new), _text(text)), 3),
    "regexReplaceAllLiteral": Function.of(_literal_replaced, 3),
    "count": Function.of(_counted, 2),
    "default": Function.of(lambda default, value="": value if truth(value) else default, 1, 2),
    "b64enc": Function.of(lambda text: base64.b64encode(_text(text).encode()).decode(), 1),
    "b64dec": Function.of(_decoded, 1),
    "urlencode": Function.of(lambda text: query_escaped(_text(text)), 1),
    "urldecode": Function.of(_unescaped, 1),
    "fromJson": Function.of(_from_json, 1),
}
_NUMBERS = {
    "int": Function.of(_whole, 1),
    "float64": Function.of(_float, 1),
    "add": Function.of(_folded(lambda left, right: left + right, _whole), 1, ANY_NUMBER),
    "sub": Function.of(lambda left, right: _whole(left) - _whole(right), 2),
    "mul": Function.of(_folded(lambda left, right: left * right, _whole), 1, ANY_NUMBER),
    "div": Function.of(_divided, 2),
    "mod": Function.of(_remainder, 2),
    "addf": Function.of(_folded(lambda left, right: left + right, _float), 1, ANY_NUMBER),
    "subf": Function.of(_folded(lambda left, right: left - right, _float), 1, ANY_NUMBER),
    "mulf": Function.of(_folded(lambda left, right: left * right, _float), 1, ANY_NUMBER),
    "divf": Function.of(_folded(_float_divided, _float), 1, ANY_NUMBER),
    "max": Function.of(_folded(max, _whole), 1, ANY_NUMBER),
    "min": Function.of(_folded(min, _whole), 1, ANY_NUMBER),
    "maxf": Function.of(_folded(max, _float), 1, ANY_NUMBER),
    "minf": Function.of(_folded(min, _float), 1, ANY_NUMBER),
    "ceil": Function.of(_edge(math.ceil), 1),
    "floor": Function.of(_edge(math.floor), 1),
    "round": Function.of(_rounded, 1, 2),
    "bytes": Function.of(_size, 1),
    "duration": Function.of(_seconds, 1),
    "duration_seconds": Function.of(_seconds, 1),
}
_TIMES = {
    "date": Function.of(lambda layout, moment: formatted(ns_of(moment, "date"), _text(layout)), 2),
    "toDate": Function.of(lambda layout, text: parsed_date(_text(layout), _text(text)), 2),
    "toDateInZone": Function.of(lambda layout, zone, text: parsed_date(_text(layout), _text(text), _text(zone)), 3),
    "unixEpoch": Function.of(lambda moment: _epoch(moment, 10**9), 1),
    "unixEpochMillis": Function.of(lambda moment: _epoch(moment, 10**6), 1),
    "unixEpochNanos": Function.of(lambda moment: _epoch(moment, 1), 1),
    "unixToTime": Function.of(_from_epoch, 1),
}
LINE_FUNCTIONS: Mapping[str, Function] = {**GO_FUNCTIONS, **_STRINGS, **_NUMBERS, **_TIMES}
LINE_FUNCTION_NAMES = frozenset({*LINE_FUNCTIONS, "__line__", "__timestamp__", "now"})
