"""`harch audit`: prove what was decided, and where data was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.audit_chains import checkpoints_in, checkpoints_option, export_of
from harch.cli.audit_report import report
from harch.cli.remote import connect, hub_option, json_option, remote_options

if TYPE_CHECKING:
    from harch.sovereignty.audit.verification import Outcome


@click.group()
def command() -> None:
    """Prove what was decided, and where data was.

    Every hub links its decisions and data movements into a chain of hashes and signs where it ends.
    """


command.add_command(report)


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

    kept = checkpoints_in(checkpoints_file)
    with export_of(file, hub) as pieces:
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
        with export_of(None, hub) as pieces:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
        return
    size, draft = 0, Path(f"{output}.part")
    try:
        with export_of(None, hub) as pieces, draft.open("wb") as file:
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


def _fields(outcome: Outcome) -> dict[str, object]:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(outcome)
    return fields
