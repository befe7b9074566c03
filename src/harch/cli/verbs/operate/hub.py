"""`harch hub`: one hub's control plane as a process; found a federation, invite hubs, join one; cordon, drain,
retire and open a hub.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from harch.base.config import home_from_env, ports_from_env
from harch.base.errors import HarchError
from harch.base.hosts import read_host
from harch.cli.inputs import duration_between
from harch.cli.options import fleet_option, log_file_option, reason_option, renamed
from harch.cli.remote import connect, json_option
from harch.cli.verb_group import VerbGroup

if TYPE_CHECKING:
    from harch.federation.identity.members import Address
    from harch.sdk import Client, HubClosure


def address_options(function: F) -> F:
    address = click.option(
        "--address", metavar="HOST:PORT", help="Address for peers (default: its peer port on loopback)."
    )
    return fleet_option(address(function))


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
            "E0305", f"the fleet has no hub `{hub_id}`", hint="pass its fleet file with --fleet, or --address"
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


# `harch hub init`: found a federation, with this hub as its first member.


@click.command("init")
@click.argument("hub", metavar="HUB")
@click.option("--trust-domain", metavar="NAME", help="Permanent name of the federation, e.g. gpu.example.org.")
@address_options
@json_option
def init(hub: str, trust_domain: str | None, fleet: str, address: str | None, as_json: bool) -> None:
    """Found a federation: its authority, and the keys and certificate of its first hub.

    The authority's key stays in the state folder of that hub, readable by its owner only. `harch up` does this itself.
    """
    from harch.base.clock import SystemClock
    from harch.base.config import home_from_env
    from harch.base.state_files import keep_files_private
    from harch.cli.output import emit_json
    from harch.federation.identity.authority import found
    from harch.federation.identity.folder import identity_folder
    from harch.federation.identity.members import TRUST_DOMAIN_DEFAULT, hub_name

    keep_files_private()
    name = hub_name(trust_domain or TRUST_DOMAIN_DEFAULT, hub.lower())
    folder = identity_folder(home_from_env(), name.hub_id)
    where = peer_address(name.hub_id, fleet, address)
    found(folder, name, where, now=SystemClock().now())
    if as_json:
        emit_json({"hub": name.uri, "address": str(where), "folder": str(folder.path)})
        return
    click.echo(f"founded {name.trust_domain}; {name.hub_id} is its first hub and accepts links at {where}")
    click.echo(f"its keys are in {folder.path}: back up `authority`, and keep it secret")


# `harch hub invite`: let another hub into the federation.


_INVITATION_S_MAX = 7 * 86_400.0


@click.command("invite")
@click.argument("hub", metavar="HUB")
@click.option("--at", metavar="HUB", help="Hub on this machine that holds the authority, if there are several.")
@click.option(
    "--valid",
    type=duration_between(1.0, _INVITATION_S_MAX),
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Validity, at most 7d.",
)
@renamed("--hours", "--valid", read=lambda hours: f"{hours}h")
@click.option("--again", is_flag=True, help="Invite a current or former member again, with a new identity.")
@json_option
def invite(hub: str, at: str | None, valid: float, again: bool, as_json: bool) -> None:
    """Print an invitation for one hub: good once, until it expires.

    Its holder can join as that hub, so treat it like a password. Only its digest is kept. Works on the
    machine of the hub that holds the authority, whether that hub is running or not.
    """
    from datetime import timedelta

    from harch.base.clock import SystemClock, iso
    from harch.base.config import home_from_env
    from harch.cli.output import emit_json, note
    from harch.federation.identity import enrolment
    from harch.federation.identity.folder import identity_folder
    from harch.federation.identity.hub_identity import HubIdentity

    home = home_from_env()
    identity = HubIdentity(identity_folder(home, _holder(at)))
    life = timedelta(seconds=valid)
    invitation = enrolment.invite(identity, hub.lower(), now=SystemClock().now(), life=life, again=again)
    if as_json:
        expires = iso(invitation.expires_at)
        emit_json({"hub": invitation.name.uri, "invitation": invitation.text(), "expires_at": expires})
        return
    click.echo(invitation.text())
    note(f"for {invitation.hub_id}, once, until {iso(invitation.expires_at)}; run there: harch hub join INVITATION")


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


# `harch hub join`: enter a federation with an invitation.


@click.command("join")
@click.argument("invitation")
@address_options
@json_option
def join(invitation: str, fleet: str, address: str | None, as_json: bool) -> None:
    """Join a federation: create this hub's keys and get its certificate.

    INVITATION is what `harch hub invite` printed; a dash reads it from stdin, where other users of the machine cannot
    see it. The hub that holds the authority must be running. The keys are made here and never leave the machine.
    """
    import asyncio

    from harch.base.clock import SystemClock
    from harch.base.config import home_from_env
    from harch.base.state_files import keep_files_private
    from harch.cli.output import emit_json
    from harch.federation.identity import enrolment
    from harch.federation.identity.enrolment import parse_invitation
    from harch.federation.identity.folder import identity_folder
    from harch.federation.links.tls_connection import send_uncertified

    keep_files_private()
    card = parse_invitation(sys.stdin.read(10_000) if invitation == "-" else invitation)
    folder = identity_folder(home_from_env(), card.hub_id)
    where = peer_address(card.hub_id, fleet, address)
    identity = asyncio.run(enrolment.join(folder, card, where, send=send_uncertified, now=SystemClock().now()))
    members = sorted(member.hub_id for member in identity.roster if not member.retired)
    if as_json:
        emit_json({"hub": identity.name.uri, "address": str(where), "members": members, "folder": str(folder.path)})
        return
    click.echo(f"{identity.hub_id} has joined {identity.trust_domain}: {', '.join(members)}")
    click.echo(f"it accepts links at {where}; start it with `harch hub serve {identity.hub_id}`")


# `harch hub cordon|uncordon|drain|retire`: whether a hub takes work, and how it leaves.


F = TypeVar("F", bound=Callable[..., None])

_WAIT_EVERY_S = 0.5
_REPORT_EVERY_S = 5.0


def _options(function: F) -> F:
    reason = reason_option()(renamed("--why", "--reason")(json_option(function)))
    return click.argument("hub", metavar="HUB")(reason)


@click.command("cordon")
@_options
def cordon(hub: str, reason: str, as_json: bool) -> None:
    """Start no new work at a hub, neither its own nor borrowed; running work continues."""
    with connect(hub) as client:
        _say(as_json, client.hubs.cordon(hub.lower(), why=reason), "is cordoned")


@click.command("drain")
@click.option("--wait", is_flag=True, help="Wait until no work is left.")
@_options
def drain(hub: str, reason: str, wait: bool, as_json: bool) -> None:
    """Cordon a hub and move its work to other hubs.

    Running work is stopped gracefully and starts elsewhere if its rules allow it. `harch hubs` shows how much
    is left.
    """
    with connect(hub) as client:
        closure = client.hubs.drain(hub.lower(), why=reason)
        if wait:
            closure = _wait(client, closure, quiet=as_json)
    _say(as_json, closure, "is drained" if not closure.remaining_total else "is being drained")


@click.command("retire")
@_options
def retire(hub: str, reason: str, as_json: bool) -> None:
    """Remove a hub from the federation permanently, once no work is left there.

    Its peers no longer wait for it. It can come back only with a new invitation (`harch hub invite --again`).
    """
    with connect(hub) as client:
        _say(as_json, client.hubs.retire(hub.lower(), why=reason), "has left the federation")


@click.command("uncordon")
@_options
def uncordon(hub: str, reason: str, as_json: bool) -> None:
    """Let a cordoned or drained hub take work again."""
    with connect(hub) as client:
        _say(as_json, client.hubs.open(hub.lower(), why=reason), "takes work")


# `harch hub kill`: kill a hub of this machine without warning, to see that nothing is lost.


_BACK_WITHIN_S = 120.0


@click.command("kill")
@click.argument("hub", metavar="HUB")
@click.option("--wait", is_flag=True, help="Wait until it is back and ready.")
@json_option
def kill(hub: str, wait: bool, as_json: bool) -> None:
    """Kill a hub of this machine without warning, to see that nothing is lost.

    Only a hub that `harch up` runs here, which starts it again at once. Its work keeps running meanwhile.
    """
    import asyncio

    from harch.base.clock import SystemClock
    from harch.cli.local_hubs import kill_hub, local_home, until_ready
    from harch.cli.output import emit_json
    from harch.cli.remote import hub_url

    clock, hub_id = SystemClock(), hub.lower()
    url = hub_url(hub_id) if wait else ""
    pid = kill_hub(local_home(), hub_id)
    killed_s = clock.monotonic_s()
    if not as_json:
        click.echo(f"killed {hub_id} (process {pid})")
    if wait:
        try:
            asyncio.run(until_ready(url, clock, _BACK_WITHIN_S))
        except TimeoutError as error:
            raise HarchError("E0801", str(error), hint="see what `harch up` says, and the log of the hub") from error
    back_s = clock.monotonic_s() - killed_s if wait else None
    if as_json:
        emit_json({"hub_id": hub_id, "pid": pid, "ready_after_s": back_s})
    elif back_s is not None:
        click.echo(f"{hub_id} is ready again after {back_s:.1f} s")


def _wait(client: Client, closure: HubClosure, *, quiet: bool) -> HubClosure:
    from harch.cli.output import note

    reported_s = -_REPORT_EVERY_S
    waited_s = 0.0
    while closure.remaining_total and closure.state != "open":
        if not quiet and waited_s - reported_s >= _REPORT_EVERY_S:
            note(_left(closure))
            reported_s = waited_s
        time.sleep(_WAIT_EVERY_S)
        waited_s += _WAIT_EVERY_S
        closure = client.hubs.closure(closure.hub_id)
    return closure


def _left(closure: HubClosure) -> str:
    left = closure.remaining
    counts = ((left.running, "running"), (left.waiting, "waiting"), (left.lent, "lent"))
    parts = [f"{count} {word}" for count, word in (*counts, (left.borrowed, "borrowed")) if count]
    return f"work left: {', '.join(parts)}" if parts else "no work left"


def _say(as_json: bool, closure: HubClosure, words: str) -> None:
    from harch.cli.output import emit_json

    if as_json:
        emit_json(closure)
    else:
        click.echo(f"{closure.hub_id} {words}; {_left(closure)}")


# `harch hub`: one hub's control plane as a process, and its place in a federation.


LEASE_S_MIN, LEASE_S_MAX = 3.0, 86_400.0  # as in `federation.leases`, which `--help` need not import
_LEASE = duration_between(LEASE_S_MIN, LEASE_S_MAX)


@click.group("hub", help="Run a hub; found or join a federation; cordon, drain or retire a hub.", cls=VerbGroup)
def command() -> None:
    pass


for _verb in (init, invite, join, cordon, uncordon, drain, retire, kill):
    command.add_command(_verb)


@command.command("open", hidden=True)  # the name of `uncordon` in the release before
@_options
@click.pass_context
def open_(context: click.Context, /, **options: object) -> None:
    """Let a cordoned or drained hub take work again."""
    from harch.cli.output import note

    note("`harch hub open` is deprecated: use `harch hub uncordon`")
    context.invoke(uncordon, **options)


@command.command("serve", help="Serve one hub of a fleet until SIGTERM or Ctrl-C.")
@click.argument("hub", metavar="HUB")
@fleet_option
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--scheduling",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Scheduling file (default: scheduling.toml in the hub's state folder).",
)
@click.option(
    "--peer-listen",
    metavar="HOST:PORT",
    help="Address to accept peer links on (default: the one that the federation knows).",
)
@click.option(
    "--lease-batch",
    type=_LEASE,
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="How long a peer may run work of this hub after the last contact.",
)
@click.option(
    "--lease-service",
    type=_LEASE,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="Same, for inference.",
)
@log_file_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line once the hub listens.")
def serve(
    hub: str,
    fleet: str,
    host: str,
    scheduling: str | None,
    peer_listen: str | None,
    lease_batch: float,
    lease_service: float,
    log_file: str | None,
    as_json: bool,
) -> None:
    import json
    from pathlib import Path

    import uvloop

    from harch.api.process import HubConfig, serve_hub
    from harch.base.state_files import close_to_others, keep_files_private
    from harch.cli.process import calm_collector, end_with_parent, open_fleet, set_up_logging
    from harch.federation.offers import LeaseTerms

    keep_files_private()
    end_with_parent()
    set_up_logging(log_file)
    loaded = open_fleet(fleet)
    config = HubConfig(
        loaded,
        hub.lower(),
        home_from_env(),
        ports_from_env(len(loaded.hubs)),
        host,
        scheduling=Path(scheduling) if scheduling else None,
        peer_listen=parse_address(peer_listen) if peer_listen else None,
        leases=LeaseTerms(batch_s=lease_batch, service_s=lease_service),
    )

    def listening(port: int) -> None:
        url = f"http://{host}:{port}"
        click.echo(
            json.dumps({"hub": config.hub_id, "url": url}) if as_json else f"hub {config.hub_id} listens on {url}"
        )

    close_to_others(config.home.root, deep=False)
    close_to_others(config.state_dir)
    calm_collector()
    uvloop.run(serve_hub(config, listening=listening))
