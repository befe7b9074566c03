"""`harch sentinel query`: a question in PromQL, answered as a table, curves or JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from harch.base.errors import HarchError
from harch.cli.inputs import MOMENT_AGO, duration_between
from harch.cli.plot import PlotCommand, PlotTarget, plot_option
from harch.cli.plot import plot as draw_plot
from harch.cli.remote import hub_url, json_option

if TYPE_CHECKING:
    from datetime import datetime

    from harch.cli.views.chart import ChartCurve
    from harch.sdk.sentinel import MatrixSeries, QueryAnswer


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


@click.command(cls=PlotCommand)
@click.argument("promql")
@plot_option("Draw the last --range as curves, or write them to a PNG or SVG file.")
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
    plot: PlotTarget | None,
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
    from harch.cli.output import clean, emit_json, note
    from harch.cli.plot import TERMINAL
    from harch.cli.telemetry.no_data import EmptyAnswers, once_each
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        end = (at or SystemClock().now()).timestamp()
        if plot is None and range_s is None:
            start, answer = end, client.query(promql, None if at is None else end)
        else:
            span = RANGE_S if range_s is None else range_s
            start = end - span
            answer = client.query_range(promql, start, end, step_s or max(1.0, span / STEPS))
        is_empty = not (answer.text or answer.vector or answer.matrix)
        if is_empty and not as_json:
            note(clean(f"no data: {EmptyAnswers(client, all_hubs=all_hubs).why(promql, start, end, answer.warnings)}"))
    if plot is not None and not is_empty and not (as_json and plot == TERMINAL):
        from harch.cli.views.chart import ChartPanel
        from harch.cli.views.legend import unit_of

        unit = unit_of([one.metric for one in answer.matrix])
        panel = ChartPanel(curves_of(answer.matrix, alone=promql), unit=unit, between=(start, end))
        draw_plot(plot, [panel], title="" if plot == TERMINAL else promql)
    if as_json:
        emit_json(answer)
        return
    for remark in (*once_each(() if is_empty else answer.warnings), *answer.infos):
        note(clean(remark))
    if not is_empty and plot is None:
        show(answer)


def show(answer: QueryAnswer) -> None:
    from harch.cli.output import clean
    from harch.cli.views.legend import name_of
    from harch.cli.views.table import TableColumn, table

    if answer.kind in {"scalar", "string"}:
        click.echo(clean(answer.text))
    elif answer.kind == "vector":
        rows = [(clean(name_of(one.metric)), one.value[1] if one.value else "histogram") for one in answer.vector]
        table(
            (
                TableColumn("SERIES"),
                TableColumn("VALUE"),
            ),
            rows,
        )
    else:
        table(
            (
                TableColumn("SERIES"),
                TableColumn("POINTS", 1),
                TableColumn("LAST"),
            ),
            [
                (clean(name_of(one.metric)), len(one.values), one.values[-1][1] if one.values else "")
                for one in answer.matrix
            ],
        )


def curves_of(matrix: Sequence[MatrixSeries], legend: str = "", alone: str = "") -> list[ChartCurve]:
    """`alone` names a single series without labels, e.g. by its query."""
    from harch.cli.views.chart import ChartCurve
    from harch.cli.views.legend import legend_names

    names = legend_names([one.metric for one in matrix], legend, alone)
    return [
        ChartCurve(name, [(time, float(value)) for time, value in one.values])
        for name, one in zip(names, matrix, strict=True)
    ]
