"""`harch tour`: a walk over what HarchOS does, on the running federation, which cleans up after itself."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK, HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.options import is_interactive
from harch.cli.remote import connect, json_option

if TYPE_CHECKING:
    from harch.cli.tour.progress import ProgressFile, TourProgress
    from harch.cli.tour.stations import FederationFacts, Station, TourCommand
    from harch.cli.tour.walk import StationResult, TourKey

_WIDTH_MAX = 80
_LEAVE = "\x03\x04q"


@click.command()
@click.option("--list", "listing", is_flag=True, help="List the stations and exit.")
@click.option("--station", metavar="NAME", help="Visit only this station.")
@click.option("--restart", is_flag=True, help="Begin with the first station.")
@click.option("-y", "--yes", is_flag=True, help="Run every command without asking.")
@json_option
def command(listing: bool, station: str | None, restart: bool, yes: bool, as_json: bool) -> int:
    """Walk through what HarchOS does, on the running federation.

    Each station explains, shows a command, runs it on Enter and says what to notice; s skips the station, q quits.
    The next `harch tour` resumes. Work that it starts is stopped, also after Ctrl-C. With --yes --json, one document
    says how each station went, and output goes to stderr.
    """
    from harch.cli.tour.edge import facts_of
    from harch.cli.tour.progress import ProgressFile, new_progress
    from harch.cli.tour.stations import chosen, plan_tour
    from harch.sdk.contexts import contexts_file

    if not listing and not yes and (as_json or not is_interactive()):
        hint = "`harch tour --yes` runs every command without asking"
        raise HarchError("E0201", "cannot ask before each command: pass --yes", hint=hint)
    with connect() as client:
        federation = ",".join(sorted({client.settings.url, *client.settings.others}))
        facts = facts_of(client)
    file = ProgressFile(contexts_file().with_name("tour.json"), federation)
    if listing:
        _list(plan_tour(facts, new_progress().tag), file.read(), as_json)
        return EXIT_OK
    with file.held(), _stopped_as_by_ctrl_c():
        before, progress = file.read(), new_progress()
        if before is not None and not restart:
            progress = progress.resumed(before)
        stations = plan_tour(facts, progress.tag)
        todo = progress.todo(stations) if station is None else (chosen(stations, station).name,)
        terminal = _Terminal(facts, file, progress, yes=yes, as_json=as_json)
        if before is not None:
            terminal.stop_work_of(before.tag)  # of a tour that was killed: others have stopped theirs
        return terminal.take(stations, todo)


def _list(stations: Sequence[Station], progress: TourProgress | None, as_json: bool) -> None:
    from harch.cli.output import emit_json
    from harch.cli.views.table import TableColumn, table

    passed = progress.passed if progress is not None else ()
    rows = [(one.name, one.title, "yes" if one.name in passed else "", one.not_here) for one in stations]
    if as_json:
        keys = ("name", "title", "passed", "not_here")
        items = [dict(zip(keys, (name, title, bool(seen), why), strict=True)) for name, title, seen, why in rows]
        emit_json({"items": items, "total": len(items)})
        return
    columns = (TableColumn("STATION"), TableColumn("TITLE", 1), TableColumn("PASSED", 2))
    table((*columns, TableColumn("NOT HERE BECAUSE", 3, takes_rest=True)), rows)


@contextmanager
def _stopped_as_by_ctrl_c() -> Iterator[None]:
    """A terminal that is closed, or a TERM, must not leave work behind either."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Terminal:
    """The `TourEdge` of one call: whoever sits there, `harch` as a process, and the file of progress."""

    def __init__(
        self, facts: FederationFacts, file: ProgressFile, progress: TourProgress, *, yes: bool, as_json: bool
    ) -> None:
        self._facts, self._file, self._progress = facts, file, progress
        self._yes, self._as_json = yes, as_json

    def take(self, stations: tuple[Station, ...], todo: Sequence[str]) -> int:
        """The exit code: 1 if a station failed."""
        from harch.cli.output import emit_json
        from harch.cli.tour.walk import StationOutcome, walk

        self._file.write(self._progress)  # with its tag, before anything bears that name
        if self._progress.passed and len(todo) > 1:
            self._print(f"resuming with `{todo[0]}`; `harch tour --restart` begins with the first station", dim=True)
        try:
            results = walk(stations, todo, self)
        except KeyboardInterrupt:
            self._print("\nleft the tour; `harch tour` resumes.")
            return INTERRUPTED_EXIT_CODE
        finally:
            if not self._progress.todo(stations):
                self._file.write(None)
        left = self._progress.todo(stations)
        if self._as_json:
            emit_json({"items": results, "total": len(results), "left": left})
        elif len(results) < len(todo):
            self._print("left the tour; `harch tour` resumes.")
        elif not left:
            self._print("That was the tour; none of its work is left running. `harch tour` begins again.")
        else:
            self._print(f"Not seen yet: {', '.join(left)}. `harch tour` goes on with what is left.")
        return EXIT_ERROR if any(one.outcome is StationOutcome.FAILED for one in results) else EXIT_OK

    # What the walk needs of its edge.

    def show(self, station: Station, number: int, total: int) -> None:
        self._print()
        self._print(f"{number}/{total}  {station.title}", bold=True)
        self._print(_wrapped(station.text))

    def prompt(self, command: TourCommand | None) -> TourKey:
        from harch.cli.tour.walk import TourKey

        self._print()
        if command is not None:
            self._print(f"  $ {command}", bold=True)
        if self._yes:
            return TourKey.NEXT
        what = "Enter runs it" if command is not None else "Enter goes on"
        self._print(f"  [{what}, s skips the station, q quits] ", dim=True, newline=False)
        key = _key("\r\n s" + _LEAVE)
        self._print()
        if key in _LEAVE:
            return TourKey.QUIT
        return TourKey.SKIP if key == "s" else TourKey.NEXT

    def run(self, command: TourCommand) -> int:
        from harch.cli.tour.edge import run_harch

        return run_harch(command, sys.stderr.buffer if self._as_json else None)

    def sentinel_gap(self) -> str:
        from harch.cli.tour.edge import sentinel_gap

        return sentinel_gap()

    def clean_up(self) -> None:
        self.stop_work_of(self._progress.tag)

    def stop_work_of(self, tag: str) -> None:
        from harch.cli.tour.edge import stop_all

        if stopped := stop_all(tag, self._facts.home.id):
            self._print(f"stopped {', '.join(stopped)}", dim=True)

    def say(self, result: StationResult, notice: str) -> None:
        from harch.cli.tour.walk import StationOutcome

        if notice:
            self._print()
            self._print(_wrapped(f"Notice: {notice}"))
        elif result.outcome is StationOutcome.FAILED:
            self._print()
            self._print(_wrapped(f"This station failed: {result.detail}. The tour goes on."), colour="red")
        elif result.outcome is StationOutcome.NOT_HERE:
            self._print(_wrapped(f"Not on this federation: {result.detail}."), dim=True)
        elif result.outcome is StationOutcome.NOT_READY:
            self._print(_wrapped(f"Not ready yet: {result.detail}. A later `harch tour` shows it."), colour="yellow")

    def remember(self, result: StationResult) -> None:
        from harch.cli.tour.walk import PASSED

        if result.outcome in PASSED:
            self._progress = self._progress.after(result.name)
            self._file.write(self._progress)

    def _print(
        self, text: str = "", *, bold: bool = False, dim: bool = False, colour: str | None = None, newline: bool = True
    ) -> None:
        """To stderr where stdout is for the one document."""
        click.secho(text, bold=bold or None, dim=dim or None, fg=colour, nl=newline, err=self._as_json)
        (sys.stderr if self._as_json else sys.stdout).flush()


def _key(known: str, read: Callable[[], str] = click.getchar) -> str:
    """The next key that means something; a terminal that is gone means to leave."""
    while True:
        try:
            key = read().lower()
        except EOFError:
            return "q"
        if key in known:
            return key


def _wrapped(text: str) -> str:
    import shutil

    return textwrap.fill(text, min(_WIDTH_MAX, shutil.get_terminal_size().columns), break_long_words=False)
