"""How does the page around an alert look in a terminal? Alert and rule, curves, log lines, traces, neighbours."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from harch.cli.output import clean
from harch.cli.views.chart import ChartCurve, ChartPanel, chart_text
from harch.cli.views.legend import legend_names
from harch.cli.views.table import TableColumn, table
from harch.cli.views.trace import LEVEL_COLOURS, moment_text
from harch.sentinel.traces.durations import short_duration

CHART_HEIGHT = 8
CURVES_MAX = 5
_FIRST = ("summary", "description", "runbook")

JsonObject = Mapping[str, Any]


def draw_page(page: JsonObject) -> None:
    width = max(60, min(shutil.get_terminal_size().columns, 200))
    console = Console(highlight=False, width=width, soft_wrap=True)
    for line in (*alert_text(page), *_metrics_text(page, width), *_logs_text(page["logs"])):
        console.print(line)
    _show_traces(console, page["traces"])
    _show_related(console, page["related"])
    for sentence in page["missing"]:
        console.print(Text(clean(f"missing: {sentence}"), "yellow"))


def alert_text(page: JsonObject) -> list[Text]:
    alert, rule, window = page["alert"], page["rule"], page["window"]
    labels = dict(alert["labels"])
    heading = Text()
    heading.append(clean(labels.pop("alertname", "alert")), "bold")
    heading.append(clean(f"  {labels.get('severity', '')}  {alert['status']['state']}"), "red")
    lines = [heading, Text(f"firing since {window['fired']}, began {window['began']}, id {alert['fingerprint']}")]
    lines.append(Text(clean("  ".join(f"{name}={value}" for name, value in sorted(labels.items()))), "cyan"))
    notes = dict(alert["annotations"])
    names = [*(name for name in _FIRST if name in notes), *sorted(set(notes) - set(_FIRST))]
    lines += [Text(clean(f"{name}: {notes[name]}")) for name in names]
    if rule:
        held = f" for {short_duration(round(rule['duration'] * 1e9))}" if rule["duration"] else ""
        lines.append(Text(clean(f"rule: {' '.join(rule['query'].split())}{held}  (group {rule['group']})"), "dim"))
    for silence in page["silences"]:
        caption = f"{silence['createdBy']}: {silence['comment']}"
        lines.append(Text(clean(f"silenced until {silence['endsAt']} by {caption}"), "yellow"))
    if taken := alert.get("acknowledgedBy"):
        lines.append(Text(clean(f"acknowledged by {taken['by']}: {taken['comment']}"), "green"))
    return lines


def panels_of(page: JsonObject) -> list[ChartPanel]:
    """The curves around an alert, with the threshold of its rule and the time at which it fired."""
    window = page["window"]
    start, fired, end = (_seconds(window[name]) for name in ("start", "fired", "end"))
    panels = []
    for metric in page["metrics"]:
        series = metric["series"][:CURVES_MAX]
        names = legend_names([one["metric"] for one in series], alone=metric["title"])
        curves = [
            ChartCurve(name, [(time, float(value)) for time, value in one["values"]])
            for name, one in zip(names, series, strict=True)
        ]
        if threshold := metric.get("threshold"):
            limit = f"fires {threshold['comparison']} {threshold['value']}"
            curves.append(ChartCurve(limit, [(start, float(threshold["value"])), (end, float(threshold["value"]))]))
        title = f"{metric['title']}: {metric['query']}"
        panels.append(ChartPanel(curves, title, between=(start, end), moment=(fired, "fired")))
    return panels


def _metrics_text(page: JsonObject, width: int) -> list[Text]:
    lines: list[Text] = []
    for metric, panel in zip(page["metrics"], panels_of(page), strict=True):
        hidden = max(0, len(metric["series"]) - CURVES_MAX) + metric["seriesNotShown"]
        heading = Text(f"\n{metric['title']}: ", "bold")
        heading.append(clean(metric["query"]), "not bold")
        chart = chart_text(
            panel.curves,
            width,
            CHART_HEIGHT,
            unit="",
            zero_based=False,
            between=panel.between,
            moment=panel.moment,
        )
        chart.rstrip()
        lines += [heading, chart]
        if hidden:
            lines.append(Text(f"{hidden} more series not drawn", "dim"))
    return lines


def _logs_text(logs: JsonObject) -> list[Text]:
    lines = [Text("\nlog lines ", "bold")]
    lines[0].append(clean(", ".join(logs["selectors"]) or "none from the same source"), "not bold")
    for group in logs["groups"]:
        text = Text()
        text.append(f"{group['level'] or '-':<8} ", LEVEL_COLOURS.get(group["level"], ""))
        text.append(f"{group['count']:>6}× ")
        text.append(f"{'new' if group['new'] else 'known':<6}", "yellow" if group["new"] else "dim")
        text.append(f"{moment_text(int(group['firstUnixNano']))[11:23]} ", "dim")
        text.append(clean(group["example"]["line"]))
        if group["traceIDs"]:
            text.append(f"  trace {group['traceIDs'][0]}", "cyan")
        lines.append(text)
    return lines


def _show_traces(console: Console, traces: JsonObject) -> None:
    if not traces["traces"]:
        return
    console.print(Text("\ntraces", "bold"))
    table(
        (
            TableColumn("TRACE"),
            TableColumn("STARTED", 4),
            TableColumn("DURATION", 3),
            TableColumn("SPANS", 6),
            TableColumn("ERRORS", 5),
            TableColumn("WHY", 2),
            TableColumn("SERVICE", 7),
            TableColumn("NAME", 1, takes_rest=True),
        ),
        [
            (
                one["traceID"],
                moment_text(int(one["startTimeUnixNano"]))[11:23],
                short_duration(one["durationNs"]),
                one["spanCount"],
                one["errorCount"] or "",
                ", ".join(one["why"]),
                one["rootServiceName"],
                one["rootTraceName"],
            )
            for one in traces["traces"]
        ],
    )


def _show_related(console: Console, related: Sequence[JsonObject]) -> None:
    if not related:
        return
    console.print(Text("\nrelated alerts", "bold"))
    table(
        (
            TableColumn("ID"),
            TableColumn("ALERT", 1),
            TableColumn("SINCE", 3),
            TableColumn("STATE", 2),
            TableColumn("SUMMARY", 4, takes_rest=True),
        ),
        [
            (
                one["fingerprint"],
                one["labels"].get("alertname", ""),
                one["startsAt"],
                one["state"],
                one["annotations"].get("summary", ""),
            )
            for one in related
        ],
    )


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
