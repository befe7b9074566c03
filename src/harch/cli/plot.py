"""Where is a curve drawn? `--plot` draws in the terminal, `--plot FILE.png|svg` writes a picture."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from harch.base.errors import HarchError

if TYPE_CHECKING:
    from harch.cli.views.chart import ChartPanel

F = TypeVar("F", bound=Callable[..., Any])

PlotTarget = Path | Literal["terminal"]
TERMINAL: Literal["terminal"] = "terminal"
COLUMNS_MAX = 160
HEIGHT = 12
_SUFFIXES = (".png", ".svg")
_OTHER_PICTURES = (".bmp", ".eps", ".gif", ".jpeg", ".jpg", ".pdf", ".ps", ".tif", ".tiff", ".webp")


class _Target(click.ParamType[PlotTarget]):
    """Refused before anything else is done: some curves take minutes."""

    name = "plot"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> PlotTarget:
        if value == TERMINAL:
            return TERMINAL
        path = Path(str(value))
        if path.suffix.lower() not in _SUFFIXES:
            self.fail(f"`{path}` is not a .png or .svg file", param, ctx)
        from harch.cli.views.plot_file import check_can_plot

        check_can_plot()
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise HarchError("E0202", f"cannot write `{path}`", hint="check the folder")
        return path


def plot_option(help: str = "Draw curves in the terminal, or write them to a PNG or SVG file.") -> Callable[[F], F]:
    """For commands of the class `PlotCommand`."""
    return click.option("--plot", type=_Target(), metavar="[FILE]", help=help)


class PlotCommand(click.Command):
    """A command with `plot_option`: the file after `--plot` may be missing, whatever follows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args))


def spelled_out(args: list[str]) -> list[str]:
    """A `--plot` that no picture's name follows gets `terminal` as its value."""
    own = args.index("--") if "--" in args else len(args)
    found: list[str] = []
    for at, word in enumerate(args):
        alone = word == "--plot" and at < own and not (at + 1 < own and _is_picture(args[at + 1]))
        found.append(f"{word}={TERMINAL}" if alone else word)
    return found


def _is_picture(word: str) -> bool:
    """Also of kinds that are refused, so that `--plot out.pdf` is not taken for a query."""
    return word.lower().endswith((*_SUFFIXES, *_OTHER_PICTURES))


def plot(target: PlotTarget, panels: Sequence[ChartPanel], *, title: str = "", note: str = "", across: int = 1) -> None:
    """Draws the panels below one another, or writes all of them into the file. Raises E0202 for files."""
    from harch.cli.output import note as remark

    if target == TERMINAL:
        _draw(panels, title, note)
        return
    from harch.cli.views.plot_file import CURVES_MAX, write_plot

    write_plot(Path(target), panels, title=title, note=note, across=across)
    for panel in panels:
        if (more := len(panel.curves) - CURVES_MAX) > 0:
            remark(f"{more} more series not drawn")
    remark(f"wrote {target}")


def _draw(panels: Sequence[ChartPanel], title: str, note: str) -> None:
    import sys

    from rich.console import Console
    from rich.text import Text

    from harch.cli.output import clean
    from harch.cli.views.chart import CURVES_MAX, chart_text

    width = terminal_columns()
    console = Console(file=sys.stdout, highlight=False, width=width)
    with console.capture() as drawn:  # printed by Rich itself, a reader that has gone would end the process with 1
        if title:
            console.print(Text(clean(title), "bold"))
        for panel in panels:
            if panel.title and panel.title != title:
                console.print(Text(clean(panel.title), "bold"))
            if not any(curve.points for curve in panel.curves):
                console.print(Text(clean(f"no data: {panel.why_empty}"), "dim"))
                continue
            text = chart_text(
                panel.curves[:CURVES_MAX],
                width,
                HEIGHT,
                unit=panel.unit,
                zero_based=panel.zero_based,
                between=panel.between,
                is_elapsed=panel.is_elapsed,
                moment=panel.moment,
            )
            console.print(text, end="")
            if (more := len(panel.curves) - CURVES_MAX) > 0:
                console.print(Text(f"{more} more series not drawn", "dim"))
        if note:
            console.print(Text(clean(note), "dim"))
    click.echo(drawn.get(), nl=False)
    sys.stdout.flush()


def terminal_columns() -> int:
    """How wide charts are. Not what rich believes of a terminal that it calls dumb."""
    return min(shutil.get_terminal_size().columns, COLUMNS_MAX)
