"""What does `ps` say a process is? Its own words, also where it was forked from one that was started with others."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

ROOM = "." * 4096  # as the last argument of a process whose forks are to have room for their words
_ARG_START, _ARG_END = 45, 46  # among the fields after the name


def set_arguments(words: Sequence[str]) -> None:
    """Replaces the arguments that the kernel shows, word by word; what does not fit is cut off.

    The environment beside them stays: others tell by it whose a process is.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    except (OSError, IndexError, ValueError):
        return
    room = end - start
    if start and room > 0:
        text = b"".join(word.encode() + b"\0" for word in words)[: room - 1]
        ctypes.memset(start, 0, room)
        ctypes.memmove(start, text, len(text))
