"""`harch hubs` and `harch gpus`: list the hubs as the queried one sees them, and GPUs, or what is free of each
model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.options import limit_option, renamed
from harch.cli.remote import connect, hub_option
from harch.cli.views.table import TableColumn
from harch.cli.watch import OLD_INTERVAL, WatchCommand, watch_option, watched

if TYPE_CHECKING:
    from harch.sdk import Client, Gpu, Hub


# `harch hubs`: list the hubs, as the one you ask sees them.


_HUBS = (
    TableColumn("HUB"),
    TableColumn("COUNTRY", 5),
    TableColumn("STATUS", 1),
    TableColumn("GPUS FREE", 2),
    TableColumn("GPU DATA", 6),
    TableColumn("WORKLOADS", 3),
    TableColumn("AGE", 4),
    TableColumn("RTT", 7),
    TableColumn("ADDRESS", 8),
    TableColumn("NOTE", 9, takes_rest=True),
)


@click.command(cls=WatchCommand)
@watch_option
@renamed(OLD_INTERVAL, "--watch")
@hub_option
@list_options
def hubs_command(watch_s: float | None, hub: str | None, listing: Listing) -> int:
    """List hubs, as seen by the queried hub.

    AGE applies to every value in the row: the time since the hub's last heartbeat. A hub that is `suspected`
    is silent, `cut off` is alive without a link to the queried one; both show what they last reported. RTT is
    measured on the link.
    """
    with connect(hub) as client:
        return watched(lambda: _show(client.hubs.list(), listing), watch_s, clear=listing.is_table)


def _work(view: Hub) -> str:
    """What it owns, wherever that runs; and what is here for others, who count it as theirs."""
    borrowed = sum(view.summary.borrowed.values()) if view.summary is not None else 0
    words = f" + {borrowed} borrowed" if borrowed else ""
    return f"{view.active_workloads}{words}"


def _show(hubs: list[Hub], listing: Listing) -> None:
    from harch.cli.output import note

    listing.show(hubs, _HUBS, _hub_row, name=lambda view: view.id)
    if listing.is_table and any(view.own for view in hubs):
        note("* the queried hub")


def _hub_row(view: Hub) -> tuple[object, ...]:
    from harch.cli.output import age_text

    free = f"{view.capacity.available_gpus} of {view.capacity.total_gpus}"
    return (
        f"{view.name} *" if view.own else view.name,
        view.country or "-",
        view.standing or (view.status if view.reachable else "no answer"),  # an older hub says less
        Sortable("unknown" if view.age_s is None else free, view.capacity.available_gpus),
        view.provenance or "-",
        Sortable(_work(view), view.active_workloads),
        Sortable(age_text(view.age_s), view.age_s),
        Sortable("-" if view.rtt_ms is None else f"{view.rtt_ms:.1f} ms", view.rtt_ms),
        view.endpoint or "-",
        view.error or (view.summary.status_detail if view.summary else ""),
    )


# `harch gpus`: list GPUs, or what is free of each model.


_ROWS_MAX = 100_000
_GPUS = (
    TableColumn("GPU"),
    TableColumn("HUB", 7),
    TableColumn("NODE", 8),
    TableColumn("RACK", 9),
    TableColumn("MODEL", 2),
    TableColumn("MEMORY", 6),
    TableColumn("ISLAND", 10),
    TableColumn("NUMA", 11),
    TableColumn("STATUS", 1),
    TableColumn("HELD", 4),
    TableColumn("HEALTH", 3),
    TableColumn("GPU DATA", 5),
    TableColumn("WORKLOAD", 2),
)
_MODELS = (
    TableColumn("HUB"),
    TableColumn("MODEL"),
    TableColumn("MEMORY", 3),
    TableColumn("FREE", 1),
    TableColumn("PER NODE", 2),
    TableColumn("GPU DATA", 4),
    TableColumn("AGE", 5),
)


@click.command()
@click.option("--models", is_flag=True, help="Count by hub and model instead of listing each GPU.")
@click.option("--model", metavar="MODEL", help="Only this model, e.g. h100-80gb.")
@click.option("--status", type=click.Choice(["free", "allocated", "unavailable"]), help="Only GPUs with this status.")
@limit_option(_ROWS_MAX, 100)
@hub_option
@list_options
def gpus_command(
    models: bool, model: str | None, status: str | None, limit: int, hub: str | None, listing: Listing
) -> None:
    """List GPUs, or free GPUs by model.

    GPUs that are described but do not exist are labelled `modelled`.
    """
    from harch.cli.output import note

    with connect(hub) as client:
        if models:
            rows = _model_rows(client.hubs.list(), model)
            listing.show(rows, _MODELS, _model_row, name=lambda row: str(row["model"]))
            return
        gpus, total = _gpus(client, model, status, limit)
    listing.show(
        gpus, _GPUS, _gpu_row, name=lambda gpu: gpu.id, document=lambda items: {"items": items, "total": total}
    )
    if listing.is_table and len(gpus) < total:
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


def _model_row(row: dict[str, object]) -> tuple[object, ...]:
    from harch.cli.output import age_text

    age_s, free = row["age_s"], row["free"]
    known_s = age_s if isinstance(age_s, float) else None
    return (
        row["hub"],
        row["model"],
        f"{row['memory_gb']} GB",
        Sortable(f"{free} of {row['total']}", free if isinstance(free, int) else None),
        row["gpus_per_node_max"],
        row["provenance"],
        Sortable(age_text(known_s), known_s),
    )


def _gpu_row(gpu: Gpu) -> tuple[object, ...]:
    return (
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
