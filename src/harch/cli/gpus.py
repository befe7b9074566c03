"""`harch gpus`: list GPUs, or what is free of each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client, Gpu, Hub

_ROWS_MAX = 100_000


@click.command()
@click.option("--models", is_flag=True, help="Count by hub and model instead of listing each GPU.")
@click.option("--model", metavar="MODEL", help="Only this model, e.g. h100-80gb.")
@click.option("--status", type=click.Choice(["free", "allocated", "unavailable"]), help="Only these.")
@click.option("--limit", type=click.IntRange(1, _ROWS_MAX), default=100, show_default=True, help="Rows at most.")
@remote_options
def command(models: bool, model: str | None, status: str | None, limit: int, hub: str | None, as_json: bool) -> None:
    """List GPUs, or what is free of each model.

    GPUs that are described but not there are labelled `modelled`.
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
    table(("HUB", "MODEL", "MEMORY", "FREE", "PER NODE", "GPUS ARE", "AGE"), cells)


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
            "GPU IS",
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
