"""`harch pipeline sign`: an authority lets an aggregate of a pipeline permit more than the data it is made from."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from harch.base.errors import HarchError
from harch.cli.data_authority import key_file_option, read_key
from harch.cli.quantity import DURATION


@click.command("sign")
@click.argument("file", type=click.Path(dir_okay=False), metavar="FILE")
@click.option("--export", "export_name", metavar="NAME", required=True, help="The export, by its name in the file.")
@click.option("--authority", "authority_name", metavar="NAME", required=True, help="In whose name it is signed.")
@key_file_option
@click.option("--reason", metavar="TEXT", required=True, help="Why; it stands in the pipeline file.")
@click.option("--valid", type=DURATION, default="1d", metavar="TIME", help="Until when the file has to be applied.")
@click.option("--json", "as_json", is_flag=True, help="The statement alone, as JSON.")
def sign_export(
    file: str, export_name: str, authority_name: str, key_file: str, reason: str, valid: float, as_json: bool
) -> None:
    """Sign that an export may have its looser tag; prints what to write into the file, beside that tag.

    Nothing is sent. The statement is about this export, the tag of its data and its own tag: a change of any of them
    takes another one.
    """
    import msgspec

    from harch.base.clock import SystemClock
    from harch.cli.output import emit_json
    from harch.pipelines.spec.file import parse_pipelines
    from harch.pipelines.spec.release import as_object, export_tag
    from harch.sovereignty.declassification import Declassification, sign
    from harch.sovereignty.in_force import jurisdictions_in_force

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
