"""`harch sentinel traces`: which traces there are, and what happened in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.options import limit_option, since_option
from harch.cli.remote import json_option
from harch.cli.telemetry.query import all_hubs_option, tenant_option, url_option
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from datetime import datetime

    from harch.sdk.sentinel import TraceFound, TracesFound

_COLUMNS = (
    TableColumn("TRACE"),
    TableColumn("STARTED", 3),
    TableColumn("DURATION", 1),
    TableColumn("SPANS", 6),
    TableColumn("ERRORS", 5),
    TableColumn("SERVICE", 4),
    TableColumn("NAME", 2, takes_rest=True),
)
_MEASURES = (
    TableColumn("SPANS", 2, right=True),
    TableColumn("ERRORS", 1, right=True),
    TableColumn("MEAN", 5, right=True),
    TableColumn("P50", 4, right=True),
    TableColumn("P95", 6, right=True),
    TableColumn("P99", 3, right=True),
)
SPANS = 200
LINES = 50

_since = since_option("Traces since this time, or this long ago, e.g. 1h.")
_limit = limit_option(1000, 20, "Maximum traces.")


@click.group(cls=VerbGroup)
def traces() -> None:
    """Search and inspect traces."""


@traces.command("ls")
@_since
@_limit
@all_hubs_option
@url_option
@tenant_option
@list_options
def listed(
    since: datetime | None, limit: int, all_hubs: bool, url: str | None, tenant: str | None, listing: Listing
) -> None:
    """List the newest traces."""
    _search("", since, limit, all_hubs, url, tenant, listing)


@traces.command("search")
@click.argument("query", nargs=-1, required=True)
@_since
@_limit
@all_hubs_option
@url_option
@tenant_option
@list_options
def searched(
    query: tuple[str, ...],
    since: datetime | None,
    limit: int,
    all_hubs: bool,
    url: str | None,
    tenant: str | None,
    listing: Listing,
) -> None:
    """Find traces with a span that matches QUERY, newest first.

    \b
    harch sentinel traces search service=hub status=error --since 1h
    harch sentinel traces search '{ name =~ "place.*" && duration > 10ms && .gpus >= 8 }'
    """
    _search(" ".join(query), since, limit, all_hubs, url, tenant, listing)


def _search(
    query: str,
    since: datetime | None,
    limit: int,
    all_hubs: bool,
    url: str | None,
    tenant: str | None,
    listing: Listing,
) -> None:
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        found = client.find_traces(query, _start_s(since), limit)
    show_found(found, listing)


def show_found(found: TracesFound, listing: Listing) -> None:
    if listing.is_table:
        for warning in found.warnings:
            click.echo(warning, err=True)
    listing.show(
        found.traces,
        _COLUMNS,
        _row,
        name=lambda one: one.trace_id,
        document=lambda traces: {"items": traces, "total": len(traces), "warnings": found.warnings},
        none="no traces found",
    )


def _row(one: TraceFound) -> tuple[object, ...]:
    from harch.cli.views.trace import moment_text
    from harch.sentinel.traces.durations import short_duration

    return (
        one.trace_id,
        moment_text(int(one.start_time_unix_nano)),
        Sortable(short_duration(one.duration_ns), one.duration_ns),
        one.span_count,
        one.error_count or "",
        one.root_service_name,
        one.root_trace_name,
    )


@traces.command("show")
@click.argument("trace_id")
@click.option(
    "--spans",
    type=click.IntRange(1, 10_000),
    default=SPANS,
    show_default=True,
    metavar="N",
    help="Maximum spans to draw.",
)
@click.option(
    "--logs",
    type=click.IntRange(0, 1000),
    default=LINES,
    show_default=True,
    metavar="N",
    help="Maximum log lines to show.",
)
@all_hubs_option
@url_option
@tenant_option
@json_option
def show_trace(
    trace_id: str, spans: int, logs: int, all_hubs: bool, url: str | None, tenant: str | None, as_json: bool
) -> None:
    """Draw a trace: its spans over time, its critical path and its log lines."""
    from harch.cli.output import emit_json
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        trace = client.trace(trace_id, spans=spans, logs=logs)
    if as_json:
        emit_json(trace)
        return
    from harch.cli.views.trace import draw_trace

    draw_trace(trace)


@traces.command("stats")
@click.argument("query", nargs=-1)
@click.option(
    "--by",
    default="service,name",
    show_default=True,
    metavar="A,B",
    help="Group by: service, name, status, kind; comma-separated.",
)
@_since
@all_hubs_option
@url_option
@tenant_option
@json_option
def stats(
    query: tuple[str, ...],
    by: str,
    since: datetime | None,
    all_hubs: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> None:
    """Count spans by group and estimate their duration (default: the last hour)."""
    from harch.cli.output import emit_json
    from harch.cli.views.table import table
    from harch.sdk.sentinel import SentinelClient

    with SentinelClient(url, tenant=tenant, hubs="all" if all_hubs else "") as client:
        statistics = client.trace_statistics(" ".join(query), by.split(","), _start_s(since))
    if as_json:
        emit_json(statistics)
        return
    for warning in statistics.warnings:
        click.echo(warning, err=True)
    table(
        (*(TableColumn(name.upper()) for name in statistics.by), *_MEASURES),
        [
            (
                *(one[name] for name in statistics.by),
                one["count"],
                "?" if one["errors"] is None else one["errors"] or "",
                *(_duration(one[f"{name}Ns"]) for name in ("mean", "p50", "p95", "p99")),
            )
            for one in statistics.groups
        ],
    )
    if statistics.groups:
        click.echo("percentiles are estimated from buckets", err=True)


def _duration(duration_ns: int | None) -> str:
    """What a hub of another country may not tell is a `?`."""
    from harch.sentinel.traces.durations import short_duration

    return "?" if duration_ns is None else short_duration(duration_ns)


def _start_s(since: datetime | None) -> float | None:
    return None if since is None else since.timestamp()
