"""Which host does this text name? One spelling per host, so that a check and a connection cannot differ. No I/O."""

# harch: pure

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

from msgspec import Struct

HOST_CHARS_MAX = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

IpAddress = IPv4Address | IPv6Address


class NamedHost(Struct, frozen=True, kw_only=True):
    """A host by the field of a file that names it. `problem`: why it cannot be read."""

    field: str
    host: str = ""
    problem: str = ""
    hidden: bool = False  # it stands in a secret, so it is not shown


def read_host(text: str) -> str:
    """An address in its shortest spelling, or a name in small letters without a final dot.

    An IPv4 address inside of IPv6 is the IPv4 address, because that is where the kernel connects to. Raises ValueError
    for what resolvers read in more than one way: zones, percent signs, short, octal and hexadecimal IPv4, letters
    beyond ASCII.
    """
    if len(text) > HOST_CHARS_MAX:
        raise ValueError(f"is longer than {HOST_CHARS_MAX} characters")
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if (address := address_of(host)) is not None:
        return str(address)
    name = host.lower().removesuffix(".")
    if not name.isascii():
        raise ValueError("has letters beyond ASCII; write it as xn--…")
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("is not a host; use a name or an IP address, without zone")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError("is not a host; an IPv4 address is four decimal numbers")
    return name


def address_of(host: str) -> IpAddress | None:
    """The address that a host is, if it is one and no name."""
    try:
        found = ip_address(host)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            return None
        return found.ipv4_mapped or found
    return found
