"""`harch logs`: print the output of a workload."""

from __future__ import annotations

import sys

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options


@click.command()
@click.argument("ref", metavar="ID")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the workload has ended.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Which task of a gang.")
@click.option("--attempt", type=click.IntRange(min=1), help="An earlier start of a restarted workload.")
@remote_options
def command(ref: str, following: bool, rank: int, attempt: int | None, hub: str | None, as_json: bool) -> int:
    """Print the output of a workload.

    stdout and stderr of one task, as they were written. ID is an id or a name. With --json, one document:
    {"id", "rank", "text"}; -f is always text.
    """
    from harch.cli.follow import follow
    from harch.cli.output import emit_json

    if following and (as_json or attempt is not None):
        raise HarchError("E0201", "-f excludes --json and --attempt", hint="the followed output is plain text")
    with connect(hub) as client:
        workload = client.workloads.get(ref)
        if following:
            try:
                follow(client, workload, rank=rank)
            except KeyboardInterrupt:
                return INTERRUPTED_EXIT_CODE
            return 0
        pieces = client.workloads.logs(workload.id, rank=rank, attempt=attempt)
        if as_json:
            text = b"".join(pieces).decode("utf-8", errors="replace")
            emit_json({"id": workload.id, "rank": rank, "text": text})
            return 0
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return 0
