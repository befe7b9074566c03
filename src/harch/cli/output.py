"""How do values become text? JSON for programs, tables for people; Rich is loaded for tables only."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime

import click
import msgspec

_WIDTH_WHEN_PIPED = 10_000  # whoever reads a pipe wants whole lines

STYLES = {
    "running": "green",
    "completed": "green",
    "ready": "green",
    "ok": "green",
    "pass": "green",
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
    "paused": "yellow",
}


def emit_json(value: object) -> None:
    """One document on one line. Flushed, so that streams arrive as they happen."""
    click.echo(msgspec.json.encode(value))
    sys.stdout.flush()


def clean(text: object) -> str:
    """Text of others made harmless for a terminal: no control characters, so no escape sequences."""
    return "".join("�" if unicodedata.category(c) == "Cc" and c != "\t" else c for c in str(text))


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows below headers. Words such as `failed` get a colour too, never instead."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    on_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if on_terminal else _WIDTH_WHEN_PIPED, highlight=False)
    view = Table(box=box.SIMPLE_HEAD if on_terminal else None, pad_edge=False, header_style="bold", show_edge=False)
    for header in headers:
        view.add_column(header, overflow="fold")
    for row in rows:
        view.add_row(*(Text(text := clean(cell), style=STYLES.get(text, "")) for cell in row))
    with console.capture() as capture:
        console.print(view)
    # Rich pads every line to the width of the table; in a pipe that is noise.
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


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
