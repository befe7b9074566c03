"""How does an HTTP client connect to a checked address only?

The host and port as the client that sends reads them, and a transport that consults a guard before each request.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable

import httpx
from msgspec import Struct

from harch.base.egress import EgressGuard, NotPermitted
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
        raise ValueError(f"is not an address ({error})") from error
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
        raise ValueError(f"has an invalid port: {port}")
    return HttpAddress(url.scheme, read_host(host), port)


# How does an HTTP client connect to a checked address only? A transport that asks a guard before each request.


Inner = Callable[[], httpx.AsyncBaseTransport]


class GuardedTransport(httpx.AsyncBaseTransport):
    """Names are resolved here and requests go to the address; `Host` and the name in TLS stay those of the URL.

    Every request is judged, so a redirect is too. Hosts share no connections: one that was made for a name would
    otherwise serve another name at the same address, whose certificate nobody looked at.
    """

    def __init__(self, guard: EgressGuard, *, verify: ssl.SSLContext | bool = True, inner: Inner | None = None) -> None:
        self._guard = guard
        self._make = inner or (lambda: httpx.AsyncHTTPTransport(verify=verify, trust_env=False))
        self._inner: dict[str, httpx.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises NotPermitted before anything is sent."""
        try:
            at = address_in(request.url)
        except ValueError as error:
            raise NotPermitted(f"the address {error}") from None
        failed: httpx.TransportError = httpx.ConnectError(f"{at.host} cannot be reached", request=request)
        for address in await self._guard.addresses_soon(at.host, at.port):
            aimed = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": at.host},
            )
            try:
                return await self._transport(at.host).handle_async_request(aimed)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failed = error
        raise failed

    async def aclose(self) -> None:
        for inner in self._inner.values():
            await inner.aclose()

    def _transport(self, host: str) -> httpx.AsyncBaseTransport:
        if host not in self._inner:
            self._inner[host] = self._make()
        return self._inner[host]
