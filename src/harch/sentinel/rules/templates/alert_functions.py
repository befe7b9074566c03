"""Which functions do the templates of rules have beside Go's? Those of Prometheus."""

# harch: pure

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from harch.sentinel.model.durations import parse_duration_ms
from harch.sentinel.model.labels import whole_text_pattern
from harch.sentinel.rules.definitions import Evaluate
from harch.sentinel.rules.templates.functions import ANY_NUMBER, GO_FUNCTIONS, Function, query_escaped
from harch.sentinel.rules.templates.values import Struct, as_float, as_text, failed, field_of, show_float

_LARGE, _SMALL = "kMGTPEZY", "munpfazy"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def humanize(value: float) -> str:
    """With metric prefixes: 1234567 is 1.235M."""
    if value == 0 or not math.isfinite(value):
        return _four(value)
    if abs(value) >= 1:
        return _scaled_down(value, 1000.0, tuple(_LARGE))
    return _scaled_up(value)


def humanize1024(value: float) -> str:
    """With binary prefixes: 1048576 is 1Mi."""
    if abs(value) <= 1 or not math.isfinite(value):
        return _four(value)
    return _scaled_down(value, 1024.0, tuple(prefix + "i" for prefix in _LARGE))


def humanize_duration(seconds: float) -> str:
    """899999 is `10d 9h 59m 59s`, 0.0123 is `12.3ms`."""
    if not math.isfinite(seconds):
        return _four(seconds)
    if seconds == 0:
        return "0s"
    if abs(seconds) < 1:
        return _scaled_up(seconds) + "s"
    sign, rest = ("-", -seconds) if seconds < 0 else ("", seconds)
    minutes_all, second = divmod(int(rest), 60)
    hours_all, minute = divmod(minutes_all, 60)
    day, hour = divmod(hours_all, 24)
    if day:
        return f"{sign}{day}d {hour}h {minute}m {second}s"
    if hour:
        return f"{sign}{hour}h {minute}m {second}s"
    if minute:
        return f"{sign}{minute}m {second}s"
    return f"{sign}{_four(rest)}s"


def humanize_percentage(ratio: float) -> str:
    return f"{_four(ratio * 100)}%"


def humanize_timestamp(seconds: float) -> str:
    """As Go prints a time: `2009-02-13 23:31:30.5 +0000 UTC`, to the millisecond."""
    if not math.isfinite(seconds):
        return _four(seconds)
    try:
        moment = _EPOCH + timedelta(milliseconds=int(seconds * 1000))
    except OverflowError as error:
        raise failed(f"{seconds} is not a printable time") from error
    fraction = f".{moment.microsecond // 1000:03d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} +0000 UTC"


def _four(value: float) -> str:
    """Four significant digits."""
    return show_float(value, "g", 4)


def _scaled_down(value: float, base: float, prefixes: tuple[str, ...]) -> str:
    prefix = ""
    for candidate in prefixes:
        if abs(value) < base:
            break
        prefix = candidate
        value /= base
    return _four(value) + prefix


def _scaled_up(value: float) -> str:
    prefix = ""
    for candidate in _SMALL:
        if abs(value) >= 1:
            break
        prefix = candidate
        value *= 1000
    return _four(value) + prefix


QUERIES_MAX = 20  # of one text; each may be as expensive as the rule itself
PATH_PREFIX = "/"

_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")


def strip_port(address: str) -> str:
    host, port = _host_and_port(address)
    return host if port is not None else address


