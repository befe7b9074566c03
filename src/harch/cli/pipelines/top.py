"""`harch pipeline top`: how pipelines do, again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.options import renamed
from harch.cli.remote import connect, remote_options
from harch.cli.views.table import TableColumn
from harch.cli.watch import WATCH_S, WatchCommand, watch_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from harch.sdk import Client
    from harch.sdk.pipeline_types import Pipeline, PipelineStage

COLUMNS = (
    TableColumn("PIPELINE"),
    TableColumn("STAGE"),
    TableColumn("WORKERS", 4, right=True),
    TableColumn("RATE/S", 1, right=True),
    TableColumn("IN", 7, right=True),
    TableColumn("LAG", 2, right=True),
    TableColumn("WAITING", 6, right=True),
    TableColumn("P50 MS", 9, right=True),
    TableColumn("P99 MS", 3, right=True),
    TableColumn("BUSY", 8, right=True),
    TableColumn("DROPPED", 5, right=True),
    TableColumn("ASIDE", 10, right=True),
)
_TAKEN = {"source": "events_accepted", "sense": "events_in", "think": "rows", "act": "commands"}


@click.command("top", cls=WatchCommand)
@click.argument("name", required=False)
@click.option("--once", is_flag=True, help="Print once and exit.")
@watch_option
@renamed("--every", "--watch")
@remote_options
def top(name: str | None, once: bool, watch_s: float | None, hub: str | None, as_json: bool) -> int:
    """Watch pipelines: rates, lag, latency, workers, drops, quarantined events, model versions.

    Counts are of the running worker processes. With --json, one document per refresh.
    """
    from harch.cli.output import emit_json
    from harch.cli.views.table import table

    every_s = WATCH_S if watch_s is None else watch_s
    with connect(hub) as client:
        if once:
            found = _look(client, name)
            if as_json:
                emit_json({"items": found})
            else:
                table(COLUMNS, rows_of(found))
                for line in notes_of(found):
                    click.echo(line)
            return 0
        try:
            _watch_json(client, name, every_s) if as_json else _watch(client, name, every_s)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE
    return 0


def _look(client: Client, name: str | None) -> list[Pipeline]:
    if name is not None:
        return [client.pipelines.get(name).pipeline]
    return list(client.pipelines.list())


def _watch_json(client: Client, name: str | None, every_s: float) -> None:
    import time

    from harch.cli.output import emit_json

    while True:
        emit_json({"items": _look(client, name)})
        time.sleep(every_s)


def _watch(client: Client, name: str | None, every_s: float) -> None:
    """A hub that does not answer for a moment is no reason to end: the last look stays, with the reason below it."""
    import time

    from rich.live import Live

    listed: list[Pipeline] = []
    trouble = ""
    with Live(_picture([], ""), auto_refresh=False, screen=False) as live:
        while True:
            try:
                listed, trouble = _look(client, name), ""
            except HarchError as error:
                if error.code == "E0710":
                    raise
                trouble = f"{error.code}: {error.message}"
            live.update(_picture(listed, trouble), refresh=True)
            time.sleep(every_s)


def _picture(found: list[Pipeline], trouble: str) -> RenderableType:
    import shutil

    from rich.console import Group
    from rich.text import Text

    from harch.cli.output import clean
    from harch.cli.views.table import fit

    view = fit(COLUMNS, rows_of(found), shutil.get_terminal_size().columns)
    lines = [*notes_of(found), *([trouble] if trouble else [])]
    return Group(*view, *(Text(clean(line)) for line in lines))


def rows_of(found: Iterable[Pipeline]) -> list[Sequence[object]]:
    """One row per stage; the name of the pipeline stands before its first."""
    rows: list[Sequence[object]] = []
    for pipeline in found:
        for place, stage in enumerate(pipeline.stages):
            rows.append((pipeline.name if place == 0 else "", *_cells(stage)))
        if not pipeline.stages:
            rows.append((pipeline.name, pipeline.state, *("-" for _ in COLUMNS[2:])))
    return rows


def _cells(stage: PipelineStage) -> tuple[object, ...]:
    measured = stage.p99_ms > 0
    return (
        stage.stage,
        f"{stage.ready}/{stage.wanted}" + ("*" if stage.fixed else ""),
        f"{stage.rate:,.0f}",
        f"{stage.counters.get(_TAKEN.get(stage.stage, ''), 0):,}",
        f"{stage.lag:,.0f}",
        "-" if stage.waiting is None else f"{stage.waiting:,}",
        f"{stage.p50_ms:.1f}" if measured else "-",
        f"{stage.p99_ms:.1f}" if measured else "-",
        f"{stage.busy:.0%}",
        f"{stage.dropped:,}",
        f"{stage.quarantined:,}",
    )


def notes_of(found: Iterable[Pipeline]) -> list[str]:
    """Below the table: state, models, where events are taken, trouble."""
    lines = []
    for pipeline in found:
        words = [f"{pipeline.name}: {pipeline.state}, version {pipeline.version}, at {pipeline.hub}"]
        words += [f"{name} {what}" for name, what in sorted(pipeline.models.items())]
        words += [f"{name} takes events at {url}" for name, url in sorted(pipeline.sources.items())]
        if pipeline.trouble:
            words.append(f"trouble: {pipeline.trouble}")
        lines.append("; ".join(words))
    if any(stage.fixed for pipeline in found for stage in pipeline.stages):
        lines.append("* set manually; `harch pipeline scale NAME STAGE=auto` restores autoscaling")
    return lines
