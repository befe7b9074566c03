"""How is a curve drawn in a terminal? Braille dots over axes of values and time, with marks that a legend explains.

Every curve has a colour and a mark of its own, so that curves differ without colours too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from harch.cli.output import clean
from harch.cli.views.axes import PREFIXES, ValueScale, day_label, label_row, time_ticks, value_scale

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK = 0x2800
MARKS = ("●", "▲", "■", "+", "×", "○", "◇")
CURVES_MAX = len(MARKS)
MARKS_PER_CURVE = 6  # as far as there is room for those of all curves
PREFIXED_MAX = 1e15
VALUE_MAX = 1e300
GAP_STEPS = 1.5  # of the usual distance between points: beyond, one or more are missing

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ChartCurve:
    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """Curves over common axes, for the terminal or a file. `why_empty` is said where there are none; with `is_elapsed`
    times are seconds since a start, which is no date. `moment` is a time to point at, and what was then."""

    curves: Sequence[ChartCurve]
    title: str = ""
    unit: str = ""
    quantity: str = "value"
    zero_based: bool = False
    between: tuple[float, float] | None = None
    why_empty: str = "nothing to draw"
    is_elapsed: bool = False
    moment: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines of text, with the curve that each character belongs to (-1: none)."""

    rows: list[str]
    owners: list[list[int]]
    low: float
    high: float


