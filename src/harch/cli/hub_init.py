"""`harch hub init`: found a federation, with this hub as its first member."""

from __future__ import annotations

import click

from harch.cli.peer_address import address_options, peer_address


@click.command("init")
@click.argument("hub", metavar="HUB")
@click.option("--trust-domain", metavar="NAME", help="Name of the federation for its life, e.g. gpu.example.org.")
@address_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def init(hub: str, trust_domain: str | None, fleet: str, address: str | None, as_json: bool) -> None:
    """Found a federation: its authority, and the keys and certificate of its first hub.

    The authority's key stays in the state folder of that hub, readable by its owner only. `harch up` does it alone.
    """
    from harch.base.clock import SystemClock
    from harch.base.config import home_from_env
    from harch.base.private_files import keep_files_private
    from harch.cli.output import emit_json
    from harch.federation.identity.authority import found
    from harch.federation.identity.folder import identity_folder
    from harch.federation.identity.names import TRUST_DOMAIN_DEFAULT, hub_name

    keep_files_private()
    name = hub_name(trust_domain or TRUST_DOMAIN_DEFAULT, hub.lower())
    folder = identity_folder(home_from_env(), name.hub_id)
    where = peer_address(name.hub_id, fleet, address)
    found(folder, name, where, now=SystemClock().now())
    if as_json:
        emit_json({"hub": name.uri, "address": str(where), "folder": str(folder.path)})
        return
    click.echo(f"founded {name.trust_domain}; {name.hub_id} is its first hub and accepts links at {where}")
    click.echo(f"its keys are in {folder.path}: keep a copy of `authority`, and show it to nobody")
