"""`harch pipeline`: streams that become actions; apply, watch, scale, change, drain, replay and remove them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.inputs import DURATION
from harch.cli.listing import Listing, list_options
from harch.cli.options import confirmed, file_input, reason_option, renamed, tail_option, yes_option
from harch.cli.pipelines.actions import approvals, approve, dead, reject, replay
from harch.cli.pipelines.apply import apply, schema, update
from harch.cli.pipelines.top import top
from harch.cli.remote import connect, hub_option, json_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.verbs.sovereignty.data import key_file_option, read_key
from harch.cli.verbs.workloads.logs import last_lines
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.sdk import Client
    from harch.sdk.pipeline_types import Pipeline, PipelineResult


# `harch pipeline results`: what a pipeline without actions makes, row by row.


@click.command("results")
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Follow until Ctrl-C.")
@tail_option(200, 20, "Number of newest windows.", least=1)
@renamed("--last", "--tail")
@renamed("-n", "--tail")
@remote_options
def results(name: str, follow: bool, tail: int, hub: str | None, as_json: bool) -> int:
    """Print the output of the last stage of a pipeline without `act`: features, or outputs of models.

    One line per row. With --json, one document; with -f as well, one per row.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        page = client.pipelines.results(name, after=-tail)
        if as_json and not follow:
            emit_json(page)
            return 0
        try:
            while True:
                for one in page.items:
                    emit_json(one) if as_json else click.echo(clean(line_of(one)))
                if not follow:
                    return 0
                if not page.items:
                    _pause()
                page = client.pipelines.results(name, after=page.next_after)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE


def line_of(one: PipelineResult) -> str:
    words = [f"{one.window_end:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z", one.device, *filter(None, (one.metric, one.model))]
    words += [f"{name}={'-' if value is None else format(value, 'g')}" for name, value in one.values.items()]
    return " ".join(words)


# `harch pipeline sign`: an authority lets an aggregate of a pipeline permit more than the data it is made from.


@click.command("sign")
@file_input("The pipeline file.", type=click.Path(dir_okay=False))
@click.option("--export", "export_name", metavar="NAME", required=True, help="The export, by its name in the file.")
@click.option("--authority", "authority_name", metavar="NAME", required=True, help="Authority that signs.")
@key_file_option
@reason_option("Reason, written to the pipeline file.", required=True)
@click.option(
    "--valid",
    type=DURATION,
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="Time within which the file must be applied.",
)
@json_option
def sign_export(
    file: str, export_name: str, authority_name: str, key_file: str, reason: str, valid: float, as_json: bool
) -> None:
    """Sign the looser tag of an export; prints the statement to write into the file, beside that tag.

    Nothing is sent. The statement covers this export, the tag of its data and its own tag: a change of any of them
    requires a new one.
    """
    import msgspec

    from harch.base.clock import SystemClock
    from harch.cli.output import emit_json
    from harch.pipelines.spec.file import parse_pipelines
    from harch.pipelines.spec.release import as_object, export_tag
    from harch.sovereignty.declassification import Declassification, sign
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force

    try:
        text = Path(file).read_bytes()
    except OSError as error:
        raise HarchError("E0202", f"{file} cannot be read: {error.strerror}", hint="name a pipeline file") from error
    jurisdictions, now = jurisdictions_in_force(), SystemClock().now()
    specs = parse_pipelines(text, file, jurisdictions)
    named = [(spec, one) for spec in specs for one in spec.exports if one.name == export_name]
    if len(named) != 1:
        known = ", ".join(one.name for spec in specs for one in spec.exports) or "there are none"
        raise HarchError("E0201", f"{file} has no single export `{export_name}`", hint=f"its exports: {known}")
    spec, export = named[0]
    target = as_object(spec, export, jurisdictions)
    statement = Declassification(
        object_id=target.id,
        tag_revision=target.tag_revision,
        old=target.tag or export_tag(spec, export, jurisdictions),
        new=export_tag(spec, export, jurisdictions),
        reason=reason,
        authority=authority_name,
        issued_at=now,
        valid_until=now + timedelta(seconds=valid),
    )
    signed = msgspec.to_builtins(sign(statement, read_key(Path(key_file))))
    if as_json:
        emit_json(signed)
    else:
        click.echo(f"    declassification: {msgspec.json.encode(signed).decode()}")


_COLUMNS = (
    TableColumn("NAME"),
    TableColumn("STATE"),
    TableColumn("VERSION", 4),
    TableColumn("HUB", 3),
    TableColumn("WORKERS", 2),
    TableColumn("TROUBLE", 1, takes_rest=True),
)
TAIL_BYTES = 64 * 1024
POLL_S = 0.5


@click.group("pipeline", cls=VerbGroup)
def command() -> None:
    """Turn streams into actions: apply, watch, scale, update, drain.

    docs/pipelines/quickstart.md leads to a first approved action.
    """


for _verb in (apply, update, top, results, replay, approvals, approve, reject, dead, schema, sign_export):
    command.add_command(_verb)


@command.command("ls")
@hub_option
@list_options
def ls(hub: str | None, listing: Listing) -> None:
    """List pipelines."""
    with connect(hub) as client:
        found = client.pipelines.list()
    listing.show(list(found), _COLUMNS, _row, name=lambda one: one.name)


def _row(one: Pipeline) -> tuple[object, ...]:
    return (
        one.name,
        one.state,
        one.version,
        one.hub,
        " ".join(f"{stage.stage}:{stage.ready}/{stage.wanted}" for stage in one.stages) or "-",
        f"halted: {one.halted}" if one.halted else one.trouble or "-",
    )


