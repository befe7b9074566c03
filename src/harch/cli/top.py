"""`harch top`: the whole federation on one screen, again and again."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import remote_options
from harch.cli.top_view import INTERVAL_S_MAX, INTERVAL_S_MIN, View

if TYPE_CHECKING:
    from rich.console import RenderableType

    from harch.cli.top_gather import Federation
    from harch.cli.top_keys import Keys
    from harch.cli.top_look import Look

REDRAW_EVERY_S = 0.25  # keys and a new size of the terminal are followed at once, figures with every look
PIPED_WIDTH, PIPED_HEIGHT = 200, 100_000


@click.command()
@click.option("--once", is_flag=True, help="Print one look and end.")
@click.option(
    "--interval",
    type=click.FloatRange(INTERVAL_S_MIN, INTERVAL_S_MAX),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look.",
)
@remote_options
def command(once: bool, interval: float, hub: str | None, as_json: bool) -> int:
    """Watch the federation on one screen: hubs, work, pipelines, alerts, events.

    The asked hub tells of all hubs and of their work; pipelines, events, alerts and the age of telemetry are asked of
    each hub that can be reached. Figures of GPUs that do not exist are labelled `modelled`, intensities `measured` or
    `estimated`. With --json, one document per look. Keys: q quits, s sorts, / filters; the last line shows the others.
    """
    from harch.base.clock import SystemClock
    from harch.cli.output import emit_json
    from harch.cli.top_gather import Federation

    clock = SystemClock()
    federation = Federation(hub)
    try:
        if as_json:
            while True:
                emit_json(federation.look(clock.now()))
                if once:
                    return 0
                time.sleep(interval)
        first = federation.look(clock.now())
        if once or not sys.stdout.isatty():
            _print(first)
            return 0
        _watch(federation, first, View(interval_s=interval))
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    return 0


def _print(look: Look) -> None:
    import shutil

    from harch.cli.top_screen import screen

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    for line in screen(look, View(), width, PIPED_HEIGHT)[:-1]:  # the last line is about keys
        click.echo(line.plain)


class _Looking:
    """Looks in a thread of its own, so that keys never wait for a hub."""

    def __init__(self, federation: Federation, first: Look) -> None:
        self._federation = federation
        self._due = threading.Event()
        self.look, self.trouble, self.looked_s = first, "", time.monotonic()
        threading.Thread(target=self._run, name="looking", daemon=True).start()

    def again(self, view: View) -> None:
        """Asks for a new look if it is time."""
        if not view.paused and time.monotonic() - self.looked_s >= view.interval_s:
            self._due.set()

    def _run(self) -> None:
        from harch.base.clock import SystemClock

        while True:
            self._due.wait()
            try:
                self.look, self.trouble = self._federation.look(SystemClock().now()), ""
            except HarchError as error:  # the last look stays, with the reason below it
                self.trouble = f"no hub answers, the figures are those of {self.look.at:%H:%M:%S}: {error.message}"
            self.looked_s = time.monotonic()
            self._due.clear()


def _watch(federation: Federation, first: Look, view: View) -> None:
    from rich.live import Live

    from harch.cli.top_keys import keys_of_terminal
    from harch.cli.top_view import pressed

    looking = _Looking(federation, first)
    drawn: object = None
    with keys_of_terminal() as keys, Live(auto_refresh=False, screen=True) as live:
        while not view.leaving:
            size = live.console.size
            shown = (looking.look, looking.trouble, view, size)
            if shown != drawn:
                live.update(_picture(looking.look, looking.trouble, view, size.width, size.height), refresh=True)
                drawn = shown
            for key in _pressed(keys):
                view = pressed(view, key)
            looking.again(view)


def _pressed(keys: Keys) -> list[str]:
    try:
        return keys.wait(REDRAW_EVERY_S)
    except EOFError:
        return ["q"]


def _picture(look: Look, trouble: str, view: View, width: int, height: int) -> RenderableType:
    from rich.text import Text

    from harch.cli.top_screen import screen

    return Text("\n").join(screen(look, view, width, height, trouble=trouble))
