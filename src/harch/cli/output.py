"""How do values become text? JSON for programs, remarks and harmless words for people."""

from __future__ import annotations

import sys
import unicodedata
from datetime import datetime

import click
import msgspec

STYLES = {
    "running": "green",
    "completed": "green",
    "ready": "green",
    "ok": "green",
    "pass": "green",
    "near": "yellow",
    "failed": "red",
    "broken": "red",
    "FAIL": "red",
    "error": "red",
    "no answer": "red",
    "suspected": "red",
    "cut off": "red",
    "unheard": "yellow",
    "cordoned": "yellow",
    "draining": "yellow",
    "warning": "yellow",
    "pending": "yellow",
    "preparing": "yellow",
    "paused": "yellow",
}


def emit_json(value: object) -> None:
    """One document on one line. Flushed, so that streams arrive as they happen."""
    click.echo(msgspec.json.encode(value))
    sys.stdout.flush()


def clean(text: object) -> str:
    """Text of others made harmless for a terminal: no control characters, so no escape sequences."""
    return "".join("�" if unicodedata.category(c) == "Cc" and c != "\t" else c for c in str(text))


def note(text: str) -> None:
    """A remark for people that is not part of the result."""
    click.echo(text, err=True)


def styled(word: str) -> str:
    return click.style(word, fg=STYLES.get(word))


def age_text(age_s: float | None) -> str:
    """`3 s`, `5 min`, `2 h`, `4 d`: short enough for a column."""
    if age_s is None:
        return "never"
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f} {unit}"
    return f"{age_s:.0f} s" if age_s >= 10 else f"{age_s:.1f} s"


def since_text(moment: datetime | None, now: datetime) -> str:
    return "-" if moment is None else age_text(max(0.0, (now - moment).total_seconds()))
