"""Is it working time? Named sets of times of day, weekdays, days, months and years, in a place's own time."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from harch.base.errors import HarchError

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
MONTHS = tuple(name.lower() for name in calendar.month_name)[1:]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00")

Span = tuple[int, int]


class TimeSpec(Struct, frozen=True, kw_only=True):
    """All conditions that are given must hold; of each, one of its ranges."""

    minutes: tuple[Span, ...] = ()  # of the day; the end is not part of it
    weekdays: tuple[Span, ...] = ()  # sunday is 0
    days: tuple[Span, ...] = ()  # of the month; negative ones count from its end
    months: tuple[Span, ...] = ()
    years: tuple[Span, ...] = ()
    zone: str = "UTC"

    def contains(self, now_ms: int) -> bool:
        moment = (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(zone_of(self.zone))
        if self.minutes and not any(s <= moment.hour * 60 + moment.minute < e for s, e in self.minutes):
            return False
        if self.days and not any(_day_in(span, moment) for span in self.days):
            return False
        checks = ((self.weekdays, moment.isoweekday() % 7), (self.months, moment.month), (self.years, moment.year))
        return all(not spans or any(s <= value <= e for s, e in spans) for spans, value in checks)


class TimeInterval(Struct, frozen=True, kw_only=True):
    name: str
    specs: tuple[TimeSpec, ...]

    def contains(self, now_ms: int) -> bool:
        return any(spec.contains(now_ms) for spec in self.specs)


def _day_in(span: Span, moment: datetime) -> bool:
    length = calendar.monthrange(moment.year, moment.month)[1]
    first, last = (day if day > 0 else length + day + 1 for day in span)
    return max(first, 1) <= moment.day <= min(last, length) if first <= length else False


def zone_of(name: str) -> tzinfo:
    """Raises E0643 for a zone that nobody knows."""
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise HarchError("E0643", f"`{name}` is not a time zone", hint="write e.g. `Africa/Casablanca`") from error


def parse_minutes(start: str, end: str) -> Span:
    span = (_minute(start), _minute(end))
    if span[0] >= span[1]:
        raise HarchError("E0643", f"`{start}` is not before `{end}`", hint="split a span over midnight into two")
    return span


def _minute(text: str) -> int:
    if _TIME.fullmatch(text) is None:
        raise HarchError("E0643", f"`{text}` is not a time of day", hint="write e.g. `08:30` or `24:00`")
    hour, minute = text.split(":")
    return int(hour) * 60 + int(minute)


def parse_weekdays(text: str) -> Span:
    return _ordered(text, [_named(part, WEEKDAYS, 0) for part in _parts(text)])


def parse_months(text: str) -> Span:
    numbers = [int(part) if part.isdecimal() else _named(part, MONTHS, 1) for part in _parts(text)]
    return _within(text, _ordered(text, numbers), 1, 12)


def parse_days(text: str) -> Span:
    first, last = _numbers(text)
    if 0 in (first, last) or not (-31 <= first <= 31 and -31 <= last <= 31) or (first < 0 < last):
        raise HarchError("E0643", f"`{text}` are not days of a month", hint="write e.g. `1:5`, `15` or `-3:-1`")
    if (first < 0) == (last < 0) and first > last:
        raise HarchError("E0643", f"`{text}` ends before it begins", hint="write the earlier day first")
    return first, last


def parse_years(text: str) -> Span:
    return _within(text, _ordered(text, list(_numbers(text))), 1, 9999)


def _parts(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(":", 1)]


def _named(text: str, names: Sequence[str], first: int) -> int:
    if text not in names:
        raise HarchError("E0643", f"`{text}` is not one of {', '.join(names)}", hint="write the name in full")
    return names.index(text) + first


def _numbers(text: str) -> Span:
    parts = _parts(text)
    if not all(re.fullmatch(r"-?\d{1,4}", part) for part in parts):
        raise HarchError("E0643", f"`{text}` is not a range of numbers", hint="write e.g. `1:5`")
    return int(parts[0]), int(parts[-1])


def _ordered(text: str, numbers: list[int]) -> Span:
    if numbers[0] > numbers[-1]:
        raise HarchError("E0643", f"`{text}` ends before it begins", hint="write the earlier one first")
    return numbers[0], numbers[-1]


def _within(text: str, span: Span, least: int, most: int) -> Span:
    if not least <= span[0] <= span[1] <= most:
        raise HarchError("E0643", f"`{text}` is not within {least} and {most}", hint="mend the range")
    return span
