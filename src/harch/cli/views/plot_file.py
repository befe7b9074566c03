"""How do curves become a picture? PNG or SVG by matplotlib, with the curves that the terminal chart draws.

matplotlib comes with the extra `plots` and is imported only where a file is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

from harch.base.errors import HarchError
from harch.cli.output import clean
from harch.cli.views.chart import ChartPanel, is_drawn, with_breaks

PANEL_WIDTH_IN, PANEL_HEIGHT_IN = 9.0, 3.6
DOTS_PER_INCH = 120
CURVES_MAX = 21  # of a panel
MARKS_PER_CURVE = 12
WORDS_WRAP = 80
# Okabe and Ito's colours, which people who see few colours can tell apart; patterns and marks differ without any.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_PATTERNS = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 3)))
_MARKS = ("o", "^", "s", "P", "X", "D", "v")


def check_can_plot() -> None:
    """Raises E0202 where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise HarchError(
            "E0202",
            "plot files need matplotlib, which is not installed",
            hint="pip install 'harch[plots]'; `--plot` without FILE draws in the terminal",
        )


def write_plot(path: Path, panels: Sequence[ChartPanel], *, title: str = "", note: str = "", across: int = 1) -> None:
    """All panels into one file, `across` side by side. Raises E0202 if matplotlib is missing or the file cannot be
    written. `note` says how the values came about: measured, estimated, modelled."""
    check_can_plot()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / across)
    height = PANEL_HEIGHT_IN * rows + 0.6
    figure = Figure(figsize=(PANEL_WIDTH_IN * across, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, across, squeeze=False)
    for place, axis in enumerate(axes.flat):
        if place < len(panels):
            _draw(axis, panels[place])
        else:
            axis.set_axis_off()
    if title:
        figure.suptitle(_plain(title), fontsize=13)
    if note:
        figure.supxlabel(_plain(note), fontsize=8, color="#444444")
    try:
        # No date in the file: the same curves make the same file.
        figure.savefig(path, format=path.suffix[1:].lower(), metadata={"Date": None} if _is_svg(path) else None)
    except OSError as problem:
        raise HarchError("E0202", f"cannot write `{path}`: {problem.strerror or problem}", hint="check the path") from (
            problem
        )


def _draw(axis: Any, panel: ChartPanel) -> None:
    axis.set_title(_plain(panel.title), fontsize=11)
    axis.set_ylabel(f"{_plain(panel.quantity)} [{_plain(panel.unit)}]" if panel.unit else _plain(panel.quantity))
    axis.grid(True, alpha=0.3)

    def place(at_s: float) -> float | datetime:
        return at_s / 3600 if panel.is_elapsed else datetime.fromtimestamp(at_s, UTC)

    curves = [curve for curve in panel.curves if any(is_drawn(y) for _, y in curve.points)]
    drawn = curves[:CURVES_MAX]
    for number, curve in enumerate(drawn):
        turn = number + number // len(_COLOURS)  # the next seven have the same colours, and other patterns
        points = with_breaks(curve.points)
        every = max(1, min(len(points), max(len(points) // MARKS_PER_CURVE, len(drawn))))
        axis.plot(
            [place(x) for x, _ in points],
            [y for _, y in points],
            label=_plain(curve.name),
            color=_COLOURS[number % len(_COLOURS)],
            linestyle=_PATTERNS[turn % len(_PATTERNS)],
            marker=_MARKS[turn % len(_MARKS)],
            markersize=5,
            markevery=(number * every // len(drawn), every),  # beside those of others, as curves may lie over others
            linewidth=1.5,
        )
    if panel.moment is not None and curves:
        axis.axvline(place(panel.moment[0]), color="#000000", linewidth=1.0, label=_plain(panel.moment[1]))
    _label_times(axis, is_elapsed=panel.is_elapsed)
    if panel.between is not None:
        axis.set_xlim(*(place(x) for x in panel.between))
    if not curves:
        why = "\n".join(wrap(f"no data: {panel.why_empty}", WORDS_WRAP))
        axis.text(0.5, 0.5, _plain(why), transform=axis.transAxes, ha="center", va="center", fontsize=9)
        return
    if panel.zero_based:
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, 0.0), max(high, 0.0))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, handlelength=4)


def _label_times(axis: Any, *, is_elapsed: bool) -> None:
    if is_elapsed:
        axis.set_xlabel("hours since the start")
        return
    from matplotlib import dates

    ticks: Any = dates  # its parts have no types
    locator = ticks.AutoDateLocator(tz=UTC)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ticks.ConciseDateFormatter(locator, tz=UTC))
    axis.set_xlabel("time (UTC)")


def _is_svg(path: Path) -> bool:
    return path.suffix.lower() == ".svg"


def _plain(text: str) -> str:
    """A dollar sign begins a formula, for matplotlib."""
    return clean(text).replace("$", r"\$")
