"""`harch sentinel query` and `dash`: a PromQL query as a table, a curve or JSON, and a dashboard in the terminal,
once or live.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from harch.base.errors import HarchError
from harch.cli.inputs import MOMENT_AGO, duration_between, duration_s
from harch.cli.options import file_option
from harch.cli.remote import hub_url, json_option
from harch.cli.watch import WatchCommand, watch_interval_option

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from harch.cli.views.chart import ChartCurve
    from harch.sdk.sentinel import MatrixSeries, QueryAnswer, SentinelClient
    from harch.sentinel.dashboards.definition import Dashboard, DashboardPanel


# `harch sentinel query`: a question in PromQL, answered as a table, a curve or JSON.


CURVES_MAX = 7
STEPS = 240
RANGE_S = 3600.0
SPAN = duration_between(0.001)

F = TypeVar("F", bound=Callable[..., object])


def url_option(command: F) -> F:
    """`--hub` and `--url`; the command gets the address, which is None where neither is given."""

    @functools.wraps(command)
    def with_address(*args: object, hub: str | None, url: str | None, **kwargs: object) -> object:
        from harch.sdk.sentinel import sentinel_url_beside

        if hub is not None and url is not None:
            raise HarchError("E0201", "--hub and --url are mutually exclusive", hint="give one of them")
        return command(*args, url=url if hub is None else sentinel_url_beside(hub_url(hub)), **kwargs)

    named = click.option("--hub", metavar="NAME", help="Query the SENTINEL of this hub.")
    placed = click.option(
        "--url", metavar="URL", help="Address of SENTINEL (default: HARCH_SENTINEL_URL, or beside the hub)."
    )
    return named(placed(with_address))  # type: ignore[return-value] # click hands it what the command does not take


tenant_option = click.option("--tenant", metavar="NAME", help="Tenant to query (default: your own).")
all_hubs_option = click.option(
    "--all-hubs", "all_hubs", is_flag=True, help="Query all hubs; refusals and omitted groups are named on stderr."
)


@click.command()
@click.argument("promql")
@click.option("--plot", is_flag=True, help="Draw the last --range as curves.")
@click.option("--range", "range_s", type=SPAN, metavar="DURATION", help="Query this time range up to now, e.g. 1h.")
@click.option("--step", "step_s", type=SPAN, metavar="DURATION", help="Query step (default: 240 steps).")
@click.option(
    "--time", "at", type=MOMENT_AGO, metavar="TIME", help="Evaluate at this time, or this long ago (default: now)."
)
@all_hubs_option
@url_option
@tenant_option
@json_option
def query(
    promql: str,
    plot: bool,
    range_s: float | None,
    step_s: float | None,
    at: datetime | None,
    all_hubs: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Query with PromQL. Without --range or --plot, evaluate now.

    With --all-hubs, hubs in other countries return aggregates of large enough groups, at whole minutes.

    \b
    harch sentinel query 'sum by (hub_name) (harchos_gpu_power_draw_watts)'
    harch sentinel query 'rate(harchos_hub_requests_total[5m])' --plot --range 6h
    """
    from harch.base.clock import SystemClock
    from harch.cli.output import emit_json
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        if not plot and range_s is None:
            answer = client.query(promql, None if at is None else at.timestamp())
        else:
            span = RANGE_S if range_s is None else range_s
            end = (at or SystemClock().now()).timestamp()
            answer = client.query_range(promql, end - span, end, step_s or max(1.0, span / STEPS))
    if as_json:
        emit_json(answer)
        return
    for note in (*answer.warnings, *answer.infos):
        click.echo(note, err=True)
    if plot:
        draw(curves_of(answer.matrix))
    else:
        show(answer)


def show(answer: QueryAnswer) -> None:
    from harch.cli.output import clean
    from harch.cli.views.table import table

    if answer.kind in {"scalar", "string"}:
        click.echo(clean(answer.text))
    elif answer.kind == "vector":
        rows = [(clean(name_of(one.metric)), one.value[1] if one.value else "histogram") for one in answer.vector]
        table(("SERIES", "VALUE"), rows)
    else:
        table(
            ("SERIES", "POINTS", "LAST"),
            [
                (clean(name_of(one.metric)), len(one.values), one.values[-1][1] if one.values else "")
                for one in answer.matrix
            ],
        )


