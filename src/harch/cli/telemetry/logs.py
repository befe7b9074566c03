"""`harch sentinel logs`: search log lines, count them, or follow them as they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.options import renamed, since_option, tail_option
from harch.cli.plot import TERMINAL, PlotCommand, PlotTarget, plot_option
from harch.cli.plot import plot as draw_plot
from harch.cli.remote import json_option
from harch.cli.telemetry.query import SPAN, STEPS, all_hubs_option, curves_of, show, tenant_option, url_option

if TYPE_CHECKING:
    from datetime import datetime

    from harch.sdk.sentinel import LogLine, LogLines, SentinelClient

OWN_LINES = '{job=~"harchos-.+"}'
LIMIT_MAX = 5_000
_COLOURS = {
    "critical": "bright_red",
    "fatal": "bright_red",
    "error": "red",
    "err": "red",
    "warn": "yellow",
    "warning": "yellow",
    "info": "green",
    "debug": "blue",
    "trace": "bright_black",
}
_LEVELS = ("level", "detected_level", "severity", "lvl")
_NAMES = ("service_name", "job", "app", "container", "filename")


@click.command(cls=PlotCommand)
@click.argument("logql", default=OWN_LINES)
@since_option("Lines since this time, or this long ago.", default="1h", show_default=True)
@tail_option(LIMIT_MAX, 100, "Maximum lines, the newest ones.", least=1)
@renamed("--limit", "--tail")
@click.option("-f", "--follow", "following", is_flag=True, help="Keep printing new lines.")
@click.option("--step", "step_s", type=SPAN, metavar="DURATION", help="Step of numeric queries (default: 240 steps).")
@plot_option("Write the curves of a numeric query to a PNG or SVG file.")
@click.option("--labels", "with_labels", is_flag=True, help="Print all labels of every line.")
@all_hubs_option
@url_option
@tenant_option
@json_option
def logs(
    logql: str,
    since: datetime,
    tail: int,
    following: bool,
    step_s: float | None,
    plot: PlotTarget | None,
    with_labels: bool,
    all_hubs: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """Search log lines with LogQL; without LOGQL, the lines of HarchOS itself.

    Numeric queries are drawn as curves. With --json, one document; with --json -f, one per line.

    \b
    harch sentinel logs '{job="harchos-hub"} |= "lease" | level="error"' --since 6h
    harch sentinel logs 'sum by (level) (count_over_time({job=~"harchos-.+"}[5m]))'
    harch sentinel logs -f '{service_name="api"} | json | status >= 500'
    """
    from harch.base.clock import SystemClock
    from harch.cli.output import clean, emit_json, note
    from harch.sdk.sentinel import QueryAnswer, SentinelClient

    if all_hubs and following:
        raise HarchError("E0201", "--follow takes one hub", hint="omit --all-hubs, or name one with --hub")
    end_s, start_s = SystemClock().now().timestamp(), since.timestamp()
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        if following:
            return _follow(client, logql, start_ns, tail, with_labels=with_labels, as_json=as_json)
        step_s = step_s or max(1.0, (end_s - start_s) / STEPS)
        found = client.logs(logql, start_ns, end_ns, limit=tail, step_s=step_s)
    numbers = found if isinstance(found, QueryAnswer) else None
    curves = curves_of(numbers.matrix, alone=logql) if numbers is not None and numbers.kind == "matrix" else []
    if plot not in (None, TERMINAL) and numbers is None:
        raise HarchError("E0201", "only numeric queries have curves", hint="count lines, e.g. count_over_time(...[5m])")
    if not as_json:
        for warning in found.warnings:
            note(clean(warning))
    if curves and not (as_json and plot in (None, TERMINAL)):
        from harch.cli.views.chart import ChartPanel

        target = plot or TERMINAL
        panel = ChartPanel(curves, zero_based=True, between=(start_s, end_s))
        draw_plot(target, [panel], title="" if target == TERMINAL else logql)
    if as_json:
        emit_json(found)
    elif isinstance(found, QueryAnswer):
        if found.kind != "matrix":
            show(found)
        elif not curves:
            note(f"no data: no line matches in {(end_s - start_s) / 60:.0f} min; --since goes further back")
    elif not found.lines:
        note("no lines found; --since goes further back")
    else:
        _print_lines(found.lines, with_labels)
    return 0


def _follow(client: SentinelClient, logql: str, start_ns: int, limit: int, *, with_labels: bool, as_json: bool) -> int:
    """Until somebody ends it: SENTINEL hangs up after an hour, and the next connection goes on where that one was."""
    try:
        while True:
            for message in client.follow_logs(logql, start_ns, limit=limit):
                _show_message(message, with_labels=with_labels, as_json=as_json)
                start_ns = max([start_ns, *(line.time_ns + 1 for line in message.lines)])
            limit = LIMIT_MAX
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE


def _show_message(message: LogLines, *, with_labels: bool, as_json: bool) -> None:
    from harch.cli.output import emit_json, note

    if message.dropped:
        note(f"{message.dropped} lines were dropped: they came faster than they were read")
    if as_json:
        for line in message.lines:
            emit_json(line)
    else:
        _print_lines(message.lines, with_labels)


def _print_lines(lines: Iterable[LogLine], with_labels: bool) -> None:
    import sys

    for line in lines:
        click.echo(line_text(line, with_labels=with_labels))
    sys.stdout.flush()


def line_text(line: LogLine, *, with_labels: bool) -> str:
    """Time, level, where it comes from, and the line; the level has a colour."""
    from harch.cli.output import clean
    from harch.cli.views.trace import moment_text

    every = {**line.labels, **line.metadata, **line.parsed}
    level = _first(every, _LEVELS)
    colour = _COLOURS.get(level.lower())
    parts = [moment_text(line.time_ns), click.style(f"{clean(level)[:8].upper():<5}", fg=colour)]
    if name := _first(every, _NAMES):
        parts.append(click.style(clean(name), fg="cyan"))
    parts.append(clean(line.line))
    if with_labels:
        pairs = " ".join(f'{clean(key)}="{clean(value)}"' for key, value in sorted(every.items()))
        parts.append(click.style(f"{{{pairs}}}", fg="bright_black"))
    return " ".join(parts)


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
