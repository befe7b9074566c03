"""How far is it? One line on stderr that is written over, for people at a terminal who wait for something long."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

SHOW_AFTER_S = 0.5  # what is over sooner shows nothing
REDRAW_S = 0.25
DUMB_EVERY_S = 10.0  # a terminal that cannot write over a line gets a new one so often
BAR_CHARS = 24
_ERASE = "\r\x1b[K"


def progress_text(what: str, done: float, total: float | None, elapsed_s: float, columns: int) -> str:
    """`simulated hours  ██████░░░░  45 %  12 s`, within so many columns; without a total, the time alone."""
    share = min(1.0, max(0.0, done / total)) if total else None
    clock = f"{elapsed_s:.0f} s" if elapsed_s < 120 else f"{elapsed_s / 60:.0f} min"
    if share is None:
        tail = f"  {clock}"
    else:
        filled = round(share * BAR_CHARS)
        tail = f"  {'█' * filled}{'░' * (BAR_CHARS - filled)}  {100 * share:3.0f} %  {clock}"
    room = columns - 1 - len(tail)  # the last column stays free: some terminals would wrap
    if room < 1:
        return tail.strip()[: max(0, columns - 1)]
    return f"{what if len(what) <= room else what[: room - 1] + '…'}{tail}"


class ProgressLine:
    """What is under way, redrawn as time goes on. Without a terminal, and after `finish`, it shows nothing."""

    def __init__(self, what: str, *, enabled: bool, stream: TextIO | None = None) -> None:
        self._what, self._stream = what, stream or sys.stderr
        self._done = 0.0
        self._total: float | None = None
        self._began_s = time.monotonic()
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._is_drawn = False
        self._dumb = os.environ.get("TERM", "dumb") == "dumb"
        self._thread: threading.Thread | None = None
        if enabled:
            self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._thread.start()

    def update(self, done: float, total: float | None = None, what: str | None = None) -> None:
        """Cheap: the line is drawn by its own thread."""
        self._done, self._total = done, total
        if what is not None:
            self._what = what

    def echo(self, text: str, *, err: bool = False) -> None:
        """A line of its own, above this one."""
        with self._lock:
            self._erase()
            click.echo(text, err=err)

    def erase(self) -> None:
        """Before somebody else prints."""
        with self._lock:
            self._erase()

    def finish(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.erase()

    def _tick(self) -> None:
        pause_s = SHOW_AFTER_S
        while not self._ended.wait(pause_s):
            pause_s = DUMB_EVERY_S if self._dumb else REDRAW_S
            with self._lock:
                if self._ended.is_set():
                    return
                self._draw()

    def _draw(self) -> None:
        columns = shutil.get_terminal_size().columns
        text = progress_text(self._what, self._done, self._total, time.monotonic() - self._began_s, columns)
        self._write(f"{text}\n" if self._dumb else f"{_ERASE}{text}")
        self._is_drawn = not self._dumb

    def _erase(self) -> None:
        if self._is_drawn:
            self._write(_ERASE)
            self._is_drawn = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal has gone; the work goes on
            self._ended.set()


def is_visible(as_json: bool = False) -> bool:
    return not as_json and sys.stderr.isatty()


@contextmanager
def progress_line(what: str, as_json: bool = False) -> Iterator[ProgressLine]:
    """Ends with the block, however that ends."""
    line = ProgressLine(what, enabled=is_visible(as_json))
    try:
        yield line
    finally:
        line.finish()
