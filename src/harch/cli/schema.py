"""`harch schema`: print the JSON schema of workload files, for editors."""

from __future__ import annotations

import click

from harch.cli.remote import json_option


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Print the JSON schema of workload files, for editors.

    Save it, and start workload files with `# yaml-language-server: $schema=FILE`. It is JSON with or without --json.
    """
    from harch.workloads.schema import workload_schema, workload_schema_text

    if as_json:
        from harch.cli.output import emit_json

        emit_json(workload_schema())
    else:
        click.echo(workload_schema_text(), nl=False)
