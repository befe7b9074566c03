"""`harch logs` and `harch events`: print the output of a workload, or what happened; -f goes on."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.options import since_option, tail_option
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from harch.sdk import Client, Event, Workload


# `harch logs`: print the output of a workload.


_TAIL_MAX = 1_000_000


@click.command()
@click.argument("ref", metavar="ID")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow until the workload has ended.")
@click.option(
    "--rank", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Rank of the task in a gang."
)
@click.option("--all-ranks", is_flag=True, help="Every task of a gang, one after the other, each line with its rank.")
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Attempt of a restarted workload (default: the newest)."
)
@click.option("--preparation", is_flag=True, help="What was fetched and built before it started, instead.")
@since_option("Output since this time, or this long ago, e.g. 10m.")
@tail_option(_TAIL_MAX)
@remote_options
def logs_command(
    ref: str,
    following: bool,
    rank: int,
    all_ranks: bool,
    attempt: int | None,
    preparation: bool,
    since: datetime | None,
    tail: int | None,
    hub: str | None,
    as_json: bool,
) -> int:
    """Print the output of a workload.

    stdout and stderr of one task, as they were written. ID is an id or a name. With --json, one document:
    {"id", "rank", "text"}, of all ranks under `items`; -f is always text.
    """
    from harch.cli.follow import copy_log, follow
    from harch.cli.output import emit_json
    from harch.sdk.exchange import RetryPolicy
    from harch.sdk.streams import LogStream

    if following and (as_json or attempt is not None or all_ranks):
        only = "-f excludes --json, --attempt and --all-ranks"
        raise HarchError("E0201", only, hint="the followed output is the plain text of one task")
    with connect(hub) as client:
        workload = client.workloads.get(ref)
        if following:
            offset = 0
            if tail is not None or since is not None:
                machine = LogStream(
                    RetryPolicy(),
                    workload.id,
                    rank=rank,
                    attempt=None,
                    offset=0,
                    follow=False,
                    since=since,
                    preparation=preparation,
                )
                past: Iterable[bytes] = client.stream(machine)
                _copy(past if tail is None else [last_lines(past, tail)], b"")
                offset = machine.offset
            try:
                if preparation:
                    copy_log(
                        client.workloads.logs(workload.id, rank=rank, offset=offset, follow=True, preparation=True)
                    )
                else:
                    follow(client, workload, rank=rank, offset=offset)
            except KeyboardInterrupt:
                return INTERRUPTED_EXIT_CODE
            return 0
        items = []
        for one in range(_tasks(workload)) if all_ranks else (rank,):
            pieces: Iterable[bytes] = client.workloads.logs(
                workload.id, rank=one, attempt=attempt, since=since, preparation=preparation
            )
            if tail is not None:
                pieces = [last_lines(pieces, tail)]
            if as_json:
                text = b"".join(pieces).decode("utf-8", errors="replace")
                items.append({"id": workload.id, "rank": one, "text": text})
            else:
                _copy(pieces, f"[{one}] ".encode() if all_ranks else b"")
        if as_json:
            emit_json({"items": items, "total": len(items)} if all_ranks else items[0])
    return 0


def last_lines(pieces: Iterable[bytes], lines: int) -> bytes:
    """The last so many lines; one without an end counts, too."""
    kept: deque[bytes] = deque(maxlen=lines)
    open_line = b""
    for piece in pieces:
        *ended, open_line = (open_line + piece).split(b"\n")
        kept.extend(line + b"\n" for line in ended)
    if open_line:
        kept.append(open_line)
    return b"".join(kept)


def _copy(pieces: Iterable[bytes], prefix: bytes) -> None:
    """`prefix` goes before each line; then the last one is ended, too, or the next task would go on in it."""
    at_start = True
    for piece in filter(None, pieces):
        text = piece
        if prefix:
            text = (prefix if at_start else b"") + piece[:-1].replace(b"\n", b"\n" + prefix) + piece[-1:]
        sys.stdout.buffer.write(text)
        at_start = piece.endswith(b"\n")
    if prefix and not at_start:
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def _tasks(workload: Workload) -> int:
    tasks = workload.spec.get("tasks", 1)
    return tasks if isinstance(tasks, int) else 1


# `harch events`: print what happened; -f goes on.


_EVENTS_MAX = 100_000
_EVENTS_DEFAULT = 100
_PER_PAGE_MAX = 1000


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events until Ctrl-C.")
@since_option("Events since this time, or this long ago, e.g. 10m.")
@click.option("--after", type=click.IntRange(min=0), metavar="N", help="Events after this number.")
@tail_option(_EVENTS_MAX, help="Only the newest N (default: 100, all with --since or --after).")
@click.option(
    "--limit", type=click.IntRange(1, _EVENTS_MAX), hidden=True
)  # with --after the first ones, not the newest
@remote_options
def events_command(
    follow: bool,
    since: datetime | None,
    after: int | None,
    tail: int | None,
    limit: int | None,
    hub: str | None,
    as_json: bool,
) -> int:
    """Print events; -f follows.

    The newest events, oldest first. With --json one document, with -f --json one event per line.
    """
    from harch.cli.output import emit_json, note

    if limit is not None:
        note("--limit is deprecated: use --tail")
    with connect(hub) as client:
        if since is not None:
            after = max(after or 0, last_before(client, since))
        if as_json and not follow:
            items = list(_past(client, after, tail, limit))
            emit_json({"items": items, "total": len(items)})
            return 0
        show: Callable[[Event], None] = emit_json if as_json else _show
        try:
            last = after
            for event in _past(client, after, tail, limit):
                show(event)
                last = event.seq
            for event in client.events(last) if follow else ():
                show(event)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE
    return 0


def last_before(client: Client, since: datetime) -> int:
    """The number of the last event before a time; 0 if all are later. By halving: a hub may have millions."""
    low, high = 0, client.event_page(limit=1).last_seq
    while low < high:
        middle = (low + high) // 2
        following = client.event_page(middle, limit=1).items  # the first after it, as those of others are not shown
        if following and following[0].at < since:
            low = following[0].seq
        else:
            high = middle
    return low


def _past(client: Client, after: int | None, tail: int | None, limit: int | None) -> Iterable[Event]:
    if after is None:
        return _pages(client, None, next((one for one in (tail, limit) if one is not None), _EVENTS_DEFAULT))
    found = _pages(client, after, _EVENTS_MAX if limit is None else limit)
    return found if tail is None else deque(found, maxlen=tail)


def _pages(client: Client, after: int | None, limit: int) -> Iterator[Event]:
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
