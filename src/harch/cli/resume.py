"""`harch resume`: resume paused workloads."""

from __future__ import annotations

import click

from harch.cli.remote import connect, remote_options


@click.command()
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@remote_options
def command(refs: tuple[str, ...], hub: str | None, as_json: bool) -> int:
    """Resume paused workloads.

    Their processes go on where they were halted. ID is an id or a name.
    """
    from harch.cli.each import change_each

    with connect(hub) as client:
        return change_each(refs, client.workloads.resume, "resumed", as_json)
