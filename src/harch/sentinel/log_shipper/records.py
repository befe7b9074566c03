"""What does one record of a log say, and how does it leave its process?

A line without secrets; a handler of `logging` queues it, with a limit, and never waits.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from typing import NamedTuple

from harch.sentinel.collect.redaction.rules import MASKS
from harch.sentinel.model.labels import Labels, labels

# As in `sentinel.model.logs`, which brings NumPy: an agent has no room for it.
LEVEL, TRACE_ID, SPAN_ID = "level", "trace_id", "span_id"
TEXT_MAX = 16 * 1024
LEVEL_OF = {"DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error", "CRITICAL": "critical"}
_CUT = " … (cut)"
_HINTS = ("hsk_", "earer", "EARER", "://", "PRIVATE KEY")  # a text without any of them holds nothing to mask
_MASKS = tuple((re.compile(rule.pattern), rule.replacement) for rule in MASKS)
_LEVEL_WORD = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")


class ShippedLine(NamedTuple):
    time_ns: int
    text: str
    metadata: Labels = ()


def line_of(record: logging.LogRecord, formatter: logging.Formatter) -> ShippedLine:
    """The record as it may leave the process. Trace ids are there if a filter of `base.tracing` has set them."""
    metadata = labels(
        {
            LEVEL: LEVEL_OF.get(record.levelname, record.levelname.lower()),
            "logger": record.name,
            TRACE_ID: getattr(record, "trace_id", ""),
            SPAN_ID: getattr(record, "span_id", ""),
        }
    )
    return ShippedLine(round(record.created * 1e9), clean(formatter.format(record)), metadata)


def clean(text: str) -> str:
    """Without known secrets, not longer than a line may be, and nothing but text."""
    if len(text) > TEXT_MAX:
        text = text[: TEXT_MAX - len(_CUT)] + _CUT
    text = masked(text)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def masked(text: str) -> str:
    """Without known secrets. Almost no text has any of the hints."""
    if any(hint in text for hint in _HINTS):
        for pattern, replacement in _MASKS:
            text = pattern.sub(replacement, text)
    return text


def level_in(text: str) -> str:
    """The level that a line of a log file names among its first words; empty if none."""
    found = _LEVEL_WORD.search(text, 0, 60)
    return LEVEL_OF[found[1]] if found else ""


# How do lines get out of a process? A handler of `logging` puts them into a queue with a limit, and never waits.


LINES_MAX = 4096
BYTES_MAX = 2 * 1024 * 1024
OWN_LOGGER = "harch.own_logs"  # what shipping says about itself is not shipped: it would feed itself


class ShippingHandler(logging.Handler):
    """What has no room is dropped and counted in `dropped`; a record that cannot be formatted, too."""

    def __init__(self, *, lines_max: int = LINES_MAX, bytes_max: int = BYTES_MAX) -> None:
        super().__init__(logging.INFO)
        self.dropped = 0
        self._lines_max, self._bytes_max = lines_max, bytes_max
        self._queue: deque[ShippedLine] = deque()
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

    def take(self) -> list[ShippedLine]:
        """All that waits, the oldest first."""
        with self._taking:
            taken = list(self._queue)
            self._queue.clear()
            self._bytes = 0
        return taken
