"""How are numbers, durations and strings written?

Their values, their shortest form, and the escapes of Go, in both directions.
"""

# harch: pure

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


# How are strings written? The escapes of Go, which PromQL took over, in both directions.
#
# `\xNN` may name bytes that are no UTF-8. They are kept as Python keeps such bytes in file names (surrogateescape), so
# they can be printed again and refused where text is needed.


_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
_NAMES = {character: f"\\{name}" for name, character in _NAMED.items() if name != "\\"}
_ESCAPE = re.compile(
    r"\\(?:(?P<named>[abfnrtv\\'\"`])|(?P<octal>[0-7]{3})|x(?P<hex>[0-9a-fA-F]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))"
)


class BadEscape(ValueError):
    """The sentence says what is wrong; `offset` is the place in the quoted text."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.offset = offset


def unquote(quoted: str) -> str:
    """The text that a literal with its quotes stands for; backticks take everything as it is."""
    quote, inside = quoted[0], quoted[1:-1]
    if quote == "`":
        return inside
    if "\\" not in inside:
        return inside
    pieces: list[bytes] = []
    position = 0
    while True:
        found = inside.find("\\", position)
        if found < 0:
            break
        pieces.append(inside[position:found].encode("utf-8", "surrogateescape"))
        escape = _ESCAPE.match(inside, found)
        if escape is None:
            raise BadEscape("unknown escape sequence", found + 1)
        pieces.append(_meaning(escape, quote, found + 1))
        position = escape.end()
    pieces.append(inside[position:].encode("utf-8", "surrogateescape"))
    return b"".join(pieces).decode("utf-8", "surrogateescape")


def _meaning(escape: re.Match[str], quote: str, offset: int) -> bytes:
    if named := escape["named"]:
        if named in "'\"`" and named != quote:
            raise BadEscape("unknown escape sequence", offset)
        return _NAMED.get(named, named).encode()
    if octal := escape["octal"]:
        if int(octal, 8) > 0xFF:
            raise BadEscape("escape sequence is an invalid Unicode code point", offset)
        return bytes([int(octal, 8)])
    if digits := escape["hex"]:
        return bytes([int(digits, 16)])
    code = int(escape["short"] or escape["long"], 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise BadEscape("escape sequence is an invalid Unicode code point", offset)
    return chr(code).encode()


def as_text(value: str) -> str:
    """The value with bytes that are no UTF-8 replaced, so that it can be a label's value and travel as JSON."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def quote(text: str) -> str:
    """The text as a literal in double quotes; what cannot be seen is escaped."""
    return '"' + "".join(map(_written, text)) + '"'


def _written(character: str) -> str:
    if character in ('"', "\\"):
        return "\\" + character
    if character in _NAMES:
        return _NAMES[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if character == " " or character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
