"""Where may a connection lead? Names are resolved once, every address is judged, and only a judged one is used.

A name that was proved when a file was applied may resolve to anything later. So whoever connects asks a `Guard`, and
connects to the addresses that it gives, never to the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from harch.base.hosts import address_of, read_host

ADDRESSES_MAX = 16  # of one name that are tried

Refusal = Callable[[str], str]  # why an IP address may not be connected to; empty if it may
Resolve = Callable[[str, int], list[Any]]


class NotPermitted(OSError):
    """Nothing was connected to. An OSError, because to its caller the far side cannot be reached."""


def reason(error: Exception) -> str:
    """For an outcome: what a guard said, and of other failures the kind only, because texts may carry secrets."""
    return str(error) if isinstance(error, NotPermitted) else type(error).__name__


def system_resolver(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class EgressGuard:
    """For one far side. `on_refused` hears of every refusal: it means that an address changed, or that a check before
    this one is wrong."""

    def __init__(
        self,
        refusal: Refusal,
        *,
        on_refused: Callable[[str], None] | None = None,
        resolve: Resolve = system_resolver,
    ) -> None:
        self._refusal = refusal
        self._on_refused = on_refused or (lambda detail: None)
        self._resolve = resolve

    def addresses(self, host: str, port: int) -> list[str]:
        """Those of the host that may be connected to, at least one. Blocks. Raises NotPermitted, and OSError if the
        name has no address."""
        try:
            name = read_host(host)
        except ValueError as error:
            raise self._refused(f"`{host[:100]}` {error}") from None
        found = [name] if address_of(name) is not None else self._resolved(name, port)
        reasons = {address: self._refusal(address) for address in found[:ADDRESSES_MAX]}
        allowed = [address for address, reason in reasons.items() if not reason]
        if not allowed:
            why = "; ".join(dict.fromkeys(reasons.values())) or "it has no address"
            raise self._refused(why if found == [name] else f"`{name}`: {why}")
        return allowed

    async def addresses_soon(self, host: str, port: int) -> list[str]:
        """The same, with names looked up in a thread."""
        if address_of(host) is not None:
            return self.addresses(host, port)
        return await asyncio.to_thread(self.addresses, host, port)

    def _resolved(self, name: str, port: int) -> list[str]:
        found: dict[str, None] = {}
        for *_, at in self._resolve(name, port):
            address = address_of(at[0])
            if address is not None:  # a link-local one with a zone is none that could be judged
                found[str(address)] = None
        return list(found)

    def _refused(self, detail: str) -> NotPermitted:
        self._on_refused(detail)
        return NotPermitted(detail)


class NamedContext(ssl.SSLContext):
    """For clients that are given an address in place of a name: certificates are still those of the name."""

    server_name = ""

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*args, **{**options, "server_hostname": self.server_name})


def tls_for(host: str) -> NamedContext:
    """Verifies the certificate and the name, by the authorities of the system."""
    context = NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.server_name = host
    return context
