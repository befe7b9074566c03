"""How do the published figures of `bench/published.toml` look? `make pictures` draws their plots into docs/pictures."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from documents import ROOT
from drawing import Picture

PUBLISHED = ROOT / "bench" / "published.toml"

_WIDTH = 400
_EDGE = 14
_BAR_PX = 9
_ROW_PX = 36


@dataclass(frozen=True)
class Bar:
    """One figure as its page writes it, and where it stands there."""

    label: str
    value: str
    row: str
    section: str
    goal: str = ""
    peer: bool = False

    @property
    def number(self) -> float:
        return _number(self.value)


@dataclass(frozen=True)
class Panel:
    title: str
    bars: tuple[Bar, ...]
    unit: str = ""
    better: str = ""  # "more" or "less", where a bar has a goal
    log: bool = False

    def missed(self, bar: Bar) -> bool:
        if not bar.goal:
            return False
        return bar.number < _number(bar.goal) if self.better == "more" else bar.number > _number(bar.goal)


@dataclass(frozen=True)
class Plot:
    file: str
    page: str
    title: str
    panels: tuple[Panel, ...]


def published() -> Sequence[Plot]:
    """All plots, in the order of the file. An unknown key is a `TypeError`."""
    return [_plot(**entry) for entry in tomllib.loads(PUBLISHED.read_text("utf-8"))["plot"]]


def drawings() -> Sequence[tuple[str, str]]:
    """File name and content of every plot."""
    return [(f"plot-{plot.file}.svg", draw(plot).svg()) for plot in published()]


def draw(plot: Plot) -> Picture:
    """Panels below each other; in each, labels and figures above bars that start at the same line."""
    rows = sum(len(panel.bars) for panel in plot.panels)
    picture = Picture(_WIDTH, 42 + rows * _ROW_PX + len(plot.panels) * 40, plot.title)
    y = 14.0
    for panel in plot.panels:
        picture.text(_EDGE, y + 16, f"{panel.title}, log scale" if panel.log else panel.title, bold=True)
        y += 30
        for bar in panel.bars:
            _draw_bar(picture, panel, bar, y)
            y += _ROW_PX
        y += 10
    _draw_key(picture, plot, y + 6)
    return picture


def _draw_bar(picture: Picture, panel: Panel, bar: Bar, y: float) -> None:
    missed = panel.missed(bar)
    shown = f"{bar.value} {panel.unit}".strip() + (", missed" if missed else "")
    picture.text(_EDGE, y + 12, bar.label, small=True, role="soft")
    picture.text(_WIDTH - _EDGE, y + 12, shown, small=True, bold=True, anchor="end", role="law" if missed else "ink")
    top = y + 18
    paper = "bar-missed" if missed else "bar-peer" if bar.peer else "bar-ours"
    picture.rect(_EDGE, top, max(_length(panel, bar.number), 3), _BAR_PX, paper=paper, radius=2)
    if bar.goal:
        x = _EDGE + _length(panel, _number(bar.goal))
        picture.path([(x, top - 1), (x, top + _BAR_PX + 4)], role="ink")


def _draw_key(picture: Picture, plot: Plot, y: float) -> None:
    bars = [(panel, bar) for panel in plot.panels for bar in panel.bars]
    keys = [("bar-ours", "HarchOS")]
    if any(bar.peer for _, bar in bars):
        keys.append(("bar-peer", "compared with"))
    x = float(_EDGE)
    for paper, meaning in keys:
        picture.rect(x, y, 14, _BAR_PX, paper=paper, radius=2)
        picture.text(x + 20, y + 10, meaning, small=True, role="soft")
        x += 50 + len(meaning) * 7
    if any(bar.goal for _, bar in bars):
        picture.path([(x, y - 3), (x, y + 12)], role="ink")
        picture.text(x + 8, y + 10, "goal", small=True, role="soft")


def _length(panel: Panel, number: float) -> float:
    """Pixels of a bar. A logarithmic panel starts at half of its smallest figure."""
    numbers = [abs(bar.number) for bar in panel.bars] + [_number(bar.goal) for bar in panel.bars if bar.goal]
    room = _WIDTH - 2 * _EDGE
    if not panel.log:
        return room * abs(number) / max(numbers)
    low, high = math.log(min(numbers) / 2), math.log(max(numbers))
    return room * (math.log(number) - low) / (high - low)


def _number(figure: str) -> float:
    return float(re.sub(r"[^\d.\-]", "", figure))


def _plot(file: str, page: str, title: str, panel: list[dict[str, object]]) -> Plot:
    return Plot(file, page, title, tuple(_panel(**entry) for entry in panel))  # type: ignore[arg-type]


def _panel(title: str, section: str, bars: list[dict[str, object]], **rest: object) -> Panel:
    return Panel(title, tuple(Bar(**{"section": section, **bar}) for bar in bars), **rest)  # type: ignore[arg-type]
