"""`harch explain`: tell more about an error code."""

from __future__ import annotations

from dataclasses import asdict

import click

from harch.base.errors import REGISTRY, HarchError
from harch.cli.remote import json_option


@click.command()
@click.argument("code", metavar="CODE", required=False)
@json_option
def command(code: str | None, as_json: bool) -> None:
    """Tell more about an error code.

    Without CODE, lists all of them.
    """
    from harch.cli.output import emit_json, table

    if code is None:
        kinds = list(REGISTRY.values())
        if as_json:
            emit_json({"items": [asdict(kind) for kind in kinds], "total": len(kinds)})
        else:
            table(("CODE", "TITLE", "HTTP", "EXIT"), [(k.code, k.title, k.status, k.exit_code) for k in kinds])
        return
    kind = REGISTRY.get(code.upper())
    if kind is None:
        raise HarchError("E0201", f"`{code}` is not an error code", hint="`harch explain` lists all of them")
    if as_json:
        emit_json(asdict(kind))
    else:
        click.echo(f"{click.style(kind.code, bold=True)}: {kind.title}\n\n{kind.explanation}\n")
        click.echo(f"HTTP status {kind.status}, exit code {kind.exit_code}")
