"""`harch pipeline approvals`, `approve`, `reject`, `dead` and `replay`: what waits for a person, what was given up,
and events through the pipeline again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.listing import Listing, list_options
from harch.cli.options import file_option, reason_option, since_option, until_option
from harch.cli.remote import connect, hub_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.sdk import Client
    from harch.sdk.pipeline_types import PipelineAction, PipelineReplayRun


# `harch pipeline approvals`, `approve`, `reject`, `dead`: what waits for a person, and what was given up.


_SHORT = 12
_ACTION = (TableColumn("ID"), TableColumn("ACTION"), TableColumn("DEVICE"))


@click.command("approvals")
@click.argument("name")
@hub_option
@list_options
def approvals(name: str, hub: str | None, listing: Listing) -> None:
    """List actions that await approval, most urgent first."""
    with connect(hub) as client:
        found = client.pipelines.approvals(name)
    listing.show(
        list(found),
        (*_ACTION, TableColumn("UNTIL (UTC)", 1), TableColumn("WHAT", 2, takes_rest=True)),
        lambda one: (one.cmd_id[:_SHORT], one.action, one.device, _time(one.expires_ms), _steps(one)),
        name=lambda one: one.cmd_id,
    )


@click.command("approve")
@click.argument("name")
@click.argument("cmd_id", metavar="ID")
@remote_options
def approve(name: str, cmd_id: str, hub: str | None, as_json: bool) -> None:
    """Approve one pending action: exactly the one that is listed.

    ID may be a unique prefix. Its deadline and its interlocks are checked again before it fires.
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
@reason_option("Reason, kept in the ledger.")
@remote_options
def reject(name: str, cmd_id: str, reason: str, hub: str | None, as_json: bool) -> None:
    """Reject a pending action; it never fires."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        one = _the_one(client.pipelines.approvals(name), cmd_id)
        client.pipelines.reject(name, one.cmd_id, reason=reason)
    if as_json:
        emit_json(one)
    else:
        click.echo(clean(f"rejected {one.cmd_id[:_SHORT]}: {one.action} at {one.device}"))


@click.group("dead", cls=VerbGroup)
def dead() -> None:
    """List, retry or drop actions that were given up."""


@dead.command("ls")
@click.argument("name")
@hub_option
@list_options
def dead_ls(name: str, hub: str | None, listing: Listing) -> None:
    """List actions that were given up, oldest first."""
    with connect(hub) as client:
        found = client.pipelines.dead(name)
    listing.show(
        list(found),
        (*_ACTION, TableColumn("ATTEMPTS", 3), TableColumn("CARRIED OUT", 1), TableColumn("WHY", 2, takes_rest=True)),
        lambda one: (
            one.cmd_id[:_SHORT],
            one.action,
            one.device,
            one.attempts,
            "perhaps" if one.maybe_sent else "no",
            one.reason,
        ),
        name=lambda one: one.cmd_id,
    )


@dead.command("replay")
@click.argument("name")
@click.argument("cmd_id", metavar="ID")
@click.option("--not-carried-out", is_flag=True, help="Confirm that it was checked and was not carried out.")
@remote_options
def dead_replay(name: str, cmd_id: str, not_carried_out: bool, hub: str | None, as_json: bool) -> None:
    """Retry a dead action with new attempts; its deadline and interlocks are checked as if it were new."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        one = _the_one(client.pipelines.dead(name), cmd_id)
        client.pipelines.replay_dead(name, one.cmd_id, not_carried_out=not_carried_out)
    emit_json(one) if as_json else click.echo(clean(f"retried: {one.cmd_id[:_SHORT]}"))


