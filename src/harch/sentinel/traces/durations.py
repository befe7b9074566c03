"""How long is `1.5ms`? Durations as traces write them, in nanoseconds."""

# harch: pure

from __future__ import annotations

import re
from fractions import Fraction

UNITS_NS = (("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000))
DURATION_NS_MAX = 2**63 - 1

_PART = r"[0-9]{1,19}(?:\.[0-9]{1,9})?(?:ns|us|µs|μs|ms|s|m|h)"
DURATION = re.compile(rf"(?:{_PART}){{1,6}}")
_PARTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|μs|ms|s|m|h)")
_NS = {**dict(UNITS_NS), "ns": 1, "µs": 1_000, "μs": 1_000}


def parse_duration_ns(text: str) -> int | None:
    """None for what is no duration, or longer than 292 years."""
    if DURATION.fullmatch(text) is None:
        return None
    total = sum(Fraction(number) * _NS[unit] for number, unit in _PARTS.findall(text))
    return int(total) if total <= DURATION_NS_MAX else None


def exact_duration(duration_ns: int) -> str:
    """A text that means exactly this many nanoseconds, e.g. `1ms500us`."""
    parts, rest = [], duration_ns
    for unit, unit_ns in UNITS_NS:
        count, rest = divmod(rest, unit_ns)
        if count:
            parts.append(f"{count}{unit}")
    if rest or not parts:
        parts.append(f"{rest}ns")
    return "".join(parts)


def short_duration(duration_ns: int) -> str:
    """Three digits that a person can compare, e.g. `1.5 ms`, `2 min 5 s`."""
    if duration_ns >= 60_000_000_000:
        minutes, rest = divmod(duration_ns // 1_000_000_000, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    for unit, unit_ns in UNITS_NS[2:]:
        if duration_ns >= unit_ns:
            return f"{duration_ns / unit_ns:.3g} {unit.replace('us', 'µs')}"
    return f"{duration_ns} ns"