def strip_domain(address: str) -> str:
    """`web-1.example.org:80` becomes `web-1:80`; addresses in numbers stay."""
    host, port = _host_and_port(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        short = host.split(".")[0]
        return f"{short}:{port}" if port else short
    return address


def _host_and_port(address: str) -> tuple[str, str | None]:
    if address.startswith("["):
        host, closing, rest = address[1:].partition("]")
        return (host, rest[1:]) if closing and rest.startswith(":") else (address, None)
    host, colon, port = address.rpartition(":")
    return (host, port) if colon and ":" not in host else (address, None)


def search(pattern: str, text: str) -> bool:
    return whole_text_pattern(pattern).search(text) is not None


def replace_all(pattern: str, replacement: str, text: str) -> str:
    """Go's ReplaceAllString: `$1`, `$name` and `${name}` in the replacement, `$$` for a dollar."""
    compiled: Any = whole_text_pattern(pattern)

    def expanded(match: Any) -> str:
        def reference(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            if name is None:
                return "$"
            group: Any = int(name) if name.isdecimal() else name
            known = group <= compiled.groups if isinstance(group, int) else group in compiled.groupindex
            return (match.group(group) or "") if known else ""

        return _REFERENCE.sub(reference, replacement)

    return str(compiled.sub(expanded, text))


def title(text: str) -> str:
    """The first letter of each word in upper case; the others stay as they are."""
    return re.sub(r"(?<![\w'])[^\W\d_]", lambda found: found[0].upper(), text)


def link(expression: str, tab: int) -> str:
    return f"/graph?g0.expr={query_escaped(expression)}&g0.tab={tab}"


def result(labels: Mapping[str, str], value: float) -> Struct:
    """One element of what `query` answers."""
    return Struct("template.sample", {"Labels": dict(labels), "Value": value})


def _first(results: object) -> object:
    if not isinstance(results, list) or not results:
        raise failed("first() called on vector with no elements")
    return results[0]


def _sorted_by(label: str, results: object) -> list[object]:
    if not isinstance(results, list):
        raise failed("sortByLabel needs the result of a query")
    return sorted(results, key=lambda found: _label(label, found))


def _label(name: str, found: object) -> str:
    labels = field_of(found, "Labels")
    return str(labels.get(name, "")) if isinstance(labels, dict) else ""


def _of_text(name: str, call: Callable[..., object], count: int = 1) -> Function:
    return Function.of(lambda *values: call(*(as_text(value, name) for value in values)), count)


def _of_number(name: str, call: Callable[[float], object]) -> Function:
    return Function.of(lambda value: call(as_float(value, name)), 1)


def _arguments(*values: object) -> dict[str, object]:
    return {f"arg{place}": value for place, value in enumerate(values)}


TEXT_FUNCTIONS: Mapping[str, Function] = {
    "toUpper": _of_text("toUpper", str.upper),
    "toLower": _of_text("toLower", str.lower),
    "title": _of_text("title", title),
    "match": _of_text("match", search, 2),
    "reReplaceAll": _of_text("reReplaceAll", replace_all, 3),
    "safeHtml": _of_text("safeHtml", str),
    "humanizeDuration": _of_number("humanizeDuration", humanize_duration),
}

_RULE_FUNCTIONS: Mapping[str, Function] = {
    **GO_FUNCTIONS,
    **TEXT_FUNCTIONS,
    "humanize": _of_number("humanize", humanize),
    "humanize1024": _of_number("humanize1024", humanize1024),
    "humanizePercentage": _of_number("humanizePercentage", humanize_percentage),
    "humanizeTimestamp": _of_number("humanizeTimestamp", humanize_timestamp),
    "toTime": _of_number("toTime", humanize_timestamp),
    "toDuration": _of_number("toDuration", humanize_duration),
    "parseDuration": _of_text("parseDuration", lambda text: parse_duration_ms(text) / 1000),
    "first": Function.of(_first, 1),
    "label": Function.of(lambda name, found: _label(as_text(name, "label"), found), 2),
    "value": Function.of(lambda found: field_of(found, "Value"), 1),
    "strvalue": Function.of(lambda found: _label("__value__", found), 1),
    "sortByLabel": Function.of(lambda name, results: _sorted_by(as_text(name, "sortByLabel"), results), 2),
    "args": Function.of(_arguments, 0, ANY_NUMBER),
    "stripPort": _of_text("stripPort", strip_port),
    "stripDomain": _of_text("stripDomain", strip_domain),
    "tableLink": _of_text("tableLink", lambda expression: link(expression, 1)),
    "graphLink": _of_text("graphLink", lambda expression: link(expression, 0)),
    "urlQueryEscape": _of_text("urlQueryEscape", query_escaped),
    "pathPrefix": Function.of(lambda: PATH_PREFIX, 0),
}


def rule_functions(evaluate: Evaluate | None, *, at_ms: int, external_url: str = "") -> Mapping[str, Function]:
    """All functions for one text; `query` asks at the time of the evaluation, a limited number of times."""
    left = QUERIES_MAX

    def query(expression: object) -> list[object]:
        nonlocal left
        left -= 1
        if left < 0:
            raise failed(f"more than {QUERIES_MAX} queries in one template")
        if evaluate is None:
            raise failed("queries are not available here")
        return [result(labels, value) for labels, value in evaluate(as_text(expression, "query"), at_ms)]

    return {
        **_RULE_FUNCTIONS,
        "query": Function.of(query, 1),
        "now": Function.of(lambda: at_ms / 1000, 0),
        "externalURL": Function.of(lambda: external_url, 0),
    }


RULE_FUNCTION_NAMES = frozenset({*rule_functions(None, at_ms=0), "and", "or"})
