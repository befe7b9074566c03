"""When does a SENTINEL end whose hub is gone? Not with it; but not never, and not beside a folder that is no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from harch.base.clock import Clock

LOOK_EVERY_S = 5.0
WITHOUT_HUB_S_MAX = 24 * 3600.0  # the alert about the hub was told many times by then, and peers tell it, too


async def until_not_needed(held: Path, heard_s: Callable[[], float], clock: Clock) -> str:
    """Returns why. `held` is a file that this process has locked; `heard_s` says when the hub answered last."""
    before = _inode(held)
    while True:
        await clock.sleep(LOOK_EVERY_S)
        if _inode(held) != before:
            return f"{held.parent} is gone"
        if clock.monotonic_s() - heard_s() > WITHOUT_HUB_S_MAX:
            return f"its hub has not answered for {WITHOUT_HUB_S_MAX / 3600:.0f} hours"


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
