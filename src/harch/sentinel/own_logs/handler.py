"""How do lines get out of a process? A handler of `logging` puts them into a queue with a limit, and never waits."""

from __future__ import annotations

import logging
import threading
from collections import deque

from harch.sentinel.own_logs.line import Line, line_of

LINES_MAX = 4096
BYTES_MAX = 2 * 1024 * 1024
OWN_LOGGER = "harch.own_logs"  # what shipping says about itself is not shipped: it would feed itself


class ShippingHandler(logging.Handler):
    """What has no room is dropped and counted in `dropped`; a record that cannot be formatted, too."""

    def __init__(self, *, lines_max: int = LINES_MAX, bytes_max: int = BYTES_MAX) -> None:
        super().__init__(logging.INFO)
        self.dropped = 0
        self._lines_max, self._bytes_max = lines_max, bytes_max
        self._queue: deque[Line] = deque()
        self._bytes = 0
        self._taking = threading.Lock()
        self._formatter = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a log that stops a daemon is worse than a line that is missing."""
        if record.name.startswith(OWN_LOGGER):
            return
        try:
            line = line_of(record, self._formatter)
        except Exception:  # noqa: BLE001 - arguments of a record may do anything when they are formatted
            self.dropped += 1
            return
        with self._taking:
            if len(self._queue) >= self._lines_max or self._bytes + len(line.text) > self._bytes_max:
                self.dropped += 1
                return
            self._queue.append(line)
            self._bytes += len(line.text)

    def take(self) -> list[Line]:
        """All that waits, the oldest first."""
        with self._taking:
            taken = list(self._queue)
            self._queue.clear()
            self._bytes = 0
        return taken
