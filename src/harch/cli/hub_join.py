"""`harch hub join`: enter a federation with an invitation."""

from __future__ import annotations

import sys

import click

from harch.cli.peer_address import address_options, peer_address


@click.command("join")
@click.argument("invitation")
@address_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def join(invitation: str, fleet: str, address: str | None, as_json: bool) -> None:
    """Enter a federation: make this hub's keys and get its certificate.

    INVITATION is what `harch hub invite` printed; a dash reads it from stdin, where other users of the machine cannot
    see it. The hub that holds the authority must be running. The keys are made here and never leave the machine.
    """
    import asyncio

    from harch.base.clock import SystemClock
    from harch.base.config import home_from_env
    from harch.base.private_files import keep_files_private
    from harch.cli.output import emit_json
    from harch.federation.identity import joining
    from harch.federation.identity.folder import identity_folder
    from harch.federation.identity.invitations import parse_invitation
    from harch.federation.links.stranger import ask_as_stranger

    keep_files_private()
    card = parse_invitation(sys.stdin.read(10_000) if invitation == "-" else invitation)
    folder = identity_folder(home_from_env(), card.hub_id)
    where = peer_address(card.hub_id, fleet, address)
    identity = asyncio.run(joining.join(folder, card, where, ask=ask_as_stranger, now=SystemClock().now()))
    members = sorted(member.hub_id for member in identity.roster if not member.retired)
    if as_json:
        emit_json({"hub": identity.name.uri, "address": str(where), "members": members, "folder": str(folder.path)})
        return
    click.echo(f"{identity.hub_id} has joined {identity.trust_domain}: {', '.join(members)}")
    click.echo(f"it accepts links at {where}; start it with `harch hub serve {identity.hub_id}`")
