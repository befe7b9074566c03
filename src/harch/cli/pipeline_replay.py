"""`harch pipeline replay`: events that were kept, those of a file, or what was given up, through the pipeline again."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client
    from harch.sdk.pipeline_types import PipelineReplayRun

POLL_S = 0.5
_TIME = click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("replay")
@click.argument("name")
@click.option("--since", type=_TIME, help="Events from this time (UTC); all that are kept, if absent.")
@click.option("--until", type=_TIME, help="Events before this time (UTC).")
@click.option("--file", type=_FILE, help="Rows of this file (.csv, .ndjson) instead of kept events.")
@click.option("--source", default="", help="The source whose form the rows of the file have.")
@click.option("--run", "really", is_flag=True, help="Do it. Without, it is told what would happen.")
@click.option("--again", is_flag=True, help="Also commands that were carried out before.")
@click.option("--rate", type=click.FloatRange(min=1), default=50_000.0, show_default=True, help="Events per second.")
@click.option("--dead", is_flag=True, help="Messages of the dead lanes instead of events.")
@click.option("--from-seq", type=click.IntRange(min=0), default=0, help="With --dead: from this number on.")
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
    """Send events through a pipeline again, and see or do what follows.

    Windows are computed anew, with the models of today. Commands that the ledger knows are not carried out again unless
    --again says so. --dead takes messages that THINK and ACT gave up instead; single actions: `harch pipeline dead
    replay`.
    """
    if dead and (until or file or source or again):
        raise HarchError("E0201", "--dead goes with --since and --from-seq only", hint="leave the others out")
    with connect(hub) as client:
        if dead:
            _replay_dead(client, name, from_seq, _utc(since), dry_run=not really, as_json=as_json)
            return 0
        wish: dict[str, object] = {"source": source, "again": again, "events_per_s": rate}
        wish |= {key: at for key, at in (("since", _utc(since)), ("until", _utc(until))) if at is not None}
        if file is not None:
            wish["file"] = _send(client, name, file)
        found = client.pipelines.replay_events(name, dry_run=not really, **wish)
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
        click.echo("nothing was done; add --run to do it")


def _send(client: Client, name: str, file: Path) -> str:
    """The file at the hub, under its hash, so that the same one is sent once."""
    import hashlib

    data = file.read_bytes()
    suffix = ".csv" if file.suffix == ".csv" else ".ndjson"
    path = f"replays/{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
    client.pipelines.put_file(name, path, data)
    return path


def _show(found: PipelineReplayRun, as_json: bool) -> None:
    from harch.cli.output import clean, emit_json, table

    if as_json:
        emit_json(found)
        return
    count = found.counts.get
    click.echo(
        clean(
            f"{found.pipeline}: {found.state}: {count('events', 0)} events, {count('events_aside', 0)} put aside, "
            f"{count('windows', 0)} whole windows ({count('windows_cut', 0)} were cut and not told)"
        )
    )
    click.echo(
        f"commands: {count('commands_new', 0)} new, {count('commands_known', 0)} that the ledger knows; "
        f"{count('told', 0)} messages told"
    )
    if found.new:
        rows = [(one["cmd_id"][:12], one["action"], one["device"], _steps(one["steps"])) for one in found.new]
        table(("ID", "ACTION", "DEVICE", "WHAT"), rows)
    if found.trouble:
        click.echo(clean(f"trouble: {found.trouble}"))
    if found.dry_run:
        click.echo("nothing was done; add --run to do it")


def _steps(steps: list[dict[str, object]]) -> str:
    return " ".join(f"{step.get('sink')}({step.get('args')})" for step in steps)


def _utc(moment: datetime | None) -> datetime | None:
    from datetime import UTC

    return None if moment is None else moment.replace(tzinfo=UTC)


def _pause() -> None:
    import time

    time.sleep(POLL_S)
