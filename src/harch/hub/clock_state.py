"""Does anybody notice when the wall clock is set? Watches it, says so, and leaves the time to the next process.

The file is not synced: after a power failure the boot clock starts anew, and what was left is worth nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from harch.base.clock import Anchor, Clock, SteadyClock, machine_boot_id

FILE_NAME = "clock.anchor"
LOOK_EVERY_S = 1.0
LEAVE_EVERY_S = 10.0
FILE_BYTES_MAX = 64 * 1024

_log = logging.getLogger("harch.hub")


def open_clock(clock: Clock, folder: Path) -> SteadyClock:
    """The clock of a hub: goes on from what the last process of this boot left in the folder."""
    anchor = None
    with contextlib.suppress(OSError, msgspec.DecodeError), (folder / FILE_NAME).open("rb") as file:
        anchor = msgspec.json.decode(file.read(FILE_BYTES_MAX), type=Anchor)
    return SteadyClock(clock, anchor, boot_id=machine_boot_id())


class ClockWatch:
    """`note` writes an event: kind, subject, message."""

    def __init__(self, clock: SteadyClock, folder: Path, hub_id: str, note: Callable[[str, str, str], None]) -> None:
        self._clock, self._path, self._hub_id, self._note = clock, folder / FILE_NAME, hub_id, note
        self._left_s = float("-inf")
        self._failing = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        self._clock.now()
        news = self._clock.take_news()
        for one in news:
            _log.warning("%s", one.sentence)
            self._note(one.kind, self._hub_id, one.sentence)
        if news or self._clock.monotonic_s() - self._left_s >= LEAVE_EVERY_S:
            self._left_s = self._clock.monotonic_s()
            self.leave()

    def leave(self) -> None:
        """For the next process. A disk that takes nothing costs a log line."""
        draft = self._path.with_name(f"{FILE_NAME}.new")
        try:
            descriptor = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(self._clock.anchor()))
            draft.replace(self._path)
            self._failing = False
        except OSError as error:
            if not self._failing:
                _log.warning("%s cannot be written: %s", self._path, error.strerror)
            self._failing = True
