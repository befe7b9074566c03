"""`harch sentinel dash`: a dashboard in the terminal, once or live."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.cli.remote import json_option
from harch.cli.sentinel_query import CURVES_MAX, STEPS, curves_of, legend_of, seconds, tenant_option, url_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from harch.sdk.sentinel import SentinelClient
    from harch.sentinel.dashboards.definition import Dashboard, Panel

_BAR_WIDTH = 30


@click.command()
@click.argument("name", required=False)
@click.option("--file", "path", type=click.Path(dir_okay=False), help="A dashboard of your own, YAML or JSON.")
@click.option("--watch", is_flag=True, help="Draw again and again until Ctrl-C.")
@click.option("--range", "range_text", metavar="DURATION", help="Another time than the dashboard's.")
@url_option
@tenant_option
@json_option
def dash(
    name: str | None,
    path: str | None,
    watch: bool,
    range_text: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Draw a dashboard: hubs, gpus, pipelines, carbon, sovereignty, or a file of yours. Without a name: list them."""
    from rich.console import Console
    from rich.live import Live

    from harch.base.clock import SystemClock
    from harch.cli.output import emit_json
    from harch.sdk.sentinel import SentinelClient
    from harch.sentinel.dashboards.definition import read_dashboard, shipped, shipped_names

    if path is None and name is None:
        if as_json:
            emit_json({"items": shipped_names()})
            return
        for known in shipped_names():
            click.echo(f"{known:<12} {shipped(known).description}")
        return
    dashboard = read_dashboard(Path(path)) if path else shipped(name or "")
    span = seconds(range_text or dashboard.range)
    clock = SystemClock()
    console = Console(highlight=False)
    with SentinelClient(url, tenant=tenant) as client:
        if as_json:
            emit_json(_answers(client, dashboard, span, clock.now().timestamp()))
            return
        if not watch:
            console.print(_screen(client, dashboard, span, clock.now().timestamp()))
            return
        pause_s = max(1.0, seconds(dashboard.refresh))
        with Live(console=console, screen=True, auto_refresh=False) as live:
            import time

            try:
                while True:
                    live.update(_screen(client, dashboard, span, clock.now().timestamp()), refresh=True)
                    time.sleep(pause_s)
            except KeyboardInterrupt:
                return


def _answers(client: SentinelClient, dashboard: Dashboard, span: float, now: float) -> dict[str, object]:
    """What the panels show, for programs."""
    panels = []
    for panel in dashboard.panels:
        if panel.kind == "line":
            answer = client.query_range(panel.query, now - span, now, max(1.0, span / STEPS))
        else:
            answer = client.query(panel.query, now)
        panels.append({"title": panel.title, "unit": panel.unit, "query": panel.query, "answer": answer})
    return {"title": dashboard.title, "panels": panels}


def _screen(client: SentinelClient, dashboard: Dashboard, span: float, now: float) -> RenderableType:
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel as Box
    from rich.text import Text

    from harch.base.errors import HarchError

    columns = shutil.get_terminal_size().columns
    across = 2 if columns >= 120 else 1
    width = columns // across - 2
    boxes: list[RenderableType] = []
    for panel in dashboard.panels:
        try:
            inside: RenderableType = _drawn(client, panel, span, now, width - 4)
        except HarchError as problem:
            inside = Text(problem.message, "red")
        boxes.append(Box(inside, title=panel.title, width=width))
    return Group(Text(dashboard.title, "bold"), Columns(boxes, padding=0))


def _drawn(client: SentinelClient, panel: Panel, span: float, now: float, width: int) -> RenderableType:
    from rich.text import Text

    from harch.cli.chart import short_number
    from harch.cli.chart_view import chart_text
    from harch.cli.output import clean

    if panel.kind == "line":
        answer = client.query_range(panel.query, now - span, now, max(1.0, span / STEPS))
        curves = curves_of(answer.matrix, panel.legend)[:CURVES_MAX]
        return chart_text(curves, max(10, width - 12), 8, unit=panel.unit, zero_based=panel.zero_based)
    answer = client.query(panel.query, now)
    values = [
        (legend_of(panel.legend, one.metric), float(one.value[1])) for one in answer.vector if one.value is not None
    ]
    if not values:
        return Text("no data", "dim")
    if panel.kind == "value":
        return Text("   ".join(short_number(value, panel.unit) for _, value in values), "bold")
    text = Text()
    largest = max(abs(value) for _, value in values) or 1.0
    for name, value in sorted(values, key=lambda one: -one[1]):
        bar = "█" * round(_BAR_WIDTH * abs(value) / largest) if panel.kind == "bars" else ""
        text.append(f"{clean(name):<28.28} ")
        text.append(bar, "cyan")
        text.append(f" {short_number(value, panel.unit)}\n")
    return text
