"""How does an HTTP client connect to a checked address only? A transport that asks a guard before each request."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import httpx

from harch.base.egress import Guard, NotPermitted
from harch.base.http_address import address_in

Inner = Callable[[], httpx.AsyncBaseTransport]


class GuardedTransport(httpx.AsyncBaseTransport):
    """Names are resolved here and requests go to the address; `Host` and the name in TLS stay those of the URL.

    Every request is judged, so a redirect is too. Hosts share no connections: one that was made for a name would
    otherwise serve another name at the same address, whose certificate nobody looked at.
    """

    def __init__(self, guard: Guard, *, verify: ssl.SSLContext | bool = True, inner: Inner | None = None) -> None:
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
