"""Which host and port does an HTTP address lead to? As the client that sends reads it, and in no other way."""

from __future__ import annotations

import re

import httpx
from msgspec import Struct

from harch.base.hosts import read_host

_PORTS = {"http": 80, "https": 443}
_UNWANTED = re.compile(r"[\x00-\x20\x7f\\]")


class HttpAddress(Struct, frozen=True):
    scheme: str
    host: str
    port: int


def http_address(url: str) -> HttpAddress:
    """Raises ValueError. A backslash or a blank is in no address, but some programs read it as a slash or leave it
    out."""
    if _UNWANTED.search(url):
        raise ValueError("has a blank, a control character or a backslash")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"is no address ({error})") from error
    return address_in(parsed)


def address_in(url: httpx.URL) -> HttpAddress:
    """Of a request that is about to be sent. Raises ValueError."""
    if url.scheme not in _PORTS:
        raise ValueError("is not http:// or https://")
    host = url.raw_host.decode("ascii")
    if not host:
        raise ValueError("names no host")
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port < 65_536:
        raise ValueError(f"names no port, but {port}")
    return HttpAddress(url.scheme, read_host(host), port)
