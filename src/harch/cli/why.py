"""`harch why`: explain why a workload runs where it runs, or waits."""

from __future__ import annotations

import click

from harch.cli.remote import connect, remote_options


@click.command()
@click.argument("ref", metavar="ID")
@remote_options
def command(ref: str, hub: str | None, as_json: bool) -> None:
    """Explain why a workload runs where it runs, or waits.

    Shows every hub and every rule. ID is an id or a name.
    """
    from harch.cli.explanation import show
    from harch.cli.output import emit_json

    with connect(hub) as client:
        explanation = client.workloads.why(ref)
    if as_json:
        emit_json(explanation)
    else:
        show(explanation, ref if ref == explanation.subject else f"{ref} ({explanation.subject})")