@dead.command("drop")
@click.argument("name")
@click.argument("cmd_id", metavar="ID")
@remote_options
def dead_drop(name: str, cmd_id: str, hub: str | None, as_json: bool) -> None:
    """Drop a dead action; the audit chain keeps its outcome."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        one = _the_one(client.pipelines.dead(name), cmd_id)
        client.pipelines.drop_dead(name, one.cmd_id)
    emit_json(one) if as_json else click.echo(clean(f"dropped {one.cmd_id[:_SHORT]}"))


def _the_one(found: tuple[PipelineAction, ...], cmd_id: str) -> PipelineAction:
    near = [one for one in found if one.cmd_id.startswith(cmd_id)]
    if len(near) == 1:
        return near[0]
    words = "is not in the list" if not near else f"matches {len(near)} ids"
    raise HarchError("E0771", f"`{cmd_id[:64]}` {words}", hint="list them again, or give more of the id")


def _steps(one: PipelineAction) -> str:
    parts = []
    for step in one.steps:
        args = step.get("args")
        words = ", ".join(f"{key}={value}" for key, value in args.items()) if isinstance(args, dict) else ""
        parts.append(f"{step.get('sink', '')}({words})")
    return " ".join(parts)


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%d %b %H:%M:%S}"


# `harch pipeline replay`: events that were kept, those of a file, or what was given up, through the pipeline again.


POLL_S = 0.5
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("replay")
@click.argument("name")
@since_option("Events since this time, or this long ago (default: all kept events).")
@until_option("Events before this time, or until this long ago.")
@file_option("Rows of this file (.csv, .ndjson) instead of kept events.", type=_FILE)
@click.option("--source", metavar="NAME", default="", help="Source that defines the format of the rows in the file.")
@click.option("--run", "really", is_flag=True, help="Run it; otherwise only report what would happen.")
@click.option("--again", is_flag=True, help="Repeat commands that were already carried out.")
@click.option(
    "--rate", type=click.FloatRange(min=1), default=50_000.0, show_default=True, metavar="N", help="Events per second."
)
@click.option("--dead", is_flag=True, help="Replay dead-letter messages instead of events.")
@click.option(
    "--from-seq", type=click.IntRange(min=0), default=0, metavar="N", help="With --dead: start at this sequence number."
)
@remote_options
def replay(
    name: str,
    since: datetime | None,
    until: datetime | None,
    file: Path | None,
    source: str,
    really: bool,
    again: bool,
    rate: float,
    dead: bool,
    from_seq: int,
    hub: str | None,
    as_json: bool,
) -> int:
    """Replay events through a pipeline; without --run, only report the effects.

    Windows are recomputed with the current models. Commands that the ledger knows are not carried out again unless
    --again is given. --dead replays messages that THINK and ACT gave up; single actions: `harch pipeline dead
    replay`.
    """
    if dead and (until or file or source or again):
        raise HarchError("E0201", "--dead accepts only --since and --from-seq", hint="omit the others")
    with connect(hub) as client:
        if dead:
            _replay_dead(client, name, from_seq, since, dry_run=not really, as_json=as_json)
            return 0
        replay_options: dict[str, object] = {"source": source, "again": again, "events_per_s": rate}
        replay_options |= {key: at for key, at in (("since", since), ("until", until)) if at is not None}
        if file is not None:
            replay_options["file"] = _send(client, name, file)
        found = client.pipelines.replay_events(name, dry_run=not really, **replay_options)
        try:
            while found.state == "running":
                _pause()
                found = client.pipelines.replay_run(name, found.run)
        except KeyboardInterrupt:
            client.pipelines.replay_run(name, found.run, stop=True)
            return INTERRUPTED_EXIT_CODE
    _show(found, as_json)
    return 0 if found.state == "done" else 1


def _replay_dead(
    client: Client, name: str, from_seq: int, since: datetime | None, *, dry_run: bool, as_json: bool
) -> None:
    from harch.cli.output import clean, emit_json

    found = client.pipelines.replay(name, from_seq=from_seq, since=since, dry_run=dry_run)
    if as_json:
        emit_json(found)
        return
    words = ", ".join(f"{count} of {lane}" for lane, count in found.replayed.items())
    click.echo(clean(f"{name}: {'would replay' if dry_run else 'replayed'} {words or 'nothing'}"))
    if dry_run:
        click.echo("dry run: nothing was done; pass --run to do it")


def _send(client: Client, name: str, file: Path) -> str:
    """The file at the hub, under its hash, so that the same one is sent once."""
    import hashlib

    data = file.read_bytes()
    suffix = ".csv" if file.suffix == ".csv" else ".ndjson"
    path = f"replays/{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
    client.pipelines.put_file(name, path, data)
    return path


def _show(found: PipelineReplayRun, as_json: bool) -> None:
    from harch.cli.output import clean, emit_json
    from harch.cli.views.table import table

    if as_json:
        emit_json(found)
        return
    count = found.counts.get
    click.echo(
        clean(
            f"{found.pipeline}: {found.state}: {count('events', 0)} events, {count('events_aside', 0)} quarantined, "
            f"{count('windows', 0)} complete windows ({count('windows_cut', 0)} were cut and not emitted)"
        )
    )
    click.echo(
        f"commands: {count('commands_new', 0)} new, {count('commands_known', 0)} already in the ledger; "
        f"{count('told', 0)} messages sent"
    )
    if found.new:
        rows = [(one["cmd_id"][:12], one["action"], one["device"], _replay_steps(one["steps"])) for one in found.new]
        table(
            (
                TableColumn("ID"),
                TableColumn("ACTION", 2),
                TableColumn("DEVICE", 1),
                TableColumn("WHAT", 3, takes_rest=True),
            ),
            rows,
        )
    if found.trouble:
        click.echo(clean(f"trouble: {found.trouble}"))
    if found.dry_run:
        click.echo("dry run: nothing was done; pass --run to do it")


def _replay_steps(steps: list[dict[str, object]]) -> str:
    return " ".join(f"{step.get('sink')}({step.get('args')})" for step in steps)


def _pause() -> None:
    import time

    time.sleep(POLL_S)
