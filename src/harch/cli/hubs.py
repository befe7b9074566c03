"""`harch hubs`: list the hubs, as the one you ask sees them."""

from __future__ import annotations

import click

from harch.cli.remote import connect, remote_options


@click.command()
@remote_options
def command(hub: str | None, as_json: bool) -> None:
    """List the hubs, as the one you ask sees them.

    AGE is the age of every figure in the row. A hub that does not answer is shown with what it last told.
    """
    from harch.cli.output import age_text, emit_json, note, table

    with connect(hub) as client:
        hubs = client.hubs.list()
    if as_json:
        emit_json({"items": hubs, "total": len(hubs)})
        return
    rows = [
        (
            f"{view.name} *" if view.own else view.name,
            view.country or "-",
            view.status if view.reachable else "no answer",
            "unknown" if view.age_s is None else f"{view.capacity.available_gpus} of {view.capacity.total_gpus}",
            view.provenance or "-",
            view.active_workloads,
            age_text(view.age_s),
            view.endpoint or "-",
        )
        for view in hubs
    ]
    table(("HUB", "COUNTRY", "STATUS", "GPUS FREE", "GPUS ARE", "WORKLOADS", "AGE", "ADDRESS"), rows)
    if any(view.own for view in hubs):
        note("* the hub that was asked")
