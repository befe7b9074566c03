"""How is a curve drawn in a terminal? Braille dots in colours, a scale at the left, names below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

from harch.cli.output import clean

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK = 0x2800
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ChartCurve:
    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines of text, with the curve that each character belongs to (-1: none)."""

    rows: list[str]
    owners: list[list[int]]
    low: float
    high: float


def drawn(
    curves: Sequence[ChartCurve],
    width: int,
    height: int,
    *,
    zero_based: bool = False,
    between: tuple[float, float] | None = None,
) -> Chart:
    """The curves over a common scale, and over the time `between` if it is given. Values that are no numbers leave
    gaps."""
    finite = [[(x, y) for x, y in curve.points if math.isfinite(y)] for curve in curves]
    values = [y for points in finite for _, y in points]
    times = [x for points in finite for x, _ in points] + list(between or ())
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if zero_based:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        low, high = (low - 1.0, high + 1.0) if low else (0.0, 1.0)
    first, last = (min(times), max(times)) if times else (0.0, 1.0)
    cells = [[0] * width for _ in range(height)]
    owners = [[-1] * width for _ in range(height)]

    def dot(x: float, y: float, owner: int) -> None:
        column = round((x - first) / ((last - first) or 1.0) * (2 * width - 1))
        row = round((high - y) / (high - low) * (4 * height - 1))
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
        owners[row // 4][column // 2] = owner

    for owner, points in enumerate(finite):
        for before, after in pairwise(points):
            down = abs(after[1] - before[1]) / (high - low) * 4 * height
            across = (after[0] - before[0]) / ((last - first) or 1.0) * 2 * width
            steps = max(1, round(max(down, across)))
            for step in range(steps):
                share = step / steps
                dot(before[0] + share * (after[0] - before[0]), before[1] + share * (after[1] - before[1]), owner)
        if points:
            dot(*points[-1], owner)
    return Chart(["".join(chr(_BLANK | cell) for cell in row) for row in cells], owners, low, high)


def short_number(value: float, unit: str = "") -> str:
    """`1.25M`, `640`, `0.031`: three digits that a person can compare."""
    if not math.isfinite(value):
        return f"{value}"
    size = abs(value)
    for factor, prefix in _PREFIXES:
        if size >= factor:
            return f"{value / factor:.3g}{prefix}{unit}"
    return f"{value:.3g}{unit}"


# How does a chart look? A scale at the left, curves in colours, their names below.


COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "white")
_SCALE_WIDTH = 9


def chart_text(
    curves: Sequence[ChartCurve],
    width: int,
    height: int,
    *,
    unit: str,
    zero_based: bool,
    between: tuple[float, float] | None = None,
) -> Text:
    chart = drawn(curves, width, height, zero_based=zero_based, between=between)
    text = Text()
    for number, (row, owners) in enumerate(zip(chart.rows, chart.owners, strict=True)):
        value = chart.high - (chart.high - chart.low) * number / max(1, height - 1)
        has_label = number in {0, height // 2, height - 1}
        text.append(f"{short_number(value, unit) if has_label else '':>{_SCALE_WIDTH}} ┤", "dim")
        for character, owner in zip(row, owners, strict=True):
            text.append(character, COLOURS[owner % len(COLOURS)] if owner >= 0 else "")
        text.append("\n")
    for number, curve in enumerate(curves):
        last = short_number(curve.points[-1][1], unit) if curve.points else "no data"
        text.append(f"{'':>{_SCALE_WIDTH}} ● ", COLOURS[number % len(COLOURS)])
        text.append(f"{clean(curve.name)}  {last}\n")
    if not curves:
        text.append("no data\n", "dim")
    return text
