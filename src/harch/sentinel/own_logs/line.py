"""What does one record of a log say? A line with its time, level and trace, without secrets."""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from harch.sentinel.collect.redaction.shipped import MASKS
from harch.sentinel.model.labels import Labels, labels

# As in `sentinel.model.logs`, which brings NumPy: an agent has no room for it.
LEVEL, TRACE_ID, SPAN_ID = "level", "trace_id", "span_id"
TEXT_MAX = 16 * 1024
LEVEL_OF = {"DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error", "CRITICAL": "critical"}
_CUT = " … (cut)"
_HINTS = ("hsk_", "earer", "EARER", "://", "PRIVATE KEY")  # a text without any of them holds nothing to mask
_MASKS = tuple((re.compile(rule.pattern), rule.replacement) for rule in MASKS)
_LEVEL_WORD = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")


class Line(NamedTuple):
    time_ns: int
    text: str
    metadata: Labels = ()


def line_of(record: logging.LogRecord, formatter: logging.Formatter) -> Line:
    """The record as it may leave the process. Trace ids are there if a filter of `base.tracing` has set them."""
    metadata = labels(
        {
            LEVEL: LEVEL_OF.get(record.levelname, record.levelname.lower()),
            "logger": record.name,
            TRACE_ID: getattr(record, "trace_id", ""),
            SPAN_ID: getattr(record, "span_id", ""),
        }
    )
    return Line(round(record.created * 1e9), clean(formatter.format(record)), metadata)


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
