"""`harch audit`: prove what was decided, and where data was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.remote import connect, hub_option, json_option, remote_options

if TYPE_CHECKING:
    from harch.sovereignty.audit.checkpoints import SignedCheckpoint
    from harch.sovereignty.audit.report import Report, ReportBuilder
    from harch.sovereignty.audit.verification import Outcome

_READ_BYTES = 1024 * 1024
_CHECKPOINT_BYTES_MAX = 256 * 1024 * 1024

checkpoints_option = click.option(
    "--checkpoints",
    "checkpoints_file",
    metavar="FILE",
    help="Checkpoints that were kept elsewhere: without them a cut tail can stay hidden.",
)


@click.group()
def command() -> None:
    """Prove what was decided, and where data was.

    Every hub links its decisions and data movements into a chain of hashes and signs where it ends.
    """


@command.command("verify")
@click.option("--file", "file", metavar="FILE", help="Verify this export instead of asking a hub; `-` reads stdin.")
@checkpoints_option
@remote_options
def verify(file: str | None, checkpoints_file: str | None, hub: str | None, as_json: bool) -> int:
    """Verify a hub's chain from its first entry on, or an export of it.

    Ends with 0 if it is whole, with 1 if it was tampered with; then the first bad entry and what was done are shown.
    """
    from harch.cli.output import clean, emit_json
    from harch.sovereignty.audit.chain import split_lines
    from harch.sovereignty.audit.verification import verify as verify_lines

    kept = _kept(checkpoints_file)
    with _export(file, hub) as pieces:
        outcome = verify_lines(split_lines(pieces), kept)
    if as_json:
        emit_json({"sound": outcome.is_sound, **_fields(outcome)})
    elif outcome.finding is None:
        against = f", {outcome.checkpoints} kept checkpoint(s) agree" if kept else ""
        click.echo(f"ok: {outcome.entries} entries of hub {clean(outcome.hub)}{against}; head {outcome.head}")
    else:
        finding = outcome.finding
        click.echo(f"TAMPERED: entry {finding.seq}: {finding.kind}: {clean(finding.detail)}")
        click.echo(f"{outcome.entries} entries before it are good", err=True)
    return EXIT_OK if outcome.is_sound else EXIT_ERROR


@command.command("export")
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write it; `-` is stdout.")
@hub_option
@json_option
def export(output: str, hub: str | None, as_json: bool) -> None:
    """Write the whole chain of a hub to a file: one entry per line, closed by a signed checkpoint."""
    if output == "-":
        with _export(None, hub) as pieces:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
        return
    size, draft = 0, Path(f"{output}.part")
    try:
        with _export(None, hub) as pieces, draft.open("wb") as file:
            for piece in pieces:
                size += file.write(piece)
        draft.replace(output)
    except OSError as error:
        raise HarchError("E0201", f"{output} cannot be written: {error.strerror}", hint="check the path") from error
    finally:
        draft.unlink(missing_ok=True)  # half an export must not be taken for one
    if as_json:
        from harch.cli.output import emit_json

        emit_json({"file": output, "bytes": size})
    else:
        click.echo(f"wrote {output}, {size} bytes; `harch audit verify --file {output}` checks it")


@command.command("head")
@remote_options
def head(hub: str | None, as_json: bool) -> None:
    """Show where a hub's chain ends now, signed.

    Keep the line that --json prints elsewhere: it shows later that nothing was cut off or rewritten.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        signed = client.audit.head()
    if as_json:
        emit_json(signed)
        return
    checkpoint = signed.checkpoint
    click.echo(f"hub {clean(checkpoint.hub)}: {checkpoint.seq} entries at {clean(checkpoint.at)}")
    click.echo(f"hash {clean(checkpoint.hash)}\nkey  {clean(checkpoint.key)}")


@command.command("rotate-key")
@remote_options
def rotate_key(hub: str | None, as_json: bool) -> None:
    """Replace the key that signs a hub's checkpoints; the old one introduces the new one in the chain."""
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        key = client.audit.rotate_key()
    if as_json:
        emit_json({"key": key})
    else:
        click.echo(f"checkpoints are signed by {clean(key)} from now on")


