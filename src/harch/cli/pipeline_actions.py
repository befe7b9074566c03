"""`harch pipeline approvals`, `approve`, `reject`, `dead`: what waits for a person, and what was given up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk.pipeline_types import PipelineAction

_SHORT = 12


@click.command("approvals")
@click.argument("name")
@remote_options
def approvals(name: str, hub: str | None, as_json: bool) -> None:
    """List actions that wait for a person, most urgent first."""
    from harch.cli.output import emit_json, table

    with connect(hub) as client:
        found = client.pipelines.approvals(name)
    if as_json:
        emit_json({"items": found})
        return
    rows = [(one.cmd_id[:_SHORT], one.action, one.device, _steps(one), _time(one.expires_ms)) for one in found]
    table(("ID", "ACTION", "DEVICE", "WHAT", "UNTIL (UTC)"), rows)


@click.command("approve")
@click.argument("name")
@click.argument("cmd_id", metavar="ID")
@remote_options
def approve(name: str, cmd_id: str, hub: str | None, as_json: bool) -> None:
    """Let one waiting action happen: exactly the one that is shown.

    ID may be shortened as long as it names one. Its time and its interlocks are checked again before it fires.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        one = _the_one(client.pipelines.approvals(name), cmd_id)
        client.pipelines.approve(name, one.cmd_id, one.digest)
    if as_json:
        emit_json(one)
    else:
        click.echo(clean(f"approved {one.cmd_id[:_SHORT]}: {one.action} at {one.device}: {_steps(one)}"))


@click.command("reject")
@click.argument("name")
@click.argument("cmd_id", metavar="ID")
@click.option("--reason", default="", help="Kept in the ledger.")
@remote_options
def reject(name: str, cmd_id: str, reason: str, hub: str | None, as_json: bool) -> None:
    """Say no to a waiting action; it never fires."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        one = _the_one(client.pipelines.approvals(name), cmd_id)
        client.pipelines.reject(name, one.cmd_id, reason=reason)
    if as_json:
        emit_json(one)
    else:
        click.echo(clean(f"rejected {one.cmd_id[:_SHORT]}: {one.action} at {one.device}"))


@click.group("dead")
def dead() -> None:
    """See actions that were given up; try them again, or drop them."""


@dead.command("ls")
@click.argument("name")
@remote_options
def dead_ls(name: str, hub: str | None, as_json: bool) -> None:
    """List actions that were given up, oldest first."""
    from harch.cli.output import emit_json, table

    with connect(hub) as client:
        found = client.pipelines.dead(name)
    if as_json:
        emit_json({"items": found})
        return
    rows = [
        (one.cmd_id[:_SHORT], one.action, one.device, one.attempts, "perhaps" if one.maybe_sent else "no", one.reason)
        for one in found
    ]
    table(("ID", "ACTION", "DEVICE", "ATTEMPTS", "CARRIED OUT", "WHY"), rows)


@dead.command("replay")
@click.argument("name")
@click.argument("cmd_id", metavar="ID")
@click.option("--not-carried-out", is_flag=True, help="Somebody looked: it did not happen.")
@remote_options
def dead_replay(name: str, cmd_id: str, not_carried_out: bool, hub: str | None, as_json: bool) -> None:
    """Try a dead action again, with new attempts; its time and interlocks are checked as if it were new."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        one = _the_one(client.pipelines.dead(name), cmd_id)
        client.pipelines.replay_dead(name, one.cmd_id, not_carried_out=not_carried_out)
    emit_json(one) if as_json else click.echo(clean(f"tried again: {one.cmd_id[:_SHORT]}"))


@dead.command("drop")
@click.argument("name")
@click.argument("cmd_id", metavar="ID")
@remote_options
def dead_drop(name: str, cmd_id: str, hub: str | None, as_json: bool) -> None:
    """Forget a dead action; the audit chain keeps what became of it."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        one = _the_one(client.pipelines.dead(name), cmd_id)
        client.pipelines.drop_dead(name, one.cmd_id)
    emit_json(one) if as_json else click.echo(clean(f"dropped {one.cmd_id[:_SHORT]}"))


def _the_one(found: tuple[PipelineAction, ...], cmd_id: str) -> PipelineAction:
    near = [one for one in found if one.cmd_id.startswith(cmd_id)]
    if len(near) == 1:
        return near[0]
    words = "is not in the list" if not near else f"begins {len(near)} ids"
    raise HarchError("E0771", f"`{cmd_id[:64]}` {words}", hint="list them again, and give more of the id")


def _steps(one: PipelineAction) -> str:
    parts = []
    for step in one.steps:
        args = step.get("args")
        words = ", ".join(f"{key}={value}" for key, value in args.items()) if isinstance(args, dict) else ""
        parts.append(f"{step.get('sink', '')}({words})")
    return " ".join(parts)


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%d %b %H:%M:%S}"
