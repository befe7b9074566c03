"""How do people read numbers? The same words that Prometheus' templates use."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from harch.sentinel.rules.templates.go_format import show_float
from harch.sentinel.rules.templates.values import failed

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
        raise failed(f"{seconds} is no time that can be shown") from error
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