@command.command("report")
@click.option("--data", "ref", metavar="ID", required=True, help="The dataset, or the workload, to report on.")
@click.option("--month", metavar="YYYY-MM", required=True, help="Which month, in UTC.")
@click.option("--html", "html_file", metavar="FILE", help="Write a page for people; it loads nothing from outside.")
@click.option("--file", "files", metavar="FILE", multiple=True, help="Use this export instead of asking. Repeatable.")
@checkpoints_option
@remote_options
def report(
    ref: str,
    month: str,
    html_file: str | None,
    files: tuple[str, ...],
    checkpoints_file: str | None,
    hub: str | None,
    as_json: bool,
) -> int:
    """Report where data was in a month: processed, moved, by whose authority, by which policy version.

    Reads and verifies the chain of every hub (of one with --hub). Ends with 1 if a chain was missing or tampered with:
    the report then says so, and proves nothing.
    """
    from harch.base.clock import SystemClock, iso
    from harch.cli.output import emit_json
    from harch.sovereignty.audit.report import ReportBuilder

    builder, kept = ReportBuilder(ref, month), _kept(checkpoints_file)
    if files:
        for file in files:
            _read_chain(builder, kept, file=file, hub=None)
    else:
        for name in [hub] if hub else _hubs():
            try:
                _read_chain(builder, kept, file=None, hub=name)
            except HarchError as error:
                builder.take_missing(name, error.message)
    made = builder.build(made_at=iso(SystemClock().now()))
    if html_file is not None:
        _write_html(made, html_file)
    if as_json:
        emit_json(made)
    else:
        _show(made, html_file)
    return EXIT_OK if made.complete else EXIT_ERROR


def _hubs() -> list[str]:
    with connect() as client:
        return [view.id for view in client.hubs.list()]


def _read_chain(builder: ReportBuilder, kept: list[SignedCheckpoint], *, file: str | None, hub: str | None) -> None:
    from harch.sovereignty.audit.chain import split_lines
    from harch.sovereignty.audit.verification import ChainVerifier

    verifier = ChainVerifier(kept)
    with _export(file, hub) as pieces:
        for line in split_lines(pieces):
            entry = verifier.take(line)
            if entry is not None:
                builder.take(entry)
    builder.take_outcome(verifier.finish())


@contextmanager
def _export(file: str | None, hub: str | None) -> Iterator[Iterator[bytes]]:
    if file is None:
        with connect(hub) as client:
            yield client.audit.export()
    elif file == "-":
        yield iter(lambda: sys.stdin.buffer.read(_READ_BYTES), b"")
    else:
        try:
            with Path(file).open("rb") as stream:
                yield iter(lambda: stream.read(_READ_BYTES), b"")
        except OSError as error:
            raise HarchError("E0202", f"{file} cannot be read: {error.strerror}", hint="check the path") from error


def _kept(path: str | None) -> list[SignedCheckpoint]:
    from harch.sovereignty.audit.checkpoints import read_checkpoints

    if path is None:
        return []
    try:
        with Path(path).open("rb") as file:
            return read_checkpoints(file.read(_CHECKPOINT_BYTES_MAX))
    except OSError as error:
        raise HarchError("E0202", f"{path} cannot be read: {error.strerror}", hint="check the path") from error


def _fields(outcome: Outcome) -> dict[str, object]:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(outcome)
    return fields


def _write_html(made: Report, path: str) -> None:
    from harch.sovereignty.audit.report_html import render_html

    try:
        Path(path).write_text(render_html(made), encoding="utf-8")
    except OSError as error:
        raise HarchError("E0201", f"{path} cannot be written: {error.strerror}", hint="check the path") from error


def _show(made: Report, html_file: str | None) -> None:
    from harch.cli.output import clean, note, table

    places = ", ".join(f"{country} ({count})" for country, count in made.countries.items()) or "nowhere"
    click.echo(f"{clean(made.ref)} in {made.month}: processed in {places}; moved {len(made.moved)} times\n")
    table(
        ("SINCE", "UNTIL", "HUB", "COUNTRY", "WORKLOAD", "AUTHORITY", "POLICY"),
        [
            (p.since, p.until or "goes on", p.hub, ", ".join(p.countries), p.workload, p.authority, p.policy_version)
            for p in made.processed
        ],
    )
    if made.moved:
        click.echo()
        table(
            ("AT", "FROM", "TO", "COUNTRIES", "AUTHORITY", "POLICY"),
            [
                (m.at, m.origin, m.destination, " > ".join(m.countries), m.authority, m.policy_version)
                for m in made.moved
            ],
        )
    for chain in made.chains:
        note(f"chain of {clean(chain.hub)}: {clean(chain.problem) or f'{chain.entries} entries verified'}")
    if html_file is not None:
        note(f"wrote {html_file}")
