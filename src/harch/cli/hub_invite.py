"""`harch hub invite`: let another hub into the federation."""

from __future__ import annotations

import click

from harch.base.errors import HarchError


@click.command("invite")
@click.argument("hub", metavar="HUB")
@click.option("--at", metavar="HUB", help="Which hub of this machine holds the authority, if there are several.")
@click.option(
    "--hours", type=click.FloatRange(0, 168, min_open=True), default=24, show_default=True, help="Until it ends."
)
@click.option("--again", is_flag=True, help="For a hub that is a member already, or was one: it gets a new identity.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def invite(hub: str, at: str | None, hours: float, again: bool, as_json: bool) -> None:
    """Print an invitation for one hub: good once, until it expires.

    Whoever has it can join as that hub, so pass it on as you would a password. Only its digest is kept. Works on the
    machine of the hub that holds the authority, whether that hub is running or not.
    """
    from datetime import timedelta

    from harch.base.clock import SystemClock, iso
    from harch.base.config import home_from_env
    from harch.cli.output import emit_json, note
    from harch.federation.identity import desk
    from harch.federation.identity.folder import identity_folder
    from harch.federation.identity.identity import HubIdentity

    home = home_from_env()
    identity = HubIdentity(identity_folder(home, _holder(at)))
    life = timedelta(hours=hours)
    invitation = desk.invite(identity, hub.lower(), now=SystemClock().now(), life=life, again=again)
    if as_json:
        expires = iso(invitation.expires_at)
        emit_json({"hub": invitation.name.uri, "invitation": invitation.text(), "expires_at": expires})
        return
    click.echo(invitation.text())
    note(f"for {invitation.hub_id}, once, until {iso(invitation.expires_at)}; there: harch hub join INVITATION")


def _holder(at: str | None) -> str:
    from harch.base.config import home_from_env
    from harch.federation.identity.folder import authority_holders

    home = home_from_env()
    holders = authority_holders(home)
    if at is not None and at.lower() in holders:
        return at.lower()
    if at is not None or not holders:
        raise HarchError(
            "E0113",
            f"{at.lower() if at else 'no hub'} in {home.root} holds the authority of a federation",
            hint="set HARCH_HOME to the state folder of the hub that ran `harch hub init`",
        )
    if len(holders) > 1:
        raise HarchError(
            "E0201", f"several hubs hold an authority: {', '.join(holders)}", hint=f"add --at {holders[0]}"
        )
    return holders[0]
