"""`harch stop`: stop workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Workload


@click.command()
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Return only when they have ended.")
@remote_options
def command(refs: tuple[str, ...], wait: bool, hub: str | None, as_json: bool) -> int:
    """Stop workloads.

    Each gets the polite signal (TERM), and the final one (KILL) after its `stop_grace_s`. ID is an id or a name.
    """
    from harch.cli.each import change_each

    with connect(hub) as client:

        def stop(ref: str) -> Workload:
            workload = client.workloads.stop(ref)
            return client.workloads.wait(workload.id) if wait else workload

        return change_each(refs, stop, "stopped" if wait else "stopping", as_json)
