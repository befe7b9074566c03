"""`harch sentinel query`: a question in PromQL, answered as a table, a curve or JSON."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.remote import json_option

if TYPE_CHECKING:
    from harch.cli.chart import Curve
    from harch.sdk.sentinel import MatrixSeries, QueryAnswer

CURVES_MAX = 7
STEPS = 240

url_option = click.option("--url", help="Address of SENTINEL; HARCH_SENTINEL_URL or beside the hub if absent.")
tenant_option = click.option("--tenant", help="Whose telemetry; your own if absent.")
all_hubs_option = click.option(
    "--all-hubs", "all_hubs", is_flag=True, help="Ask all hubs; who refuses or leaves groups out is named on stderr."
)


@click.command()
@click.argument("promql")
@click.option("--plot", is_flag=True, help="Draw the last --range as curves.")
@click.option("--range", "range_text", metavar="DURATION", help="Ask over this time up to now, e.g. 1h.")
@click.option("--step", "step_text", metavar="DURATION", help="One value each; 240 steps if absent.")
@click.option("--time", "at_s", type=float, help="At this Unix time instead of now.")
@all_hubs_option
@url_option
@tenant_option
@json_option
def query(
    promql: str,
    plot: bool,
    range_text: str | None,
    step_text: str | None,
    at_s: float | None,
    all_hubs: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Ask in PromQL. Without --range or --plot the answer is what holds now.

    With --all-hubs, hubs of other countries tell aggregates of large enough groups, at whole minutes.

    \b
    harch sentinel query 'sum by (hub_name) (harchos_gpu_power_draw_watts)'
    harch sentinel query 'rate(harchos_hub_requests_total[5m])' --plot --range 6h
    """
    from harch.base.clock import SystemClock
    from harch.cli.output import emit_json
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        if not plot and range_text is None:
            answer = client.query(promql, at_s)
        else:
            span = seconds(range_text or "1h")
            end = at_s if at_s is not None else SystemClock().now().timestamp()
            step = seconds(step_text) if step_text else max(1.0, span / STEPS)
            answer = client.query_range(promql, end - span, end, step)
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
    from harch.cli.output import clean, table

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


def draw(curves: Sequence[Curve], *, unit: str = "", zero_based: bool = False, height: int = 12) -> None:
    """The curves below each other's scale, then their names in the same colours."""
    from rich.console import Console

    from harch.cli.chart_view import chart_text

    width = max(20, min(shutil.get_terminal_size().columns, 160) - 12)
    Console(highlight=False, width=width + 12).print(
        chart_text(curves[:CURVES_MAX], width, height, unit=unit, zero_based=zero_based)
    )
    if len(curves) > CURVES_MAX:
        click.echo(f"{len(curves) - CURVES_MAX} more series are not drawn")


def curves_of(matrix: Sequence[MatrixSeries], legend: str = "") -> list[Curve]:
    from harch.cli.chart import Curve

    return [
        Curve(legend_of(legend, one.metric), [(time, float(value)) for time, value in one.values]) for one in matrix
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


def seconds(text: str) -> float:
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    number = text.rstrip("mshdw")
    try:
        value = float(number) * units[text[len(number) :] or "s"]
    except (ValueError, KeyError):
        value = 0.0
    if not value > 0:
        raise HarchError("E0201", f"`{text}` is no duration", hint="write e.g. 30s, 5m or 6h")
    return value
