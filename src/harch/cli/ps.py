"""`harch ps`: list workloads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client, Page, Workload

_WATCH_EVERY_S = 2.0
_ROWS_MAX = 10_000


@click.command()
@click.option("-a", "--all-states", is_flag=True, help="Also those that have ended.")
@click.option("--tenant", metavar="NAME", help="Only of this tenant: for operators, who see all of them.")
@click.option("--status", metavar="STATUS", help="Only this status, e.g. pending or failed.")
@click.option("--limit", type=click.IntRange(1, _ROWS_MAX), default=100, show_default=True, help="Rows at most.")
@click.option("--watch", is_flag=True, help="Again every 2 s, until Ctrl-C.")
@remote_options
def command(
    all_states: bool,
    tenant: str | None,
    status: str | None,
    limit: int,
    watch: bool,
    hub: str | None,
    as_json: bool,
) -> int:
    """List workloads.

    Newest first; by default only those that have not ended. With --watch --json, one document per line.
    """
    from harch.cli.output import emit_json

    with connect(hub) as client:
        active = not all_states and status is None
        try:
            while True:
                page = _rows(client, limit, active=active, status=status, tenant=tenant)
                if as_json:
                    emit_json(page)
                else:
                    if watch:
                        click.clear()
                    _show(page)
                if not watch:
                    return 0
                time.sleep(_WATCH_EVERY_S)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE


def _rows(client: Client, limit: int, *, active: bool, status: str | None, tenant: str | None) -> Page[Workload]:
    from harch.sdk import Page
    from harch.sdk.operations import PER_PAGE_MAX

    items: list[Workload] = []
    number = 0
    while True:
        number += 1
        page = client.workloads.list(
            page=number, per_page=min(limit, PER_PAGE_MAX), active=active, status=status, tenant=tenant
        )
        items += page.items
        if not page.items or len(items) >= min(limit, page.total):
            return Page(items=items[:limit], total=page.total, pagination=page.pagination)


def _show(page: Page[Workload]) -> None:
    from harch.base.clock import SystemClock
    from harch.cli.follow import elapsed_s
    from harch.cli.output import age_text, note, since_text, table

    now = SystemClock().now()
    rows = []
    for workload in page.items:
        ran_s = elapsed_s(workload)
        rows.append(
            (
                workload.id,
                workload.name,
                "stopping" if workload.stopping else workload.status,
                workload.scheduling_class or "-",
                _gpus(workload),
                ", ".join(sorted({task.node_id for task in workload.placement})[:3]) or "-",
                since_text(workload.metadata.created_at, now),
                "-" if ran_s is None else age_text(ran_s),
                workload.tenant,
                workload.error_message or "",
            )
        )
    table(("ID", "NAME", "STATUS", "CLASS", "GPUS", "NODES", "AGE", "RAN", "TENANT", "NOTE"), rows)
    if len(page.items) < page.total:
        note(f"{len(page.items)} of {page.total}; --limit shows more")


def _gpus(workload: Workload) -> str:
    resources = workload.spec.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    per_task = resources.get("gpu_fraction") or resources.get("gpus", 0)
    tasks = workload.spec.get("tasks", 1)
    count = f"{tasks} x {per_task}" if tasks != 1 else f"{per_task}"
    return f"{count} modelled" if workload.modelled else count
