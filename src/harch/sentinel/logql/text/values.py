"""What do values in logs and queries mean?

Durations and sizes such as `1h15m30.5s` and `5KiB`, and addresses among `ip("10.0.0.0/8")`.
"""

# harch: pure

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from harch.base.errors import HarchError

_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3_600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
    "w": 7 * 86_400 * 1_000_000_000,
    "y": 365 * 86_400 * 1_000_000_000,
}
_WRITTEN = ("y", "w", "d", "h", "m", "s", "ms", "us", "ns")
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|[smhdwy])", re.ASCII)
_DURATION = re.compile(rf"[+-]?(?:{_PART.pattern})+", re.ASCII)
_BYTES = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([kmgtpe]?i?b?)", re.ASCII | re.IGNORECASE)
_POWERS = {letter: power for power, letter in enumerate("kmgtpe", 1)}
_TEXT_MAX = 60
DURATION_NS_MAX = (1 << 63) - 1
BYTES_MAX = (1 << 64) - 1


def duration_ns(text: str) -> int | None:
    """Nanoseconds; None: not a duration. Fractions are allowed, as Go reads them, and days to years as Prometheus."""
    if text == "0":
        return 0
    if not text or len(text) > _TEXT_MAX or _DURATION.fullmatch(text) is None:
        return None
    total = 0
    for number, unit in _PART.findall(text):
        whole, _, fraction = number.partition(".")
        total += int(whole or "0") * _NS[unit]
        if fraction:
            total += int(fraction) * _NS[unit] // 10 ** len(fraction)
    if total > DURATION_NS_MAX:
        return None
    return -total if text[0] == "-" else total


def format_duration(ns: int) -> str:
    """The shortest text that reads back equal: 5,400,000,000,000 is `1h30m`."""
    if ns == 0:
        return "0s"
    if ns < 0:
        return f"-{format_duration(-ns)}"
    parts = []
    for unit in _WRITTEN:
        if unit in "yw" and ns % _NS[unit]:
            continue
        count, ns = divmod(ns, _NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def size_bytes(text: str) -> int | None:
    """Bytes; None: not a size. `k` is 1,000 and `Ki` is 1,024; a bare number counts bytes."""
    found = _BYTES.fullmatch(text) if len(text) <= _TEXT_MAX else None
    if found is None:
        return None
    number, unit = found[1], found[2].lower().removesuffix("b")
    if unit == "i":
        return None
    base = 1024 if unit.endswith("i") else 1000
    whole, _, fraction = number.partition(".")
    factor = base ** _POWERS[unit[0]] if unit else 1
    total = int(whole or "0") * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)
    return total if total <= BYTES_MAX else None


def format_bytes(count: int) -> str:
    """The largest unit in which it is a whole number."""
    for base, ending in ((1024, "iB"), (1000, "B")):
        for letter, power in reversed(_POWERS.items()):
            if count and count % base**power == 0:
                prefix = letter.upper() if base == 1024 or letter != "k" else "k"
                return f"{count // base**power}{prefix}{ending}"
    return f"{count}B"


# Is an address among these? `ip("10.0.0.1")`, `ip("10.0.0.0/8")`, `ip("10.0.0.1-10.0.0.9")`, also of version 6.


# Whatever could be an address: digits and dots, or hexadecimal digits with colons.
_CANDIDATE = re.compile(r"(?<![0-9a-zA-Z:.])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F:]*:[0-9a-fA-F:.]+)")


@dataclass(frozen=True, slots=True)
class AddressPattern:
    version: int
    low: int
    high: int

    def holds(self, text: str) -> bool:
        """Whether the text is an address among these. Raises ValueError for what is none."""
        address = ipaddress.ip_address(text)
        return address.version == self.version and self.low <= int(address) <= self.high

    def is_in(self, line: str) -> bool:
        """Whether any address in the line is among these."""
        for found in _CANDIDATE.finditer(line):
            text = found[0]
            for candidate in (text, text.rstrip(":.")):
                try:
                    if self.holds(candidate):
                        return True
                except ValueError:
                    continue
        return False


@lru_cache(maxsize=256)
def address_pattern(text: str) -> AddressPattern:
    """Raises E0685 for anything else than an address, a network or two addresses with a dash between."""
    try:
        if "-" in text:
            first, _, last = text.partition("-")
            low, high = ipaddress.ip_address(first.strip()), ipaddress.ip_address(last.strip())
            if low.version != high.version or int(low) > int(high):
                raise ValueError
            return AddressPattern(low.version, int(low), int(high))
        network = ipaddress.ip_network(text, strict=False)
        return AddressPattern(network.version, int(network.network_address), int(network.broadcast_address))
    except ValueError:
        hint = 'write e.g. ip("10.1.2.3"), ip("10.0.0.0/8") or ip("10.1.2.3-10.1.2.9")'
        raise HarchError("E0685", f"`{text[:80]}` is not an address or range", hint=hint) from None
