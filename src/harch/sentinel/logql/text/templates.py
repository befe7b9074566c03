"""What does a template make of a line?

Templates of Go over labels, with the functions of Loki, and times as Go writes them.
"""

# harch: pure

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from harch.base.errors import HarchError
from harch.sentinel.logql.text.values import duration_ns, size_bytes
from harch.sentinel.model.labels import whole_text_pattern
from harch.sentinel.rules.templates import syntax
from harch.sentinel.rules.templates.alert_functions import replace_all, title
from harch.sentinel.rules.templates.functions import ANY_NUMBER, GO_FUNCTIONS, Function, query_escaped
from harch.sentinel.rules.templates.interpreter import LAZY_FUNCTIONS, run_template
from harch.sentinel.rules.templates.parser import parse_template
from harch.sentinel.rules.templates.values import Struct, failed, sprint, truth

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS = 1_000_000_000
_ELEMENT = re.compile(
    r"January|Jan|Monday|Mon|MST|2006|Z07:00|Z0700|-07:00|-0700|-07|01|02|03|04|05|06|15|PM|pm|_2"
    r"|[.,](?:0+|9+)(?!\d)|1|2|3|4|5"
)
_FORMS = {
    "January": "%B",
    "Jan": "%b",
    "Monday": "%A",
    "Mon": "%a",
    "2006": "%Y",
    "01": "%m",
    "02": "%d",
    "03": "%I",
    "04": "%M",
    "05": "%S",
    "06": "%y",
    "15": "%H",
    "PM": "%p",
}


def moment_of(ns: int) -> Struct:
    """A time as templates hold it."""
    return Struct(
        "time.Time",
        {"ns": ns},
        {
            "Unix": lambda: ns // _NS,
            "UnixNano": lambda: ns,
            "UnixMilli": lambda: ns // 1_000_000,
            "Format": lambda layout: formatted(ns, str(layout)),
        },
        text=formatted(ns, "2006-01-02 15:04:05.999999999 -0700 MST"),
    )


def ns_of(value: object, function: str) -> int:
    if isinstance(value, Struct) and isinstance(ns := value.fields.get("ns"), int):
        return ns
    raise failed(f"wrong type for value in {function}; expected time.Time")


def formatted(ns: int, layout: str, zone: str = "UTC") -> str:
    """Raises E0641 for a zone that is not known, and for times beyond the years 1 to 9999."""
    try:
        moment = (_EPOCH + timedelta(microseconds=ns // 1000)).astimezone(ZoneInfo(zone) if zone != "UTC" else UTC)
    except (OverflowError, ZoneInfoNotFoundError, ValueError, OSError) as problem:
        raise failed(f"unknown time or zone `{zone[:40]}`") from problem

    def element(found: re.Match[str]) -> str:
        return _written(found[0], moment, ns % _NS)

    return _ELEMENT.sub(element, layout)


def _written(element: str, moment: datetime, fraction_ns: int) -> str:
    if element in _FORMS:
        return moment.strftime(_FORMS[element])
    if element[0] in ".,":
        digits = f"{fraction_ns:09d}"[: len(element) - 1].ljust(len(element) - 1, "0")
        if element[1] == "9":
            digits = digits.rstrip("0")
        return f"{element[0]}{digits}" if digits else ""
    match element:
        case "MST":
            return moment.tzname() or "UTC"
        case "pm":
            return moment.strftime("%p").lower()
        case "_2":
            return f"{moment.day:2d}"
        case "1" | "2" | "4" | "5":
            return str({"1": moment.month, "2": moment.day, "4": moment.minute, "5": moment.second}[element])
        case "3":
            return str(moment.hour % 12 or 12)
    return _offset(element, moment)


def _offset(element: str, moment: datetime) -> str:
    seconds = round((moment.utcoffset() or timedelta()).total_seconds())
    if element[0] == "Z" and not seconds:
        return "Z"
    sign, minutes = "-" if seconds < 0 else "+", abs(seconds) // 60
    if element == "-07":
        return f"{sign}{minutes // 60:02d}"
    return f"{sign}{minutes // 60:02d}{':' if ':' in element else ''}{minutes % 60:02d}"


def parsed_date(layout: str, text: str, zone: str = "UTC") -> Struct:
    """`toDate`: the time that a text in a layout means. Raises E0641."""
    pattern = _ELEMENT.sub(lambda found: _FORMS.get(found[0], "%f" if found[0][0] in ".," else found[0]), layout)
    pattern = re.sub(r"Z07:00|Z0700|-07:00|-0700", "%z", pattern)
    try:
        moment = datetime.strptime(text, pattern)  # noqa: DTZ007 - a zone is put in below
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC if zone == "UTC" else ZoneInfo(zone))
    except (ValueError, ZoneInfoNotFoundError, OSError, re.error) as problem:
        raise HarchError("E0641", f"`{text[:40]}` is not a time in the layout `{layout[:40]}`") from problem
    passed = moment - _EPOCH
    return moment_of((passed.days * 86_400 + passed.seconds) * _NS + passed.microseconds * 1000)


# Which functions do line_format and label_format have beside Go's own? Those of Loki.


PADDING_MAX = 10_000  # of repeat, indent and their like: one short template must not make megabytes


_HEX = re.compile(rb"%([0-9a-fA-F]{2})")


def _text(value: object) -> str:
    return value if isinstance(value, str) else sprint([value])


def _whole(value: object) -> int:
    try:
        return int(float(value)) if isinstance(value, str) else int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError) as problem:
        raise failed(f"`{_text(value)[:40]}` is not a whole number") from problem


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as problem:
        raise failed(f"`{_text(value)[:40]}` is not a number") from problem


