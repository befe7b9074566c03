"""`harch events`: print what happened; -f goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harch.sdk import Client, Event

_EVENTS_MAX = 100_000
_PER_PAGE_MAX = 1000


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with each event as it happens, until Ctrl-C.")
@click.option("--after", type=click.IntRange(min=0), help="From this number on, instead of the newest.")
@click.option(
    "--limit", type=click.IntRange(1, _EVENTS_MAX), default=100, show_default=True, help="Past events at most."
)
@remote_options
def command(follow: bool, after: int | None, limit: int, hub: str | None, as_json: bool) -> int:
    """Print what happened; -f goes on.

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
