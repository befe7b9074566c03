"""In which country does a host outside of the fleet stand? As the operator declared it; what nobody declared is
nowhere, and nothing may go there. No I/O.

A place is networks in one country, with names that are known to be in them. A name alone proves nothing: whoever
answers for it can let it point anywhere, so its addresses are judged again when a connection is made.
"""

from __future__ import annotations

from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network

from msgspec import Struct

from harch.base.hosts import IpAddress, address_of

HOME = ""  # this machine
HOME_NAME = "localhost"

_Network = IPv4Network | IPv6Network


class Place(Struct, frozen=True, kw_only=True):
    """`names`: hosts as `read_host` gives them, or `*.` with a domain."""

    id: str
    country: str
    networks: tuple[str, ...]
    names: tuple[str, ...] = ()


class Places(Struct, frozen=True, dict=True):
    """All that were declared. The narrowest network that holds an address says where it stands."""

    entries: tuple[Place, ...] = ()

    def of_host(self, host: str) -> str | None:
        """The country of a host as `read_host` gives it; `HOME` for this machine, None if nobody declared it."""
        address = address_of(host)
        if address is not None:
            return self.of_address(address)
        if host == HOME_NAME:
            return HOME
        if host in self._names:
            return self._names[host]
        labels = host.split(".")
        domains = (".".join(labels[at:]) for at in range(1, len(labels)))
        return next((self._names[f"*.{domain}"] for domain in domains if f"*.{domain}" in self._names), None)

    def of_address(self, address: IpAddress) -> str | None:
        if address.is_loopback:
            return HOME
        for network, country in self._networks:
            if address in network:
                return country
        return None

    @cached_property
    def _names(self) -> dict[str, str]:
        return {name: place.country for place in self.entries for name in place.names}

    @cached_property
    def _networks(self) -> list[tuple[_Network, str]]:
        found = [(ip_network(text), place.country) for place in self.entries for text in place.networks]
        return sorted(found, key=lambda one: -one[0].prefixlen)


class EgressRule(Struct, frozen=True):
    """Where the connections of one sink or source may lead: `country` was proved, `HOME` is this machine alone."""

    country: str = HOME
    places: Places = Places()

    def refusal(self, address: str) -> str:
        """Why this IP address may not be connected to; empty if it may."""
        found = address_of(address)
        country = self.places.of_address(found) if found is not None else None
        if country is None:
            return f"{address} is in no network that an operator declared a place"
        if country != self.country:
            return f"{address} is {_shown(country)}, and {_shown(self.country)} was proved"
        return ""


def _shown(country: str) -> str:
    return f"in {country}" if country else "this machine"
