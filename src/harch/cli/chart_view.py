"""How does a chart look? A scale at the left, curves in colours, their names below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from harch.cli.chart import Curve, drawn, short_number
from harch.cli.output import clean

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "white")
_SCALE_WIDTH = 9


def chart_text(
    curves: Sequence[Curve],
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
        shown = number in {0, height // 2, height - 1}
        text.append(f"{short_number(value, unit) if shown else '':>{_SCALE_WIDTH}} ┤", "dim")
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
