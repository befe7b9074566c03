"""`harch hubs` and `harch gpus`: list the hubs as the queried one sees them, and GPUs, or what is free of each
model.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client, Gpu, Hub


# `harch hubs`: list the hubs, as the one you ask sees them.


@click.command()
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh interval, with --watch.",
)
@remote_options
def hubs_command(watch: bool, interval: float, hub: str | None, as_json: bool) -> int:
    """List hubs, as seen by the queried hub.

    AGE applies to every value in the row: the time since the hub's last heartbeat. A hub that is `suspected`
    is silent, `cut off` is alive without a link to the queried one; both show what they last reported. RTT is
    measured on the link. With --watch --json, one document per line.
    """
    from harch.cli.output import emit_json

    with connect(hub) as client:
        try:
            while True:
                hubs = client.hubs.list()
                if as_json:
                    emit_json({"items": hubs, "total": len(hubs)})
                else:
                    if watch:
                        click.clear()
                    _show(hubs)
                if not watch:
                    return 0
                time.sleep(interval)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE


def _work(view: Hub) -> str:
    """What it owns, wherever that runs; and what is here for others, who count it as theirs."""
    borrowed = sum(view.summary.borrowed.values()) if view.summary is not None else 0
    words = f" + {borrowed} borrowed" if borrowed else ""
    return f"{view.active_workloads}{words}"


def _show(hubs: list[Hub]) -> None:
    from harch.cli.output import age_text, note, table

    rows = [
        (
            f"{view.name} *" if view.own else view.name,
            view.country or "-",
            view.standing or (view.status if view.reachable else "no answer"),  # an older hub says less
            "unknown" if view.age_s is None else f"{view.capacity.available_gpus} of {view.capacity.total_gpus}",
            view.provenance or "-",
            _work(view),
            age_text(view.age_s),
            "-" if view.rtt_ms is None else f"{view.rtt_ms:.1f} ms",
            view.endpoint or "-",
            view.error or (view.summary.status_detail if view.summary else ""),
        )
        for view in hubs
    ]
    table(("HUB", "COUNTRY", "STATUS", "GPUS FREE", "GPU DATA", "WORKLOADS", "AGE", "RTT", "ADDRESS", "NOTE"), rows)
    if any(view.own for view in hubs):
        note("* the queried hub")


# `harch gpus`: list GPUs, or what is free of each model.


_ROWS_MAX = 100_000


@click.command()
@click.option("--models", is_flag=True, help="Count by hub and model instead of listing each GPU.")
@click.option("--model", metavar="MODEL", help="Only this model, e.g. h100-80gb.")
@click.option("--status", type=click.Choice(["free", "allocated", "unavailable"]), help="Only GPUs with this status.")
@click.option("--limit", type=click.IntRange(1, _ROWS_MAX), default=100, show_default=True, help="Maximum rows.")
@remote_options
def gpus_command(
    models: bool, model: str | None, status: str | None, limit: int, hub: str | None, as_json: bool
) -> None:
    """List GPUs, or free GPUs by model.

    GPUs that are described but do not exist are labelled `modelled`.
    """
    from harch.cli.output import emit_json, note

    with connect(hub) as client:
        if models:
            rows = _model_rows(client.hubs.list(), model)
            if as_json:
                emit_json({"items": rows, "total": len(rows)})
            else:
                _show_models(rows)
            return
        gpus, total = _gpus(client, model, status, limit)
    if as_json:
        emit_json({"items": gpus, "total": total})
        return
    _show_gpus(gpus)
    if len(gpus) < total:
        note(f"{len(gpus)} of {total}; --limit shows more, --models counts them")


def _gpus(client: Client, model: str | None, status: str | None, limit: int) -> tuple[list[Gpu], int]:
    from harch.sdk.operations import PER_PAGE_MAX

    gpus: list[Gpu] = []
    number = 0
    while True:
        number += 1
        page = client.gpus.list(page=number, per_page=min(limit, PER_PAGE_MAX), model=model, status=status)
        gpus += page.items
        if not page.items or len(gpus) >= min(limit, page.total):
            return gpus[:limit], page.total


def _model_rows(hubs: list[Hub], model: str | None) -> list[dict[str, object]]:
    return [
        {
            "hub": hub.id,
            "model": capacity.model,
            "memory_gb": capacity.memory_gb,
            "free": capacity.free,
            "total": capacity.total,
            "gpus_per_node_max": capacity.gpus_per_node_max,
            "provenance": hub.provenance,
            "age_s": hub.age_s,
        }
        for hub in hubs
        if hub.summary is not None
        for capacity in hub.summary.models
        if model is None or capacity.model == model
    ]


def _show_models(rows: list[dict[str, object]]) -> None:
    from harch.cli.output import age_text, table

    cells = []
    for row in rows:
        age_s = row["age_s"]
        age = age_text(age_s if isinstance(age_s, float) else None)
        free = f"{row['free']} of {row['total']}"
        cells.append(
            (row["hub"], row["model"], f"{row['memory_gb']} GB", free, row["gpus_per_node_max"], row["provenance"], age)
        )
    table(("HUB", "MODEL", "MEMORY", "FREE", "PER NODE", "GPU DATA", "AGE"), cells)


def _show_gpus(gpus: list[Gpu]) -> None:
    from harch.cli.output import table

    table(
        (
            "GPU",
            "HUB",
            "NODE",
            "RACK",
            "MODEL",
            "MEMORY",
            "ISLAND",
            "NUMA",
            "STATUS",
            "HELD",
            "HEALTH",
            "GPU DATA",
            "WORKLOAD",
        ),
        (
            (
                gpu.id,
                gpu.hub_id,
                gpu.node_id,
                gpu.rack_id,
                gpu.model,
                f"{gpu.memory_gb} GB",
                gpu.island,
                gpu.numa,
                gpu.status,
                f"{gpu.held_milli / 1000:g}",
                "ok" if gpu.healthy else "unhealthy",
                gpu.provenance,
                gpu.workload_id or "-",
            )
            for gpu in gpus
        ),
    )
