"""How do rows become a table? Columns leave by importance, and only text that may be cut is cut; nothing is folded.

Rich is loaded when there is a table to print.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from harch.cli.output import STYLES, clean, note

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2
REST_WIDTH_MIN = 8  # a column that takes the rest is not shown in less


@dataclass(frozen=True, slots=True)
class TableColumn:
    """`importance` 0 is never left out, of the others the highest goes first.

    `takes_rest`: as wide as there is room, cut with `…`; one at most, the last. `width_max`: cut beyond that; None
    for what people copy, such as ids. `wide_only`: in a list, shown only with `-o wide` or by its name.
    """

    title: str
    importance: int = 0
    right: bool = False
    takes_rest: bool = False
    width_max: int | None = None
    wide_only: bool = False


def table(columns: Sequence[TableColumn], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows below their titles, as a list is printed, for what is no list."""
    missing = show_rows(columns, rows)
    if missing:
        note(f"no room for {', '.join(missing)}: a wider terminal shows more, --json all")


def show_rows(
    columns: Sequence[TableColumn], rows: Iterable[Sequence[object]], *, titles: bool = True, whole: bool = False
) -> list[str]:
    """Prints rows as they fit the terminal; `whole`, and in a pipe, as wide as they are.

    Returns the titles of the columns for which there was no room, unless they are empty.
    """
    from rich.console import Console

    cells = [[clean(cell) for cell in row] for row in rows]
    console = Console(file=sys.stdout, highlight=False)
    width = None if whole or not sys.stdout.isatty() else console.width
    visible = list(range(len(columns))) if width is None else visible_columns(columns, cells, width)
    with console.capture() as drawn:  # printed by Rich itself, a reader that has gone would end the process with 1
        for line in draw(columns, cells, visible, width)[0 if titles else 1 :]:
            console.print(line, soft_wrap=True)  # the terminal wraps what is too long, so that it can be copied whole
    click.echo(drawn.get(), nl=False)
    sys.stdout.flush()
    known = {*visible, *_empty_columns(columns, cells)}
    return [column.title for at, column in enumerate(columns) if at not in known]


def visible_columns(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Places of the columns that fit into so many cells: those that say nothing go first, then the least important."""
    widths, empty = _widths(columns, rows), _empty_columns(columns, rows)
    visible = list(range(len(columns)))
    while sum(widths[at] for at in visible) + GAP * (len(visible) - 1) > width:
        candidates = [at for at in visible if columns[at].importance]
        if not candidates:
            break
        visible.remove(max(candidates, key=lambda at: (at in empty, columns[at].importance, at)))
    return visible


def _empty_columns(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> set[int]:
    return {at for at in range(len(columns)) if rows and all(row[at] in {"", "-"} for row in rows)}


def fit(columns: Sequence[TableColumn], rows: Sequence[Sequence[object]], width: int) -> list[Text]:
    """The titles and the rows as lines of at most `width` cells. Words such as `failed` get a colour, too."""
    cells = [[clean(cell) for cell in row] for row in rows]
    lines = draw(columns, cells, visible_columns(columns, cells, width), width)
    for line in lines:
        line.truncate(width)  # columns that are never left out may still be too wide together
    return lines


def draw(
    columns: Sequence[TableColumn], cells: Sequence[Sequence[str]], visible: Sequence[int], width: int | None
) -> list[Text]:
    """The titles and the rows of these columns. `width` None: as wide as they are, and nothing is cut."""
    widths = _widths(columns, cells, cut=width is not None)
    if width is not None and visible and columns[visible[-1]].takes_rest:
        last = visible[-1]
        widths[last] = max(REST_WIDTH_MIN, width - sum(widths[at] + GAP for at in visible[:-1]))
    titles = [_fit(columns[at].title, widths[at], columns[at].right) for at in visible]
    lines = [_line(titles, ["bold"] * len(visible))]
    for row in cells:
        strings = [_fit(row[at], widths[at], columns[at].right) for at in visible]
        lines.append(_line(strings, [STYLES.get(row[at], "") for at in visible]))
    return lines


def _widths(columns: Sequence[TableColumn], cells: Sequence[Sequence[str]], *, cut: bool = True) -> list[int]:
    from rich.cells import cell_len

    widths = []
    for at, column in enumerate(columns):
        longest = max([cell_len(column.title), *(cell_len(row[at]) for row in cells)])
        if cut and column.takes_rest:
            longest = min(longest, REST_WIDTH_MIN)
        elif cut and column.width_max is not None:
            longest = min(longest, column.width_max)
        widths.append(longest)
    return widths


def _fit(text: str, width: int, right: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) > width:
        return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""
    return " " * (width - cell_len(text)) + text if right else set_cell_size(text, width)


def _line(strings: Sequence[str], styles: Sequence[str]) -> Text:
    from rich.text import Text

    line = Text(no_wrap=True)
    for number, (text, style) in enumerate(zip(strings, styles, strict=True)):
        if number:
            line.append(" " * GAP)
        line.append(text, style or None)
    line.rstrip()
    return line
