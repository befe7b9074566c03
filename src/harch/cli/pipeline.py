"""`harch pipeline`: streams that become actions; apply, watch, scale, change, drain, replay and remove them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.pipeline_actions import approvals, approve, dead, reject
from harch.cli.pipeline_apply import apply, schema, update
from harch.cli.pipeline_replay import replay
from harch.cli.pipeline_results import results
from harch.cli.pipeline_sign import sign_export
from harch.cli.pipeline_top import top
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client

TAIL_BYTES = 64 * 1024
POLL_S = 0.5


@click.group("pipeline")
def command() -> None:
    """Turn streams into actions: apply, watch, scale, update, drain.

    docs/pipelines/quickstart.md goes from nothing to an approved action.
    """


for _verb in (apply, update, top, results, replay, approvals, approve, reject, dead, schema, sign_export):
    command.add_command(_verb)


@command.command("ls")
@remote_options
def ls(hub: str | None, as_json: bool) -> None:
    """List pipelines."""
    from harch.cli.output import emit_json, table

    with connect(hub) as client:
        found = client.pipelines.list()
    if as_json:
        emit_json({"items": found})
        return
    rows = [
        (
            one.name,
            one.state,
            one.version,
            one.hub,
            " ".join(f"{stage.stage}:{stage.ready}/{stage.wanted}" for stage in one.stages) or "-",
            one.trouble or "-",
        )
        for one in found
    ]
    table(("NAME", "STATE", "VERSION", "HUB", "WORKERS", "TROUBLE"), rows)


@command.command("show")
@click.argument("name")
@remote_options
def show(name: str, hub: str | None, as_json: bool) -> None:
    """Show a pipeline: its workers, where it takes events, its streams and versions."""
    from harch.cli.output import clean, emit_json, table

    with connect(hub) as client:
        found = client.pipelines.get(name)
    if as_json:
        emit_json(found)
        return
    one = found.pipeline
    click.echo(clean(f"{one.name}: {one.state}, version {one.version}, at {one.hub} ({one.country})"))
    if one.trouble:
        click.echo(clean(f"trouble: {one.trouble}"))
    for source, url in sorted(one.sources.items()):
        click.echo(clean(f"source {source}: {url} (`harch pipeline key {name} {source}` prints its key)"))
    rows = [
        (w.worker, w.health, w.pid or "-", w.starts, f"{w.memory_bytes / 2**20:.0f} MB", w.trouble or "-")
        for w in found.workers
    ]
    table(("WORKER", "HEALTH", "PID", "STARTS", "MEMORY", "TROUBLE"), rows)
    for box in sorted({w.sandbox for w in found.workers if w.sandbox}):
        click.echo(clean(f"sandbox of its workers: {box}"))
    for domain, streams in found.streams.items():
        click.echo(clean(f"streams in {domain}: {', '.join(streams)}"))
    for border in found.borders:
        way = f"export {border.export} to {border.hub}" if border.direction == "out" else f"import {border.export}"
        way += f" from {border.hub}" if border.direction == "in" else ""
        counts = f"{border.windows} windows, {border.rows} rows"
        click.echo(clean(f"{way}: {border.state}, {counts}{'; ' + border.detail if border.detail else ''}"))
    for version in found.versions[:10]:
        click.echo(clean(f"version {version.version} of {version.applied_at} by {version.applied_by}"))


@command.command("key")
@click.argument("name")
@click.argument("source", required=False, default="")
@click.option("--renew", is_flag=True, help="Make another key; the old one is refused from then on.")
@remote_options
def key(name: str, source: str, renew: bool, hub: str | None, as_json: bool) -> None:
    """Print the key that senders of a source show, as `X-API-Key`.

    SOURCE may be left out where only one source listens.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        found = client.pipelines.source_key(name, source, renew=renew)
    emit_json(found) if as_json else click.echo(clean(found.key))


