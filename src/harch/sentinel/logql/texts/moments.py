"""How does Go write a time? Layouts such as `2006-01-02T15:04:05.000Z07:00`, for templates."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from harch.base.errors import HarchError
from harch.sentinel.rules.templates.values import Struct, failed

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
        raise failed(f"time or zone `{zone[:40]}` is not known") from problem

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
        raise HarchError("E0641", f"`{text[:40]}` is no time in the layout `{layout[:40]}`") from problem
    passed = moment - _EPOCH
    return moment_of((passed.days * 86_400 + passed.seconds) * _NS + passed.microseconds * 1000)
