"""`harch hubs`: list the hubs, as the one you ask sees them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Hub


@click.command()
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often, with --watch.",
)
@remote_options
def command(watch: bool, interval: float, hub: str | None, as_json: bool) -> int:
    """List the hubs, as the one you ask sees them.

    AGE is the age of every figure in the row: the time since the hub's last sign of life. A hub that is `suspected`
    is silent, `cut off` is alive without a link to the asked one; both are shown with what they last told. RTT is
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
    guests = sum(view.summary.guests.values()) if view.summary is not None else 0
    words = f" + {guests} guest{'s' if guests > 1 else ''}" if guests else ""
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
    table(("HUB", "COUNTRY", "STATUS", "GPUS FREE", "GPUS ARE", "WORKLOADS", "AGE", "RTT", "ADDRESS", "NOTE"), rows)
    if any(view.own for view in hubs):
        note("* the hub that was asked")
