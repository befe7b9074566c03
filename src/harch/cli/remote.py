"""Which hub does a verb talk to? The options that all remote verbs share, and the connection behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harch.base.errors import HarchError

if TYPE_CHECKING:
    from harch.sdk import Client

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
hub_option = click.option(
    "--hub", "hub", metavar="NAME", help="Query this hub instead of the one at HARCH_URL, which knows its address."
)


def remote_options(command: F) -> F:
    """`--hub` and `--json`."""
    return hub_option(json_option(command))


@contextmanager
def connect(hub: str | None = None) -> Iterator[Client]:
    """A client of the hub at HARCH_URL, or of the named one, whose address the first one tells."""
    from harch.sdk import Client

    with Client(on_failover=_say_failover) as near:
        if hub is None:
            yield near
            return
        url = _address_of(near, hub)
        key = near.settings.api_key
    with Client(url, key) as far:
        yield far


def hub_url(name: str) -> str:
    """The address of the named hub, as the one at HARCH_URL knows it."""
    from harch.sdk import Client

    with Client(on_failover=_say_failover) as near:
        return _address_of(near, name)


def _say_failover(silent: str, next_: str) -> None:
    """Which hub answers matters: each lists its own work, and owns what it is given."""
    from harch.cli.output import note

    note(f"{silent} does not answer; asking {next_}")


def _address_of(client: Client, name: str) -> str:
    hubs = client.hubs.list()
    for hub in hubs:
        if name.casefold() in (hub.id.casefold(), hub.name.casefold()):
            if hub.endpoint:
                return hub.endpoint
            raise HarchError("E0802", f"the address of hub `{name}` is not known", hint="set HARCH_URL to it")
    known = ", ".join(sorted(hub.id for hub in hubs))
    raise HarchError("E0305", f"no hub named `{name}`", hint=f"choose one of {known}")


def hub_suffix(hub: str | None) -> str:
    """For commands that are printed to be copied: they must reach the same hub."""
    return f" --hub {hub}" if hub else ""
