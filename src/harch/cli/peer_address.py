"""Where does a hub accept links from its peers? As told, or on the port that its place in the fleet gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from harch.base.errors import HarchError
from harch.base.hosts import read_host

if TYPE_CHECKING:
    from harch.federation.identity.members import Address

F = TypeVar("F", bound=Callable[..., None])


def address_options(function: F) -> F:
    fleet = click.option(
        "--fleet", default="five-hubs", show_default=True, help="A shipped fleet, or the path of a fleet file."
    )
    address = click.option(
        "--address", metavar="HOST:PORT", help="Where peers reach this hub; its peer port on loopback if absent."
    )
    return fleet(address(function))


def peer_address(hub_id: str, fleet: str, address: str | None) -> Address:
    """Raises E0201 for an address that is none, E0305 if it is to come from a fleet that lacks the hub."""
    from harch.base.config import ports_from_env
    from harch.cli.process import open_fleet
    from harch.federation.identity.members import Address

    if address is not None:
        return parse_address(address)
    hubs = [hub.id for hub in open_fleet(fleet).hubs]
    if hub_id not in hubs:
        raise HarchError(
            "E0305", f"the fleet has no hub `{hub_id}`", hint="name its fleet file with --fleet, or say --address"
        )
    return Address("127.0.0.1", ports_from_env(len(hubs)).peer(hubs.index(hub_id)))


def parse_address(text: str) -> Address:
    """`HOST:PORT`. Raises E0201 for anything else."""
    from harch.federation.identity.members import Address

    host, _, port = text.rpartition(":")
    hint = "write e.g. 10.0.0.7:7721"
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise HarchError("E0201", f"`{text}` is not an address", hint=hint)
    try:
        return Address(read_host(host), int(port))
    except ValueError as error:
        raise HarchError("E0201", f"`{text}` is not an address: its host {error}", hint=hint) from None
