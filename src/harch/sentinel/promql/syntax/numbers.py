"""How are numbers and durations written? Their values, and their shortest form."""

from __future__ import annotations

import math
import re

INT64_MAX = (1 << 63) - 1
DURATION_MS_MAX = INT64_MAX // 1_000_000  # durations are nanoseconds in 64 bits elsewhere; about 292 years

_UNITS_MS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(
    r"(?:(?P<y>\d+)y)?(?:(?P<w>\d+)w)?(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?(?:(?P<ms>\d+)ms)?",
    re.ASCII,
)
_OCTAL = re.compile(r"0_?[0-7]+(?:_[0-7]+)*")
_DIGITS_MAX = 400  # longer literals carry no more information and only cost time


def number(text: str) -> float | None:
    """The value of a number without sign: decimal, hexadecimal, octal (a leading zero), inf or nan. None: not one."""
    word = text.lower()
    if word == "inf":
        return math.inf
    if word == "nan":
        return math.nan
    if len(text) > _DIGITS_MAX or not text.isascii():
        return None
    try:
        if word.startswith("0x"):
            whole = int(word, 16)
            return float(whole) if whole <= INT64_MAX else None
        if _OCTAL.fullmatch(word):
            whole = int(word.replace("_", ""), 8)
            return float(whole if whole <= INT64_MAX else float(word.replace("_", "")))
        value = float(text)
        return None if math.isinf(value) else value
    except ValueError:
        return None


def duration_ms(text: str) -> int | None:
    """The value of `1h30m`: units from large to small, each at most once. None: not a duration."""
    found = _DURATION.fullmatch(text) if text and len(text) <= _DIGITS_MAX else None
    if found is None:
        return None
    return sum(int(count) * _UNITS_MS[unit] for unit, count in found.groupdict().items() if count is not None)


def format_duration(duration_ms: int) -> str:
    """The shortest usual form: 5400000 is `1h30m`. Years and weeks are used only where they fit exactly."""
    if duration_ms == 0:
        return "0s"
    if duration_ms < 0:
        return "-" + format_duration(-duration_ms)
    parts = []
    for unit, unit_ms in _UNITS_MS.items():
        if unit in "yw" and duration_ms % unit_ms:
            continue
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def format_number(value: float) -> str:
    """A number as messages, labels of count_values and JSON show it: no exponent, `+Inf`, `NaN`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    if "e" in text:
        text = _without_exponent(text)
    return text.removesuffix(".0")


def _without_exponent(text: str) -> str:
    sign = "-" if text.startswith("-") else ""
    mantissa, exponent = text.removeprefix("-").split("e")
    whole, _, fraction = mantissa.partition(".")
    shift = int(exponent)
    digits = whole + fraction
    point = len(whole) + shift
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"
