"""`harch audit`: prove what was decided, and where data was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.audit_chains import KeptElsewhere, checkpoints_in, checkpoints_option, export_of, kept_by_others
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

    Asks the other hubs for the checkpoints that they keep of it. Ends with 0 if it is whole, with 1 if it was tampered
    with or the hub says that its end is lost; then the first bad entry and what was done are shown.
    """
    from harch.cli.output import clean, emit_json, note
    from harch.sovereignty.audit.chain import split_lines
    from harch.sovereignty.audit.verification import verify as verify_lines

    kept = checkpoints_in(checkpoints_file)
    others, lost = (KeptElsewhere(), "") if file is not None else (kept_by_others(hub), _lost(hub))
    with export_of(file, hub) as pieces:
        outcome = verify_lines(split_lines(pieces), [*kept, *others.checkpoints])
    sound = outcome.is_sound and not lost
    if as_json:
        asked = {"hubs_asked": others.asked, "hubs_silent": others.silent}
        emit_json({"sound": sound, "lost": lost, **_fields(outcome), **({} if file is not None else asked)})
        return EXIT_OK if sound else EXIT_ERROR
    finding = outcome.finding
    if lost:
        click.echo(f"LOST: {clean(lost)}")
    if finding is not None:
        click.echo(f"TAMPERED: entry {finding.seq}: {finding.kind}: {clean(finding.detail)}")
        note(f"{outcome.entries} entries before it are good")
    elif not lost:
        against = f", {outcome.checkpoints} kept checkpoint(s) agree" if kept or others.asked else ""
        click.echo(f"ok: {outcome.entries} entries of hub {clean(outcome.hub)}{against}; head {outcome.head}")
    for loss in outcome.losses:
        click.echo(f"hole: {clean(loss.sentence)}")
    if file is None:
        note(clean(others.sentence))
    return EXIT_OK if sound else EXIT_ERROR


@command.command("accept-loss")
@click.option("--why", metavar="TEXT", required=True, help="The reason; it goes into the chain, for good.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@remote_options
def accept_loss(why: str, yes: bool, hub: str | None, as_json: bool) -> None:
    """Let a hub go on that has stopped because the end of its records is lost.

    First try to get the right database back: what is lost is lost, with the work that was submitted in it. The chain
    then goes on with an entry that says what is missing, who accepted it and why.
    """
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        loss = client.audit.loss()
        if not loss.held:
            raise HarchError("E0304", "nothing is lost", hint="`harch audit verify` checks the chain")
        if not yes:
            click.echo(clean(loss.sentence), err=True)
            click.confirm("Go on without it?", abort=True, err=True)
        done = client.audit.accept_loss(loss.lost_seq, why)
    if as_json:
        emit_json(done)
    else:
        click.echo(f"the hub goes on; {clean(loss.sentence)}")


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


def _lost(hub: str | None) -> str:
    """What the hub itself says is missing."""
    with connect(hub) as client:
        try:
            loss = client.audit.loss()
        except HarchError as error:
            if error.code == "E0207":  # a hub of an older version
                return ""
            raise
    return loss.sentence if loss.held else ""


def _fields(outcome: Outcome) -> dict[str, object]:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(outcome)
    return fields
