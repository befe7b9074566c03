"""`harch events`: print what happened; -f goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harch.sdk import Client, Event

_EVENTS_MAX = 100_000


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with each event as it happens, until Ctrl-C.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events with a higher number.")
@click.option("--limit", type=click.IntRange(1, _EVENTS_MAX), default=1000, show_default=True, help="Without -f.")
@remote_options
def command(follow: bool, after: int, limit: int, hub: str | None, as_json: bool) -> int:
    """Print what happened; -f goes on.

    With --json one document, with -f --json one event per line.
    """
    from harch.base.clock import iso
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        if as_json and not follow:
            items = list(_past(client, after, limit))
            emit_json({"items": items, "total": len(items)})
            return 0
        try:
            for event in client.events(after) if follow else _past(client, after, limit):
                if as_json:
                    emit_json(event)
                else:
                    click.echo(f"{event.seq:>6}  {iso(event.at)}  {clean(event.kind):<22}  {_sentence(event)}")
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE
    return 0


def _past(client: Client, after: int, limit: int) -> Iterator[Event]:
    while limit > 0 and (page := client.event_page(after)):
        yield from page[:limit]
        limit -= len(page)
        after = page[-1].seq


def _sentence(event: Event) -> str:
    from harch.cli.output import clean

    return clean(f"{event.subject}: {event.message}" if event.message else event.subject)