@dataclass(slots=True)
class _Canvas:
    """A grid of cells with 2 x 4 dots each, over a range of times and of values."""

    width: int
    height: int
    first: float
    last: float
    low: float
    high: float
    dots: list[list[int]] = field(init=False)
    owners: list[list[int]] = field(init=False)
    marks: dict[tuple[int, int], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.dots = [[0] * self.width for _ in range(self.height)]
        self.owners = [[-1] * self.width for _ in range(self.height)]

    def across(self, x: float) -> float:
        """In dots, from the left."""
        return (x - self.first) / ((self.last - self.first) or 1.0) * (2 * self.width - 1)

    def down(self, y: float) -> float:
        """In dots, from the top."""
        return (self.high - y) / (self.high - self.low) * (4 * self.height - 1)

    def dot(self, across: float, down: float, owner: int) -> None:
        column, row = round(across), round(down)
        self.dots[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
        self.owners[row // 4][column // 2] = owner

    def line(self, points: Sequence[Point], owner: int) -> None:
        at = [(self.across(x), self.down(y)) for x, y in points]
        for (x0, y0), (x1, y1) in pairwise(at):
            steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps):
                self.dot(x0 + step / steps * (x1 - x0), y0 + step / steps * (y1 - y0), owner)
        self.dot(*at[-1], owner)

    def mark(self, runs: Sequence[Sequence[Point]], owner: int, of: int) -> None:
        """Marks at columns that no other curve marks, so that curves over one another can be told apart."""
        every = max(of, self.width // MARKS_PER_CURVE)
        wanted = range((2 * owner + 1) * every // (2 * of), self.width, every)
        cells = [cell for column in wanted for run in runs if (cell := self._cell_at(run, column)) is not None]
        free = [cell for cell in cells if cell not in self.marks]
        if not free:  # short curves: at the last point that is not marked yet
            ends = [(round(self.down(y)) // 4, round(self.across(x)) // 2) for run in runs for x, y in run]
            free = [next((cell for cell in reversed(ends) if cell not in self.marks), ends[-1])]
        for cell in free:
            self.marks[cell] = owner

    def _cell_at(self, run: Sequence[Point], column: int) -> tuple[int, int] | None:
        """Where a run of points crosses the middle of a column."""
        middle = 2 * column + 0.5
        for before, after in pairwise(run):
            x0, x1 = self.across(before[0]), self.across(after[0])
            if x0 <= middle <= x1:
                share = (middle - x0) / ((x1 - x0) or 1.0)
                return round(self.down(before[1] + share * (after[1] - before[1]))) // 4, column
        return None

    def chart(self) -> Chart:
        rows = [[chr(_BLANK | cell) for cell in row] for row in self.dots]
        for (row, column), owner in self.marks.items():
            rows[row][column] = MARKS[owner % len(MARKS)]
            self.owners[row][column] = owner
        return Chart(["".join(row) for row in rows], self.owners, self.low, self.high)


def drawn(
    curves: Sequence[ChartCurve],
    width: int,
    height: int,
    *,
    zero_based: bool = False,
    between: tuple[float, float] | None = None,
    scale: ValueScale | None = None,
) -> Chart:
    """The curves over a common scale, and over the time `between` if it is given. Values that are no numbers, and
    points that are missing, leave gaps."""
    runs = [list(_runs(curve.points)) for curve in curves]
    low, high = (scale.low, scale.high) if scale is not None else value_bounds(curves, zero_based=zero_based)
    first, last = time_bounds(curves, between)
    canvas = _Canvas(width, height, first, last, low, high)
    for owner, found in enumerate(runs):
        for run in found:
            canvas.line(run, owner)
    for owner, found in enumerate(runs):
        if found:
            canvas.mark(found, owner, len(runs))
    return canvas.chart()


def is_drawn(value: float) -> bool:
    """Numbers that a scale can hold: not infinite, not NaN, and not so large that a range of them would be infinite."""
    return abs(value) <= VALUE_MAX


def value_bounds(curves: Sequence[ChartCurve], *, zero_based: bool = False) -> tuple[float, float]:
    """The lowest and the highest value; never the same."""
    values = [y for curve in curves for _, y in curve.points if is_drawn(y)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if zero_based:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        return (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    return low, high


def time_bounds(curves: Sequence[ChartCurve], between: tuple[float, float] | None) -> tuple[float, float]:
    times = [x for curve in curves for x, y in curve.points if is_drawn(y)] + list(between or ())
    return (min(times), max(times)) if times else (0.0, 1.0)


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Points that belong together: where values are missing, another run begins."""
    steps = sorted(after[0] - before[0] for before, after in pairwise(points))
    longest = GAP_STEPS * steps[len(steps) // 2] if steps else 0.0  # of the median
    run: list[Point] = []
    for x, y in points:
        if run and (not is_drawn(y) or x - run[-1][0] > longest):
            yield run
            run = []
        if is_drawn(y):
            run.append((x, y))
    if run:
        yield run


def with_breaks(points: Sequence[Point]) -> list[Point]:
    """The same points with one that is no number wherever values are missing, for what joins all others."""
    found: list[Point] = []
    for run in _runs(points):
        if found:
            found.append((run[0][0], math.nan))
        found += run
    return found


def short_number(value: float, unit: str = "") -> str:
    """`1.25M`, `640 W`, `0.031`: three digits that a person can compare."""
    gap = " " if unit and unit != "%" else ""
    if not math.isfinite(value):
        return f"{value}"
    rounded = float(f"{value:.3g}")  # 999.9 is 1k, and not 1e+03
    for factor, prefix in PREFIXES:
        if factor <= abs(rounded) < PREFIXED_MAX:
            return f"{rounded / factor:.3g}{gap}{prefix}{unit}"
    return f"{value:.3g}{gap}{unit}"


# How does a chart look? The unit, a scale at the left, curves with marks, times in UTC below, and a legend.


COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "white")
GUTTER_MIN = 10  # of the scale at the left: a date and `UTC` stand below it
ROWS_PER_TICK = 3
WIDTH_MIN = 30
LEGEND_GAP = 3


def chart_text(
    curves: Sequence[ChartCurve],
    width: int,
    height: int,
    *,
    unit: str,
    zero_based: bool,
    between: tuple[float, float] | None = None,
    moment: tuple[float, str] | None = None,
    is_elapsed: bool = False,
) -> Text:
    """No line is wider than `width`. `moment` is a time to point at, and what was then."""
    width = max(WIDTH_MIN, width)
    low, high = value_bounds(curves, zero_based=zero_based)
    scale = value_scale(low, high, max(2, height // ROWS_PER_TICK + 1))
    gutter = max(GUTTER_MIN, *(len(label) for label in scale.labels))
    inner = width - gutter - 2
    first, last = time_bounds(curves, between)
    chart = drawn(curves, inner, height, between=between, scale=scale)
    text = Text(no_wrap=True)
    if unit:
        text.append(f"{clean(unit):>{gutter}}\n", "dim")
    labels = {
        round((scale.high - tick) / (scale.high - scale.low) * (4 * height - 1)) // 4: label
        for tick, label in zip(scale.ticks, scale.labels, strict=True)
    }
    for number, (row, owners) in enumerate(zip(chart.rows, chart.owners, strict=True)):
        text.append(f"{labels.get(number, ''):>{gutter}} {'┤' if number in labels else '│'}", "dim")
        for character, owner in zip(row, owners, strict=True):
            text.append(character, _colour(owner) if owner >= 0 else "")
        text.append("\n")
    ticks = time_ticks(first, last, inner, elapsed=is_elapsed)
    day = "elapsed" if is_elapsed else f"{day_label(first)} UTC"
    columns = {tick.column for tick in ticks}
    rule = "".join("┬" if column in columns else "─" for column in range(inner))
    text.append(f"{'':>{gutter}} └{rule}\n{day:>{gutter}}  {label_row(ticks, inner)}\n", "dim")
    if moment is not None:
        column = round((moment[0] - first) / ((last - first) or 1.0) * (inner - 1))
        text.append(f"{'':>{gutter}}  {_pointer(column, clean(moment[1]), inner)}\n", "dim")
    _append_legend(text, curves, gutter, width, unit)
    return text


def _colour(owner: int) -> str:
    return COLOURS[owner % len(COLOURS)]


def _pointer(column: int, caption: str, width: int) -> str:
    """`↑ fired` below a column; the caption stands where there is room."""
    column = min(width - 1, max(0, column))
    right = f"↑ {caption}"
    return " " * column + right if column + len(right) <= width else f"{caption} ↑".rjust(column + 1)


def _append_legend(text: Text, curves: Sequence[ChartCurve], gutter: int, width: int, unit: str) -> None:
    """Each curve's mark, name and last value, side by side as far as they fit; a long name loses its end."""
    room = width - gutter - 2
    entries: list[tuple[str, str]] = []
    for curve in curves:
        last = next((short_number(y, unit) for _, y in reversed(curve.points)), "no data")
        last = last if cell_len(last) <= room - 6 else set_cell_size(last, room - 6)
        name = clean(curve.name)
        name_room = max(1, room - cell_len(last) - 4)  # a mark, and what stands between
        if cell_len(name) > name_room:
            name = set_cell_size(name, name_room - 1) + "…"
        entries.append((name, last))
    longest = max((cell_len(name) + cell_len(last) + 4 for name, last in entries), default=1)
    across = max(1, (room + LEGEND_GAP) // (longest + LEGEND_GAP))
    for number, (name, last) in enumerate(entries):
        if number % across == 0:
            text.append(f"{'':>{gutter}}  ")
        text.append(f"{MARKS[number % len(MARKS)]} ", _colour(number))
        text.append(f"{name}  {last}")
        ends = number % across == across - 1 or number == len(entries) - 1
        text.append("\n" if ends else " " * (longest + LEGEND_GAP - cell_len(name) - cell_len(last) - 4))
