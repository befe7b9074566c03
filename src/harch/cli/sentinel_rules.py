"""`harch sentinel rules`: rule files looked at before they are used."""

from __future__ import annotations

from pathlib import Path

import click

from harch.base.errors import HarchError
from harch.cli.remote import json_option


@click.group()
def rules() -> None:
    """Check rule files before they are used."""


@rules.command("check")
@click.argument("paths", nargs=-1, required=True, type=click.Path(dir_okay=False))
@json_option
def check(paths: tuple[str, ...], as_json: bool) -> None:
    """Read rule files as SENTINEL would: expressions, templates, labels and durations, every mistake with its place."""
    from harch.cli.output import emit_json
    from harch.sentinel.promql.syntax.parser import parse
    from harch.sentinel.rules.loading import read_rule_files

    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise HarchError("E0640", f"{missing[0]} cannot be read: it does not exist", hint="check the path")
    found = read_rule_files(paths, check_expression=parse)
    counts = {file.name: sum(len(group.rules) for group in file.groups) for file in found}
    if as_json:
        remarks = {file.name: file.remarks for file in found}
        emit_json(
            {"items": [{"file": name, "rules": count, "remarks": remarks[name]} for name, count in counts.items()]}
        )
        return
    for file in found:
        click.echo(f"{file.name}: {counts[file.name]} rules are fine")
        for remark in file.remarks:
            click.echo(f"  {remark}")
