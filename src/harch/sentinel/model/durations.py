"""How long is `1h30m`? Durations as Prometheus writes them, in milliseconds."""

# harch: pure

from __future__ import annotations

import re

from harch.base.errors import HarchError

# From the longest to the shortest; a text names each unit at most once, in this order.
UNITS_MS = (
    ("y", 365 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
)
DURATION_MS_MAX = (2**63 - 1) // 1_000_000  # what fits into nanoseconds, as in Prometheus

_FORM = re.compile("".join(rf"(?:(\d{{1,19}}){unit})?" for unit, _ in UNITS_MS))
_EXACT_ONLY = ("y", "w")  # 8d is not written as 1w1d


def parse_duration_ms(text: str) -> int:
    """Raises E0201 for anything that Prometheus would not read as a duration."""
    if text == "0":
        return 0
    found = _FORM.fullmatch(text)
    if not text or found is None:
        raise HarchError("E0201", f"`{text[:40]}` is not a duration", hint="write e.g. `30s`, `5m` or `1h30m`")
    total = sum(int(count) * unit_ms for count, (_, unit_ms) in zip(found.groups(), UNITS_MS, strict=True) if count)
    if total > DURATION_MS_MAX:
        raise HarchError("E0201", f"`{text[:40]}` is longer than 292 years", hint="write a shorter duration")
    return total


def format_duration_ms(duration_ms: int) -> str:
    """The shortest text in the form that Prometheus shows, e.g. `1h30m`."""
    if duration_ms == 0:
        return "0s"
    parts, rest = [], duration_ms
    for unit, unit_ms in UNITS_MS:
        if unit in _EXACT_ONLY and rest % unit_ms:
            continue
        count, rest = divmod(rest, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
