"""`harch sentinel dash`: a dashboard in the terminal, once or live, or as a picture."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.inputs import duration_s
from harch.cli.options import file_option
from harch.cli.plot import TERMINAL, PlotCommand, PlotTarget, plot_option, terminal_columns
from harch.cli.plot import plot as draw_plot
from harch.cli.remote import json_option
from harch.cli.telemetry.query import SPAN, STEPS, all_hubs_option, curves_of, tenant_option, url_option
from harch.cli.watch import WatchCommand, watch_interval_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from harch.cli.telemetry.no_data import EmptyAnswers
    from harch.cli.views.chart import ChartCurve
    from harch.sdk.sentinel import QueryAnswer, SentinelClient
    from harch.sentinel.dashboards.definition import Dashboard, DashboardPanel

CHART_HEIGHT = 8
BAR_WIDTH, NAME_WIDTH, VALUE_WIDTH = 30, 28, 12
TWO_ACROSS_COLUMNS = 120


class DashCommand(PlotCommand, WatchCommand):
    """The words after `--plot` and `--watch` may be missing."""


@click.command(cls=DashCommand)
@click.argument("name", required=False)
@file_option("Your own dashboard, YAML or JSON.", type=click.Path(dir_okay=False))
@plot_option("Write the curves to a PNG or SVG file instead of the terminal.")
@watch_interval_option(0.0, "Refresh until Ctrl-C, as often as the dashboard says or as given.")
@click.option("--range", "range_s", type=SPAN, metavar="DURATION", help="Override the dashboard's time range.")
@all_hubs_option
@url_option
@tenant_option
@json_option
def dash(
    name: str | None,
    file: str | None,
    plot: PlotTarget | None,
    watch_s: float | None,
    range_s: float | None,
    all_hubs: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Draw a dashboard: hubs, gpus, pipelines, carbon, sovereignty, or your own file. Without a name, list them."""
    from rich.console import Console
    from rich.live import Live

    from harch.base.clock import SystemClock
    from harch.cli.output import emit_json
    from harch.cli.telemetry.no_data import EmptyAnswers
    from harch.sdk.sentinel import SentinelClient
    from harch.sentinel.dashboards.definition import read_dashboard, shipped, shipped_names

    picture = None if plot == TERMINAL else plot
    if picture is not None and watch_s is not None:
        raise HarchError("E0201", "--plot FILE and --watch are mutually exclusive", hint="give one of them")
    if file is None and name is None:
        if as_json:
            emit_json({"items": shipped_names()})
            return
        for known in shipped_names():
            click.echo(f"{known:<12} {shipped(known).description}")
        return
    dashboard = read_dashboard(Path(file)) if file else shipped(name or "")
    span = range_s or _seconds(dashboard.range)
    clock = SystemClock()
    console = Console(highlight=False, width=terminal_columns())
    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        empty = EmptyAnswers(client, all_hubs=all_hubs)
        if picture is not None:
            _write_picture(client, empty, dashboard, span, clock.now().timestamp(), picture)
        if as_json:
            emit_json(_answers(client, dashboard, span, clock.now().timestamp()))
        if as_json or picture is not None:
            return
        if watch_s is None:
            console.print(screen(client, empty, dashboard, span, clock.now().timestamp(), console.width))
            return
        pause_s = watch_s or max(1.0, _seconds(dashboard.refresh))
        with Live(console=console, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    console.width = terminal_columns()
                    live.update(
                        screen(client, empty, dashboard, span, clock.now().timestamp(), console.width), refresh=True
                    )
                    time.sleep(pause_s)
            except KeyboardInterrupt:
                return


def _seconds(text: str) -> float:
    """What a dashboard says. Raises E0201."""
    found = duration_s(text)
    if not found:
        raise HarchError("E0201", f"`{text}` is not a duration", hint="write e.g. 30s, 5m or 6h")
    return found


def _answers(client: SentinelClient, dashboard: Dashboard, span: float, now: float) -> dict[str, object]:
    """What the panels show, for programs."""
    panels = []
    for panel in dashboard.panels:
        answer = _answer(client, panel, span, now)
        panels.append({"title": panel.title, "unit": panel.unit, "query": panel.query, "answer": answer})
    return {"title": dashboard.title, "panels": panels}


def _answer(client: SentinelClient, panel: DashboardPanel, span: float, now: float) -> QueryAnswer:
    if panel.kind == "line":
        return client.query_range(panel.query, now - span, now, max(1.0, span / STEPS))
    return client.query(panel.query, now)


def _why_empty(empty: EmptyAnswers, panel: DashboardPanel, span: float, now: float) -> str:
    return empty.why(panel.query, now - span if panel.kind == "line" else now, now)


# In the terminal


@dataclass
class _Notes:
    """What is to be said of panels: each sentence once, below, however many panels it is about."""

    numbers: dict[str, int] = field(default_factory=dict)

    def refer(self, sentences: list[str]) -> str:
        """`(1) (3)`"""
        found = [self.numbers.setdefault(one, len(self.numbers) + 1) for one in sentences]
        return " ".join(f"({number})" for number in dict.fromkeys(found))


def screen(
    client: SentinelClient, empty: EmptyAnswers, dashboard: Dashboard, span: float, now: float, columns: int
) -> RenderableType:
    """All panels, and below them what went wrong, or is missing in them."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel as Box
    from rich.text import Text

    from harch.cli.output import clean
    from harch.cli.telemetry.no_data import once_each

    across = 2 if columns >= TWO_ACROSS_COLUMNS else 1
    width = columns // across - 2
    boxes: list[RenderableType] = []
    notes = _Notes()
    for panel in dashboard.panels:
        subtitle = None
        try:
            answer = _answer(client, panel, span, now)
        except HarchError as problem:
            sentence = "; ".join(filter(None, (problem.message, problem.hint)))
            inside: RenderableType = Text(f"no data: see {notes.refer([sentence])} below", "red")
        else:
            drawn, warnings = _drawn(answer, panel, span, now, width - 4), once_each(answer.warnings)
            if drawn is not None:
                inside = drawn
                subtitle = f"incomplete: see {notes.refer(warnings)} below" if warnings else None
            elif warnings:
                inside = Text(f"no data: see {notes.refer(warnings)} below", "yellow")
            else:
                inside = Text(clean(f"no data: {_why_empty(empty, panel, span, now)}"), "dim")
        boxes.append(Box(inside, title=panel.title, subtitle=subtitle, width=width))
    footnotes = [Text(clean(f"({number}) {sentence}"), "red") for sentence, number in notes.numbers.items()]
    return Group(Text(dashboard.title, "bold"), Columns(boxes, padding=0), *footnotes)


def _drawn(answer: QueryAnswer, panel: DashboardPanel, span: float, now: float, width: int) -> RenderableType | None:
    """None: there is nothing to draw."""
    from rich.text import Text

    from harch.cli.output import clean
    from harch.cli.views.chart import CURVES_MAX, chart_text, short_number

    if panel.kind == "line":
        curves = _curves(answer, panel)
        if not curves:
            return None
        text = chart_text(
            curves[:CURVES_MAX],
            width,
            CHART_HEIGHT,
            unit=panel.unit,
            zero_based=panel.zero_based,
            between=(now - span, now),
        )
        text.rstrip()
        if (more := len(curves) - CURVES_MAX) > 0:
            text.append(f"\n{more} more series not drawn", "dim")
        return text
    values = _values(answer, panel)
    if not values:
        return None
    if panel.kind == "value":
        return Text("   ".join(short_number(value, panel.unit) for _, value in values), "bold")
    text = Text(no_wrap=True)
    largest = max(abs(value) for _, value in values) or 1.0
    room = max(1, min(BAR_WIDTH, width - NAME_WIDTH - VALUE_WIDTH))
    for name, value in sorted(values, key=lambda one: -one[1]):
        bar = "█" * round(room * abs(value) / largest) if panel.kind == "bars" else ""
        text.append(f"{clean(name):<{NAME_WIDTH}.{NAME_WIDTH}} ")
        text.append(bar, "cyan")
        text.append(f" {short_number(value, panel.unit)}\n")
    text.rstrip()
    return text


def _curves(answer: QueryAnswer, panel: DashboardPanel) -> list[ChartCurve]:
    return [curve for curve in curves_of(answer.matrix, panel.legend, alone=panel.title) if curve.points]


def _values(answer: QueryAnswer, panel: DashboardPanel) -> list[tuple[str, float]]:
    from harch.cli.views.legend import legend_names

    names = legend_names([one.metric for one in answer.vector], panel.legend, panel.title)
    found = zip(names, answer.vector, strict=True)
    return [(name, float(one.value[1])) for name, one in found if one.value is not None]


# As a picture


def _write_picture(
    client: SentinelClient, empty: EmptyAnswers, dashboard: Dashboard, span: float, now: float, path: Path
) -> None:
    """The panels that are curves. Raises the first error of a query, and E0201 where no panel is one."""
    from harch.cli.output import note
    from harch.cli.telemetry.no_data import once_each
    from harch.cli.views.chart import ChartPanel

    panels, others = [], []
    warnings: dict[str, None] = {}
    for panel in dashboard.panels:
        if panel.kind != "line":
            others.append(panel.title)
            continue
        answer = _answer(client, panel, span, now)
        warnings |= dict.fromkeys(answer.warnings)
        curves = _curves(answer, panel)
        panels.append(
            ChartPanel(
                curves,
                title=panel.title,
                unit=panel.unit,
                quantity=panel.title,
                zero_based=panel.zero_based,
                between=(now - span, now),
                why_empty="" if curves else empty.why(panel.query, now - span, now, answer.warnings),
            )
        )
    if not panels:
        raise HarchError("E0201", f"no panel of `{dashboard.title}` is a curve", hint="omit --plot to see its values")
    for sentence in once_each(warnings):
        note(f"incomplete: {sentence}")
    draw_plot(path, panels, title=dashboard.title)
    if others:
        note(f"not curves, so not in the file: {', '.join(others)}")
