"""`harch logs` and `harch events`: print the output of a workload, or what happened; -f goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harch.sdk import Client, Event


# `harch logs`: print the output of a workload.


@click.command()
@click.argument("ref", metavar="ID")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow until the workload has ended.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Rank of the task in a gang.")
@click.option("--attempt", type=click.IntRange(min=1), help="Attempt of a restarted workload (default: the newest).")
@remote_options
def logs_command(ref: str, following: bool, rank: int, attempt: int | None, hub: str | None, as_json: bool) -> int:
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


# `harch events`: print what happened; -f goes on.


_EVENTS_MAX = 100_000
_PER_PAGE_MAX = 1000


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events until Ctrl-C.")
@click.option("--after", type=click.IntRange(min=0), help="Start after this event number instead of at the newest.")
@click.option(
    "--limit", type=click.IntRange(1, _EVENTS_MAX), default=100, show_default=True, help="Maximum past events."
)
@remote_options
def events_command(follow: bool, after: int | None, limit: int, hub: str | None, as_json: bool) -> int:
    """Print events; -f follows.

    The newest events, oldest first. With --json one document, with -f --json one event per line.
    """
    from harch.cli.output import emit_json

    with connect(hub) as client:
        if as_json and not follow:
            items = list(_past(client, after, limit))
            emit_json({"items": items, "total": len(items)})
            return 0
        show: Callable[[Event], None] = emit_json if as_json else _show
        try:
            last = after
            for event in _past(client, after, limit):
                show(event)
                last = event.seq
            for event in client.events(last) if follow else ():
                show(event)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE
    return 0


def _past(client: Client, after: int | None, limit: int) -> Iterator[Event]:
    while limit > 0:
        page = client.event_page(after, limit=min(limit, _PER_PAGE_MAX))
        yield from page.items
        limit -= len(page.items)
        # Without a starting point the first page holds the newest events: there is nothing after it.
        if after is None or not page.items or page.next_after >= page.last_seq:
            return
        after = page.next_after


def _show(event: Event) -> None:
    from harch.base.clock import iso
    from harch.cli.output import clean

    sentence = f"{event.subject}: {event.message}" if event.message else event.subject
    click.echo(f"{event.seq:>6}  {iso(event.at)}  {clean(event.kind):<22}  {clean(sentence)}")
