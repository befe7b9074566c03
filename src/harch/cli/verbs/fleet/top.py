"""`harch top`: the whole federation on one screen, again and again, steered by single keys."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.live_screen.view_options import ViewOptions
from harch.cli.options import renamed
from harch.cli.remote import remote_options
from harch.cli.watch import OLD_INTERVAL, WATCH_S, WatchCommand, watch_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from harch.cli.live_screen.poller import FederationPoller
    from harch.cli.live_screen.snapshot import FederationSnapshot


BYTES_MAX = 64


class Keys:
    """Keys of a terminal; without one there are none."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def wait(self, timeout_s: float) -> list[str]:
        """What was pressed within the time. An arrow or function key is one entry, which nobody mistakes for Esc."""
        if self._descriptor is None:
            select.select([], [], [], timeout_s)
            return []
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return []
        raw = os.read(self._descriptor, BYTES_MAX)
        if not raw:  # the terminal is gone
            raise EOFError
        return keys_in(raw.decode("utf-8", "replace"))


def keys_in(text: str) -> list[str]:
    """Characters one by one; what begins with Esc and goes on belongs together."""
    at = text.find("\x1b")
    if at < 0 or len(text) == at + 1:
        return list(text)
    return [*text[:at], text[at:]]


@contextmanager
def keys_of_terminal() -> Iterator[Keys]:
    """Single keys without echo, until the block ends."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# `harch top`: the whole federation on one screen, again and again.


REDRAW_EVERY_S = 0.25  # keys and a new size of the terminal are followed at once, figures with every look
PIPED_WIDTH, PIPED_HEIGHT = 200, 100_000


@click.command(cls=WatchCommand)
@click.option("--once", is_flag=True, help="Print once and exit.")
@watch_option
@renamed(OLD_INTERVAL, "--watch")
@remote_options
def command(once: bool, watch_s: float | None, hub: str | None, as_json: bool) -> int:
    """Watch the federation on one screen: hubs, work, pipelines, alerts, events.

    The queried hub reports all hubs and their work; pipelines, events, alerts and the age of telemetry come from
    each reachable hub. Values of GPUs that do not exist are labelled `modelled`, intensities `measured` or
    `estimated`. With --json, one document per refresh. Keys: q quits, s sorts, / filters; the last line lists the rest.
    """
    from harch.base.clock import SystemClock
    from harch.cli.live_screen.poller import FederationPoller
    from harch.cli.output import emit_json

    interval = WATCH_S if watch_s is None else watch_s
    clock = SystemClock()
    federation = FederationPoller(hub)
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
            while watch_s is not None and not once:
                time.sleep(interval)
                _print(federation.look(clock.now()))
            return 0
        _watch(federation, first, ViewOptions(interval_s=interval))
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    return 0


def _print(look: FederationSnapshot) -> None:
    import shutil

    from harch.cli.live_screen.screen import screen

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    for line in screen(look, ViewOptions(), width, PIPED_HEIGHT)[:-1]:  # the last line is about keys
        click.echo(line.plain)


class _Refresher:
    """Looks in a thread of its own, so that keys never wait for a hub."""

    def __init__(self, federation: FederationPoller, first: FederationSnapshot) -> None:
        self._federation = federation
        self._due = threading.Event()
        self.look, self.trouble, self.looked_s = first, "", time.monotonic()
        threading.Thread(target=self._run, name="looking", daemon=True).start()

    def again(self, view: ViewOptions) -> None:
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
                self.trouble = f"no hub answers; the values are from {self.look.at:%H:%M:%S}: {error.message}"
            self.looked_s = time.monotonic()
            self._due.clear()


def _watch(federation: FederationPoller, first: FederationSnapshot, view: ViewOptions) -> None:
    from rich.live import Live

    from harch.cli.live_screen.view_options import pressed

    refresher = _Refresher(federation, first)
    drawn: object = None
    with keys_of_terminal() as keys, Live(auto_refresh=False, screen=True) as live:
        while not view.leaving:
            size = live.console.size
            current = (refresher.look, refresher.trouble, view, size)
            if current != drawn:
                live.update(_picture(refresher.look, refresher.trouble, view, size.width, size.height), refresh=True)
                drawn = current
            for key in _pressed(keys):
                view = pressed(view, key)
            refresher.again(view)


def _pressed(keys: Keys) -> list[str]:
    try:
        return keys.wait(REDRAW_EVERY_S)
    except EOFError:
        return ["q"]


def _picture(look: FederationSnapshot, trouble: str, view: ViewOptions, width: int, height: int) -> RenderableType:
    from rich.text import Text

    from harch.cli.live_screen.screen import screen

    return Text("\n").join(screen(look, view, width, height, trouble=trouble))