@command.command("show")
@click.argument("name")
@remote_options
def show(name: str, hub: str | None, as_json: bool) -> None:
    """Show a pipeline: its workers, event URLs, streams and versions."""
    from harch.cli.output import clean, emit_json
    from harch.cli.views.table import table

    with connect(hub) as client:
        found = client.pipelines.get(name)
    if as_json:
        emit_json(found)
        return
    one = found.pipeline
    click.echo(clean(f"{one.name}: {one.state}, version {one.version}, at {one.hub} ({one.country})"))
    if one.halted:
        click.echo(clean(f"halted: {one.halted} (`harch pipeline resume {name}` ends it)"))
    if one.trouble:
        click.echo(clean(f"trouble: {one.trouble}"))
    for source, url in sorted(one.sources.items()):
        click.echo(clean(f"source {source}: {url} (`harch pipeline key {name} {source}` prints its key)"))
    rows = [
        (w.worker, w.health, w.pid or "-", w.starts, f"{w.memory_bytes / 2**20:.0f} MB", w.trouble or "-")
        for w in found.workers
    ]
    table(
        (
            TableColumn("WORKER"),
            TableColumn("HEALTH"),
            TableColumn("PID", 1, right=True),
            TableColumn("STARTS", 3, right=True),
            TableColumn("MEMORY", 4, right=True),
            TableColumn("TROUBLE", 2, takes_rest=True),
        ),
        rows,
    )
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
@click.option("--renew", is_flag=True, help="Issue a new key; the old one stops working.")
@remote_options
def key(name: str, source: str, renew: bool, hub: str | None, as_json: bool) -> None:
    """Print the key that senders of a source pass as `X-API-Key`.

    SOURCE may be omitted if only one source listens.
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
    """Set the number of workers per stage: `sense=2 think=4`; `think=auto` restores autoscaling."""
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


@command.command("halt")
@click.argument("name")
@reason_option("Reason, shown with the pipeline and recorded in the audit chain.")
@remote_options
def halt(name: str, reason: str, hub: str | None, as_json: bool) -> None:
    """Emergency stop: send no action until `harch pipeline resume NAME`.

    Events are still taken and scored; commands are refused. The halt survives restarts of workers, engine and hub.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        found = client.pipelines.halt(name, reason=reason)
    emit_json(found) if as_json else click.echo(clean(f"{name}: halted: {found.halted}"))


@command.command("resume")
@click.argument("name")
@remote_options
def resume(name: str, hub: str | None, as_json: bool) -> None:
    """End an emergency stop: actions are sent again. What was refused meanwhile stays refused."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        found = client.pipelines.resume(name)
    emit_json(found) if as_json else click.echo(clean(f"{name}: resumed"))


@command.command("drain")
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until it is drained.")
@renamed("-w", "--wait", is_flag=True)
@remote_options
def drain(name: str, wait: bool, hub: str | None, as_json: bool) -> None:
    """Drain a pipeline: sources stop first, then each stage once its input is empty.

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
@yes_option
@remote_options
def rm(name: str, yes: bool, hub: str | None, as_json: bool) -> int:
    """Stop a pipeline and delete its streams, state, ledger and files. The audit chain stays."""
    from harch.cli.output import clean, emit_json

    if not confirmed(f"remove `{name}` and all its data?", yes=yes, as_json=as_json):
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
@click.option("-f", "--follow", is_flag=True, help="Follow until Ctrl-C.")
@tail_option(100_000, help="Only the last N lines of each.")
@remote_options
def logs(name: str, worker: str | None, follow: bool, tail: int | None, hub: str | None, as_json: bool) -> int:
    """Print worker logs: of WORKER (`think-0`), of a stage (`think`), or of all.

    The last 64 kB of each; with several workers, each line starts with the worker's name.
    """
    from harch.cli.output import emit_json

    if follow and as_json:
        raise HarchError("E0201", "-f excludes --json", hint="the followed output is plain text")
    with connect(hub) as client:
        wanted = _workers(client, name, worker)
        if as_json:
            pieces = {one: client.pipelines.log(name, one, offset=-TAIL_BYTES).data for one in wanted}
            outputs = {one: data if tail is None else last_lines([data], tail) for one, data in pieces.items()}
            emit_json(
                {"items": [{"worker": one, "text": text.decode(errors="replace")} for one, text in outputs.items()]}
            )
            return 0
        try:
            _print_logs(client, name, wanted, follow, tail)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE
    return 0


def _workers(client: Client, name: str, wanted: str | None) -> list[str]:
    found = client.pipelines.get(name).workers
    if wanted is None:
        return [one.worker for one in found]
    chosen = [one.worker for one in found if wanted in (one.worker, one.stage)]
    return chosen or [wanted]  # a worker that is gone may have left its log


def _print_logs(client: Client, name: str, workers: list[str], follow: bool, tail: int | None) -> None:
    from harch.cli.output import clean

    offsets = dict.fromkeys(workers, -TAIL_BYTES)
    while True:
        for worker in workers:
            piece = client.pipelines.log(name, worker, offset=offsets[worker])
            offsets[worker] = piece.next_offset
            prefix = f"{worker}: " if len(workers) > 1 else ""
            data = piece.data if tail is None else last_lines([piece.data], tail)
            for line in data.decode(errors="replace").splitlines():
                click.echo(clean(f"{prefix}{line}"))
        if not follow:
            return
        tail = None  # of the past only
        _pause()


def _pause() -> None:
    import time

    time.sleep(POLL_S)
