"""How does a table fit a terminal of any width? Important columns stay, the others go; the last one takes the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2
REST_WIDTH_MIN = 8  # a column that takes the rest is not shown in less


@dataclass(frozen=True, slots=True)
class Column:
    """`importance` 0 is never left out. `takes_rest`: as wide as there is room, cut with `…`; one at most, the last."""

    title: str
    importance: int = 0
    right: bool = False
    takes_rest: bool = False
    width_max: int = 24


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """The titles and the rows as lines of at most `width` cells. Words such as `failed` get a colour, too."""
    from rich.cells import cell_len

    from harch.cli.output import STYLES, clean

    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [
        REST_WIDTH_MIN
        if column.takes_rest
        else min(column.width_max, max([cell_len(column.title), *(cell_len(row[at]) for row in cells)]))
        for at, column in enumerate(columns)
    ]
    shown = _shown(columns, widths, width)
    if shown and columns[shown[-1]].takes_rest:
        last = shown[-1]
        widths[last] = width - sum(widths[at] + GAP for at in shown[:-1])
    lines = [_line([_cut(columns[at].title, widths[at], columns[at].right) for at in shown], ["bold"] * len(shown))]
    for row in cells:
        texts = [_cut(row[at], widths[at], columns[at].right) for at in shown]
        lines.append(_line(texts, [STYLES.get(row[at], "") for at in shown]))
    for line in lines:
        line.truncate(width)  # columns that are never left out may still be too wide together
    return lines


def _shown(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Places of the columns that fit: the least important ones go first, of equal ones the later."""
    shown = list(range(len(columns)))
    while sum(widths[at] for at in shown) + GAP * (len(shown) - 1) > width:
        candidates = [at for at in shown if columns[at].importance]
        if not candidates:
            break
        shown.remove(max(candidates, key=lambda at: (columns[at].importance, at)))
    return shown


def _cut(text: str, width: int, right: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) > width:
        return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""
    return " " * (width - cell_len(text)) + text if right else set_cell_size(text, width)


def _line(texts: Sequence[str], styles: Sequence[str]) -> Text:
    from rich.text import Text

    line = Text()
    for number, (text, style) in enumerate(zip(texts, styles, strict=True)):
        if number:
            line.append(" " * GAP)
        line.append(text, style or None)
    line.rstrip()
    return line