@command.command("scale")
@click.argument("name")
@click.argument("counts", metavar="STAGE=N...", nargs=-1, required=True)
@remote_options
def scale(name: str, counts: tuple[str, ...], hub: str | None, as_json: bool) -> None:
    """Set how many workers stages have: `sense=2 think=4`; `think=auto` gives it back to its load."""
    from harch.cli.output import clean, emit_json

    wanted: dict[str, int | None] = {}
    for word in counts:
        stage, _, count = word.partition("=")
        if not stage or not (count == "auto" or count.isdecimal()):
            raise HarchError("E0201", f"`{word}` is not STAGE=N", hint="e.g. think=2, or think=auto")
        wanted[stage] = None if count == "auto" else int(count)
    with connect(hub) as client:
        found = client.pipelines.scale(name, wanted)
    if as_json:
        emit_json(found)
    else:
        click.echo(clean(f"{name}: {', '.join(counts)}"))


@command.command("drain")
@click.argument("name")
@click.option("-w", "--wait", is_flag=True, help="Return when it is at rest.")
@remote_options
def drain(name: str, wait: bool, hub: str | None, as_json: bool) -> None:
    """Let a pipeline finish and rest: sources stop first, then each stage when nothing is left for it.

    Its streams, checkpoints and ledger stay. Applying its file starts it again.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        found = client.pipelines.drain(name)
        while wait and found.state == "draining":
            _pause()
            found = client.pipelines.get(name).pipeline
    emit_json(found) if as_json else click.echo(clean(f"{name}: {found.state}"))


@command.command("rm")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@remote_options
def rm(name: str, yes: bool, hub: str | None, as_json: bool) -> int:
    """Stop a pipeline and delete its streams, state, ledger and files. The audit chain stays."""
    from harch.cli.output import clean, emit_json

    if not yes and (as_json or not sys.stdin.isatty()):
        raise HarchError("E0201", "nobody can be asked here", hint="add -y to remove without a question")
    if not yes and not click.confirm(f"remove `{name}` with all that it keeps?"):
        return 1
    with connect(hub) as client:
        found = client.pipelines.remove(name)
        while True:
            try:
                client.pipelines.get(name)
            except HarchError as error:
                if error.code != "E0710":
                    raise
                break
            _pause()
    emit_json(found) if as_json else click.echo(clean(f"{name}: removed"))
    return 0


@command.command("logs")
@click.argument("name")
@click.argument("worker", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@remote_options
def logs(name: str, worker: str | None, follow: bool, hub: str | None, as_json: bool) -> int:
    """Print what workers wrote to their logs: of WORKER (`think-0`), of a stage (`think`), or of all.

    The last 64 kB of each; several are told apart by their name before each line.
    """
    from harch.cli.output import emit_json

    if follow and as_json:
        raise HarchError("E0201", "-f excludes --json", hint="the followed output is plain text")
    with connect(hub) as client:
        wanted = _workers(client, name, worker)
        if as_json:
            texts = {one: client.pipelines.log(name, one, offset=-TAIL_BYTES).data for one in wanted}
            emit_json(
                {"items": [{"worker": one, "text": text.decode(errors="replace")} for one, text in texts.items()]}
            )
            return 0
        try:
            _print_logs(client, name, wanted, follow)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE
    return 0


def _workers(client: Client, name: str, wanted: str | None) -> list[str]:
    found = client.pipelines.get(name).workers
    if wanted is None:
        return [one.worker for one in found]
    chosen = [one.worker for one in found if wanted in (one.worker, one.stage)]
    return chosen or [wanted]  # a worker that is gone may have left its log


def _print_logs(client: Client, name: str, workers: list[str], follow: bool) -> None:
    from harch.cli.output import clean

    offsets = dict.fromkeys(workers, -TAIL_BYTES)
    while True:
        for worker in workers:
            piece = client.pipelines.log(name, worker, offset=offsets[worker])
            offsets[worker] = piece.next_offset
            prefix = f"{worker}: " if len(workers) > 1 else ""
            for line in piece.data.decode(errors="replace").splitlines():
                click.echo(clean(f"{prefix}{line}"))
        if not follow:
            return
        _pause()


def _pause() -> None:
    import time

    time.sleep(POLL_S)
