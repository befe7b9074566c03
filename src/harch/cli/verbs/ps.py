"""`harch ps`: list workloads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk import Client, FederationPage, Page, SilentHub, Workload

_WATCH_EVERY_S = 2.0
_ROWS_MAX = 10_000


@click.command()
@click.option("--all", "everywhere", is_flag=True, help="Unfinished work of all hubs, with owner and runner.")
@click.option("--borrowed", is_flag=True, help="Borrowed work instead of the hub's own.")
@click.option("--guests", "borrowed_before", is_flag=True, hidden=True)  # its name in earlier releases
@click.option("-a", "--all-states", is_flag=True, help="Include ended workloads.")
@click.option("--tenant", metavar="NAME", help="Only this tenant (for operators, who see all).")
@click.option("--status", metavar="STATUS", help="Only this status, e.g. pending or failed.")
@click.option("--limit", type=click.IntRange(1, _ROWS_MAX), default=100, show_default=True, help="Maximum rows.")
@click.option("--watch", is_flag=True, help="Refresh every 2 s until Ctrl-C.")
@remote_options
def command(
    everywhere: bool,
    borrowed: bool,
    borrowed_before: bool,
    all_states: bool,
    tenant: str | None,
    status: str | None,
    limit: int,
    watch: bool,
    hub: str | None,
    as_json: bool,
) -> int:
    """List workloads.

    Newest first; by default only unfinished ones of the queried hub. With --watch --json, one document per
    line. With --all, hubs that do not answer within 2 s are named on stderr, and in the JSON under `silent_hubs`.
    """
    from harch.cli.output import emit_json

    borrowed = borrowed or borrowed_before
    if everywhere and (borrowed or all_states):
        raise HarchError("E0201", "--all excludes --borrowed and --all-states", hint="query each hub: --hub NAME")
    with connect(hub) as client:
        active = not all_states and status is None
        try:
            while True:
                page = (
                    _everywhere(client, limit, status=status, tenant=tenant)
                    if everywhere
                    else _rows(client, limit, active=active, status=status, tenant=tenant, borrowed=borrowed)
                )
                if as_json:
                    emit_json(page)
                else:
                    if watch:
                        click.clear()
                    _show(page, hubs=everywhere or borrowed, borrowed=borrowed, limit=limit)
                if not watch:
                    return 0
                time.sleep(_WATCH_EVERY_S)
        except KeyboardInterrupt:
            return INTERRUPTED_EXIT_CODE


def _rows(
    client: Client, limit: int, *, active: bool, status: str | None, tenant: str | None, borrowed: bool
) -> Page[Workload]:
    from harch.sdk import Page
    from harch.sdk.operations import PER_PAGE_MAX

    items: list[Workload] = []
    number = 0
    while True:
        number += 1
        page = client.workloads.list(
            page=number,
            per_page=min(limit, PER_PAGE_MAX),
            active=active,
            status=status,
            tenant=tenant,
            borrowed=borrowed,
        )
        items += page.items
        if not page.items or len(items) >= min(limit, page.total):
            return Page(items=items[:limit], total=page.total, pagination=page.pagination)


def _everywhere(client: Client, limit: int, *, status: str | None, tenant: str | None) -> FederationPage:
    from msgspec.structs import replace

    from harch.sdk.operations import PER_PAGE_MAX

    items: list[Workload] = []
    number = 0
    while True:
        number += 1
        page = client.workloads.everywhere(page=number, per_page=min(limit, PER_PAGE_MAX), status=status, tenant=tenant)
        items += page.items
        if not page.items or len(items) >= min(limit, page.total):
            return replace(page, items=items[:limit])


def _show(page: Page[Workload] | FederationPage, *, hubs: bool, borrowed: bool, limit: int) -> None:
    from harch.base.clock import SystemClock
    from harch.cli.follow import elapsed_s
    from harch.cli.output import age_text, note, since_text, table

    now = SystemClock().now()
    lent = hubs or any(workload.runner_hub not in ("", workload.hub_id) for workload in page.items)
    rows = []
    for workload in page.items:
        ran_s = elapsed_s(workload)
        owner = (workload.hub_id or "-",) if hubs else ()
        runner = (workload.runner_hub or "-",) if lent else ()
        rows.append(
            (
                workload.id,
                workload.name,
                *owner,
                *runner,
                "stopping" if workload.stopping else workload.status,
                workload.scheduling_class or "-",
                _gpus(workload),
                ", ".join((workload.nodes or sorted({task.node_id for task in workload.placement}))[:3]) or "-",
                since_text(workload.metadata.created_at, now),
                "-" if ran_s is None else age_text(ran_s),
                workload.tenant,
                workload.error_message or _unheard(workload, borrowed=borrowed) or _held(workload),
            )
        )
    where = (*(("OWNER",) if hubs else ()), *(("RUNS AT",) if lent else ()))
    table(("ID", "NAME", *where, "STATUS", "CLASS", "GPUS", "NODES", "AGE", "RAN", "TENANT", "NOTE"), rows)
    if len(page.items) < page.total:
        more = "each hub returns only its newest" if hubs and len(page.items) < limit else "--limit shows more"
        note(f"{len(page.items)} of {page.total}; {more}")
    for silent in getattr(page, "silent_hubs", ()):
        note(_silence(silent))


def _silence(hub: SilentHub) -> str:
    """A list that lacks a hub must say so."""
    from harch.cli.output import age_text, clean

    counted = ", ".join(f"{count} {state}" for state, count in sorted(hub.workloads.items())) or "no work"
    known = f"{age_text(hub.age_s)} ago it had {counted}" if hub.age_s is not None else "no data about it"
    return f"{clean(hub.hub_id)} is not in this list ({clean(hub.why)}); {known}"


def _unheard(workload: Workload, *, borrowed: bool) -> str:
    """In the list of all hubs, a guest is told by its runner only where its owner does not answer."""
    from harch.cli.output import age_text, clean

    if workload.unheard_s is not None:
        return f"no message for {age_text(workload.unheard_s)} from {clean(workload.runner_hub)}"
    return "its owner does not answer" if workload.borrowed and not borrowed else ""


def _held(workload: Workload) -> str:
    choice = workload.carbon
    if choice is None or not choice.held or workload.status != "pending" or choice.start_at is None:
        return ""
    promise = f", by {choice.start_by:%d %b %H:%M} at the latest" if choice.start_by is not None else ""
    return f"held for cleaner power until {choice.start_at:%d %b %H:%M} UTC{promise}"


def _gpus(workload: Workload) -> str:
    resources = workload.spec.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    per_task = resources.get("gpu_fraction") or resources.get("gpus", 0)
    tasks = workload.spec.get("tasks", 1)
    count = f"{tasks} x {per_task}" if tasks != 1 else f"{per_task}"
    return f"{count} modelled" if workload.modelled else count
