"""Who is notified, how, and when?

The configuration of notifications: routes, receivers and their secrets, inhibition, time intervals.
"""

# harch: pure

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct, field

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Matcher

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
        raise HarchError("E0643", f"`{text}` is not within {least} and {most}", hint="correct the range")
    return span


# Where is a password? In a file or a variable that the configuration names, or, not recommended, in its own text.


SECRET_CHARS_MAX = 16_384


class Secret(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reference. What it refers to is read when it is used, so that a new password needs no restart."""

    file: str = ""
    variable: str = ""
    literal: str = ""

    def __repr__(self) -> str:
        return f"Secret({self.where})"

    __str__ = __repr__

    @property
    def where(self) -> str:
        if self.file:
            return f"file {self.file}"
        return f"variable {self.variable}" if self.variable else "the configuration"

    @property
    def is_set(self) -> bool:
        return bool(self.file or self.variable or self.literal)


class ReadSecrets(Protocol):
    """Looks up files and variables; None where there is none."""

    def file(self, path: str, /) -> str | None: ...

    def variable(self, name: str, /) -> str | None: ...


def revealed(secret: Secret, sources: ReadSecrets) -> str:
    """The secret itself. Raises E0651, without its content."""
    if secret.file:
        found = sources.file(secret.file)
    elif secret.variable:
        found = sources.variable(secret.variable)
    else:
        found = secret.literal
    text = (found or "").strip()
    if not text or len(text) > SECRET_CHARS_MAX:
        raise HarchError(
            "E0651",
            f"the secret in {secret.where} is missing, empty or too long",
            hint="write it there on a single line",
        )
    return text


# Who is notified, and how? The configuration of notifications: routes, receivers, inhibition, time intervals.


GROUP_WAIT_MS, GROUP_INTERVAL_MS, REPEAT_INTERVAL_MS = 30_000, 5 * 60_000, 4 * 3_600_000
RESOLVE_TIMEOUT_MS = 5 * 60_000
GROUP_BY_ALL = "..."


class HttpOptions(Struct, frozen=True, kw_only=True):
    user: str = ""
    password: Secret = Secret()
    token: Secret = Secret()
    token_type: str = "Bearer"  # noqa: S105  # the scheme's name
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    insecure: bool = False
    follows_redirects: bool = True


class WebhookTo(Struct, frozen=True, kw_only=True, tag="webhook"):
    url: Secret  # may carry a token
    send_resolved: bool = True
    max_alerts: int = 0
    timeout_ms: int = 0
    http: HttpOptions = HttpOptions()


class EmailTo(Struct, frozen=True, kw_only=True, tag="email"):
    to: str
    sender: str
    smarthost: str
    send_resolved: bool = False
    hello: str = "localhost"
    user: str = ""
    password: Secret = Secret()
    require_tls: bool = True
    ca_file: str = ""
    insecure: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    html: str = ""
    text: str = ""


class SlackTo(Struct, frozen=True, kw_only=True, tag="slack"):
    url: Secret
    send_resolved: bool = False
    channel: str = ""
    username: str = ""
    color: str = ""
    title: str = ""
    title_link: str = ""
    pretext: str = ""
    text: str = ""
    fallback: str = ""
    footer: str = ""
    icon_emoji: str = ""
    icon_url: str = ""
    short_fields: bool = False
    fields: tuple[tuple[str, str, bool], ...] = ()  # title, value, short
    timeout_ms: int = 0
    http: HttpOptions = HttpOptions()


Integration = WebhookTo | EmailTo | SlackTo


class Receiver(Struct, frozen=True, kw_only=True):
    name: str
    integrations: tuple[Integration, ...] = ()


class AlertRoute(Struct, frozen=True, kw_only=True):
    """One node of the tree. What a child does not say it has from its parent, except times."""

    key: str  # the matchers on the way to it
    receiver: str
    matchers: tuple[Matcher, ...] = ()
    group_by: tuple[str, ...] = ()
    groups_by_all: bool = False
    group_wait_ms: int = GROUP_WAIT_MS
    group_interval_ms: int = GROUP_INTERVAL_MS
    repeat_interval_ms: int = REPEAT_INTERVAL_MS
    goes_on: bool = False  # `continue`: siblings after it are tried too
    mute_times: tuple[str, ...] = ()
    active_times: tuple[str, ...] = ()
    routes: tuple[AlertRoute, ...] = ()


class InhibitRule(Struct, frozen=True, kw_only=True):
    source: tuple[Matcher, ...]
    target: tuple[Matcher, ...]
    equal: tuple[str, ...] = ()


class AlertConfig(Struct, frozen=True, kw_only=True):
    route: AlertRoute
    receivers: dict[str, Receiver]
    inhibit_rules: tuple[InhibitRule, ...] = ()
    time_intervals: dict[str, TimeInterval] = field(default_factory=dict)
    resolve_timeout_ms: int = RESOLVE_TIMEOUT_MS
    templates: str = ""  # definitions that texts of receivers may use
    original: str = ""  # with every secret hidden


def default_config() -> AlertConfig:
    """Nobody is notified, and nothing leaves the hub; alerts are kept, shown and grouped."""
    route = AlertRoute(key="{}", receiver="nobody", group_by=("alertname",))
    original = "route:\n  receiver: nobody\n  group_by: [alertname]\nreceivers:\n- name: nobody\n"
    return AlertConfig(route=route, receivers={"nobody": Receiver(name="nobody")}, original=original)