def draw(curves: Sequence[ChartCurve], *, unit: str = "", zero_based: bool = False, height: int = 12) -> None:
    """The curves below each other's scale, then their names in the same colours."""
    from rich.console import Console

    from harch.cli.views.chart import chart_text

    width = max(20, min(shutil.get_terminal_size().columns, 160) - 12)
    Console(highlight=False, width=width + 12).print(
        chart_text(curves[:CURVES_MAX], width, height, unit=unit, zero_based=zero_based)
    )
    if len(curves) > CURVES_MAX:
        click.echo(f"{len(curves) - CURVES_MAX} more series not drawn")


def curves_of(matrix: Sequence[MatrixSeries], legend: str = "") -> list[ChartCurve]:
    from harch.cli.views.chart import ChartCurve

    return [
        ChartCurve(legend_of(legend, one.metric), [(time, float(value)) for time, value in one.values])
        for one in matrix
    ]


def name_of(metric: Mapping[str, str]) -> str:
    """A series as PromQL writes it."""
    rest = ", ".join(f'{name}="{value}"' for name, value in sorted(metric.items()) if name != "__name__")
    return f"{metric.get('__name__', '')}{{{rest}}}" if rest else metric.get("__name__", "{}")


def legend_of(legend: str, metric: Mapping[str, str]) -> str:
    if not legend:
        return name_of(metric)
    for name, value in metric.items():
        legend = legend.replace(f"{{{{{name}}}}}", value)
    return legend


# `harch sentinel dash`: a dashboard in the terminal, once or live.


_BAR_WIDTH = 30


@click.command(cls=WatchCommand)
@click.argument("name", required=False)
@file_option("Your own dashboard, YAML or JSON.", type=click.Path(dir_okay=False))
@watch_interval_option(0.0, "Refresh until Ctrl-C, as often as the dashboard says or as given.")
@click.option("--range", "range_s", type=SPAN, metavar="DURATION", help="Override the dashboard's time range.")
@all_hubs_option
@url_option
@tenant_option
@json_option
def dash(
    name: str | None,
    file: str | None,
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
    from harch.sdk.sentinel import SentinelClient
    from harch.sentinel.dashboards.definition import read_dashboard, shipped, shipped_names

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
    console = Console(highlight=False)
    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        if as_json:
            emit_json(_answers(client, dashboard, span, clock.now().timestamp()))
            return
        if watch_s is None:
            console.print(_screen(client, dashboard, span, clock.now().timestamp()))
            return
        pause_s = watch_s or max(1.0, _seconds(dashboard.refresh))
        with Live(console=console, screen=True, auto_refresh=False) as live:
            import time

            try:
                while True:
                    live.update(_screen(client, dashboard, span, clock.now().timestamp()), refresh=True)
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
    problems: dict[str, int] = {}  # each is said once, below, however many panels have it
    for panel in dashboard.panels:
        try:
            inside: RenderableType = _drawn(client, panel, span, now, width - 4)
        except HarchError as problem:
            sentence = "; ".join(filter(None, (problem.message, problem.hint)))
            inside = Text(f"see ({problems.setdefault(sentence, len(problems) + 1)}) below", "red")
        boxes.append(Box(inside, title=panel.title, width=width))
    notes = [Text(f"({number}) {sentence}", "red") for sentence, number in problems.items()]
    return Group(Text(dashboard.title, "bold"), Columns(boxes, padding=0), *notes)


def _drawn(client: SentinelClient, panel: DashboardPanel, span: float, now: float, width: int) -> RenderableType:
    from rich.text import Text

    from harch.cli.output import clean
    from harch.cli.views.chart import chart_text, short_number

    if panel.kind == "line":
        answer = client.query_range(panel.query, now - span, now, max(1.0, span / STEPS))
        curves = curves_of(answer.matrix, panel.legend)[:CURVES_MAX]
        if not any(curve.points for curve in curves):
            return _no_data(answer, panel)
        return chart_text(curves, max(10, width - 12), 8, unit=panel.unit, zero_based=panel.zero_based)
    answer = client.query(panel.query, now)
    values = [
        (legend_of(panel.legend, one.metric), float(one.value[1])) for one in answer.vector if one.value is not None
    ]
    if not values:
        return _no_data(answer, panel)
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


def _no_data(answer: QueryAnswer, panel: DashboardPanel) -> RenderableType:
    """Why a panel is empty, as far as SENTINEL says."""
    from rich.text import Text

    from harch.cli.output import clean

    reasons = "; ".join((*answer.warnings, *answer.infos))
    return Text(clean(f"no data: {reasons or f'nothing matches {panel.query}'}"), "dim")
