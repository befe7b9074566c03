"""Is an address among these? `ip("10.0.0.1")`, `ip("10.0.0.0/8")`, `ip("10.0.0.1-10.0.0.9")`, also of version 6."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from harch.base.errors import HarchError

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
        raise HarchError("E0685", f"`{text[:80]}` names no addresses", hint=hint) from None