def _bounded(count: object) -> int:
    number = _whole(count)
    if number > PADDING_MAX:
        raise failed(f"more than {PADDING_MAX} characters requested")
    return max(number, 0)


def _truncated(length: object, text: object) -> str:
    """A negative length takes from the end."""
    count, string = _whole(length), _text(text)
    return string[:count] if count >= 0 else string[count:]


def _substring(start: object, end: object, text: object) -> str:
    begin, stop, string = _whole(start), _whole(end), _text(text)
    if begin < 0:
        return string[: max(stop, 0)]
    return string[begin:] if stop < 0 or stop > len(string) else string[begin:stop]


def _replaced(old: object, new: object, text: object) -> str:
    return _text(text).replace(_text(old), _text(new))


def _indented(count: object, text: object) -> str:
    padding = " " * _bounded(count)
    return padding + _text(text).replace("\n", "\n" + padding)


def _repeated(count: object, text: object) -> str:
    string = _text(text)
    if _whole(count) * len(string) > PADDING_MAX:
        raise failed(f"more than {PADDING_MAX} characters requested")
    return string * max(_whole(count), 0)


def _aligned(count: object, text: object, *, left: bool) -> str:
    width, string = _bounded(count), _text(text)
    if left:
        return string[:width].ljust(width)
    return string[-width:].rjust(width) if width else ""


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
        raise failed("not JSON") from problem


def _seconds(text: object) -> float:
    ns = duration_ns(_text(text))
    if ns is None:
        raise failed(f"`{_text(text)[:40]}` is not a duration")
    return ns / 1e9


def _size(text: object) -> float:
    found = size_bytes(_text(text))
    if found is None:
        raise failed(f"`{_text(text)[:40]}` is not a size")
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


# What does a template make of a line? Go's templates over labels, with the functions of Loki.


@dataclass(frozen=True, slots=True)
class LineTemplate:
    """`pieces` holds texts and, at odd places, names of labels: most templates are no more than that."""

    template: syntax.ParsedTemplate
    pieces: tuple[str, ...] | None
    labels: frozenset[str] | None  # which labels it may read; None: any

    def written(self, labels: Mapping[str, str], line: str, time_ns: int, now_ns: int) -> str:
        """Raises E0641 when the template fails on this line."""
        if self.pieces is not None:
            filled = (labels.get(piece, "") if at % 2 else piece for at, piece in enumerate(self.pieces))
            return "".join(filled)
        functions = {
            **LINE_FUNCTIONS,
            "__line__": Function.of(lambda: line, 0),
            "__timestamp__": Function.of(lambda: moment_of(time_ns), 0),
            "now": Function.of(lambda: moment_of(now_ns), 0),
        }
        return run_template(self.template, dict(labels), functions=functions)


@lru_cache(maxsize=256)
def compiled_template(text: str) -> LineTemplate:
    """Raises E0641 for what is wrong before any line is known."""
    template = parse_template(text, functions=frozenset({*LINE_FUNCTION_NAMES, *LAZY_FUNCTIONS}))
    pieces = _pieces(template)
    return LineTemplate(template, pieces, None if pieces is None else frozenset(pieces[1::2]))


def _pieces(template: syntax.ParsedTemplate) -> tuple[str, ...] | None:
    """Texts and labels in turn; None where the template does anything else."""
    pieces = [""]
    for statement in template.body:
        match statement:
            case syntax.Text(text):
                pieces[-1] += text
            case syntax.ActionNode(syntax.PipeNode((syntax.CommandNode((syntax.Fields((name,)),)),), ())):
                pieces += [name, ""]
            case _:
                return None
    return tuple(pieces)
