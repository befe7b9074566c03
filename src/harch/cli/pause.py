"""`harch pause`: pause workloads; they keep their GPUs."""

from __future__ import annotations

import click

from harch.cli.remote import connect, remote_options


@click.command()
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@remote_options
def command(refs: tuple[str, ...], hub: str | None, as_json: bool) -> int:
    """Pause workloads; they keep their GPUs.

    Their processes are halted where they are. ID is an id or a name.
    """
    from harch.cli.each import change_each

    with connect(hub) as client:
        return change_each(refs, client.workloads.pause, "paused", as_json)
