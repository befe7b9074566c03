"""How are single keys read while a screen is drawn? The terminal gives them at once, and gets its old ways back."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
