"""Looks at a live view as its reader does: on a terminal, for some seconds, then Ctrl-C. Prints what was shown."""

from __future__ import annotations

import os
import pty
import select
import sys
import time

CTRL_C = b"\x03"
ENDS_WITHIN_S = 20.0


def watch(command: str, seconds: float) -> bytes:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "-c", command])
    shown = _read(terminal, seconds)
    os.write(terminal, CTRL_C)
    shown += _read(terminal, ENDS_WITHIN_S)
    os.close(terminal)
    os.waitpid(pid, 0)
    return shown


def _read(terminal: int, seconds: float) -> bytes:
    """Until the time is over or the program has closed its terminal."""
    shown = b""
    until = time.monotonic() + seconds
    while select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody has it open any more
            return shown
        if not piece:
            return shown
        shown += piece
    return shown


if __name__ == "__main__":
    shown = watch(sys.argv[2], float(sys.argv[1]))
    sys.stdout.buffer.write(shown)
    sys.exit(0 if shown.strip() else 1)
