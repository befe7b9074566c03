"""`harch ps`: list workloads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.options import limit_option, renamed
from harch.cli.remote import connect, hub_option
from harch.cli.views.table import TableColumn
from harch.cli.watch import WatchCommand, watch_option, watched

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from harch.sdk import Client, FederationPage, Page, SilentHub, Workload

_ROWS_MAX = 10_000
_NODES_NAMED = 1
_OWNER, _RUNS_AT = TableColumn("OWNER", 7, wide_only=True), TableColumn("RUNS AT", 6, wide_only=True)
_COLUMNS = (
    TableColumn("ID"),
    TableColumn("NAME", 1),
    _OWNER,
    _RUNS_AT,
    TableColumn("STATUS"),
    TableColumn("CLASS", 10),
    TableColumn("GPUS", 3),
    TableColumn("NODES", 8),
    TableColumn("AGE", 4),
    TableColumn("RAN", 5),
    TableColumn("TENANT", 9),
    TableColumn("NOTE", 2, takes_rest=True),
)


@click.command(cls=WatchCommand)
@click.option("--all-hubs", "everywhere", is_flag=True, help="Unfinished work of all hubs, with owner and runner.")
@renamed("--all", "--all-hubs", is_flag=True)
@click.option("--borrowed", is_flag=True, help="Borrowed work instead of the hub's own.")
@renamed("--guests", "--borrowed", is_flag=True)
@click.option("-a", "--all-states", is_flag=True, help="Include ended workloads.")
@click.option("--tenant", metavar="NAME", help="Only this tenant (for operators, who see all).")
@click.option("--status", metavar="STATUS", help="Only this status, e.g. pending or failed.")
@limit_option(_ROWS_MAX, 100)
@watch_option
@hub_option
@list_options
def command(
    everywhere: bool,
    borrowed: bool,
    all_states: bool,
    tenant: str | None,
    status: str | None,
    limit: int,
    watch_s: float | None,
    hub: str | None,
    listing: Listing,
) -> int:
    """List workloads.

    Newest first; by default only unfinished ones of the queried hub. With --watch -o json, one document per
    line. With --all-hubs, hubs that do not answer within 2 s are named on stderr, and in the JSON under `silent_hubs`.
    """
    if everywhere and (borrowed or all_states):
        raise HarchError("E0201", "--all-hubs excludes --borrowed and --all-states", hint="query each hub: --hub NAME")
    active = not all_states and status is None
    with connect(hub) as client:

        def look() -> None:
            page = (
                _everywhere(client, limit, status=status, tenant=tenant)
                if everywhere
                else _rows(client, limit, active=active, status=status, tenant=tenant, borrowed=borrowed)
            )
            _show(page, listing, hubs=everywhere or borrowed, borrowed=borrowed, limit=limit)

        return watched(look, watch_s, clear=listing.is_table)


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


def _show(page: Page[Workload] | FederationPage, listing: Listing, *, hubs: bool, borrowed: bool, limit: int) -> None:
    from msgspec.structs import replace as replaced

    from harch.base.clock import SystemClock
    from harch.cli.output import note

    now = SystemClock().now()
    lent = hubs or any(workload.runner_hub not in ("", workload.hub_id) for workload in page.items)

    def row(workload: Workload) -> Sequence[object]:
        return _row(workload, now, borrowed=borrowed)

    listing.show(
        page.items,
        _columns(owner=hubs, runner=lent),
        row,
        name=lambda workload: workload.id,
        document=lambda items: replaced(page, items=items),
        none="no workloads",
    )
    if not listing.is_table:
        return
    if len(page.items) < page.total:
        more = "each hub returns only its newest" if hubs and len(page.items) < limit else "--limit shows more"
        note(f"{len(page.items)} of {page.total}; {more}")
    for silent in getattr(page, "silent_hubs", ()):
        note(_silence(silent))


def _columns(*, owner: bool, runner: bool) -> tuple[TableColumn, ...]:
    """Who owns work and who runs it is shown where that may be two hubs."""
    wanted = {_OWNER: owner, _RUNS_AT: runner}
    return tuple(replace(column, wide_only=False) if wanted.get(column) else column for column in _COLUMNS)


def _row(workload: Workload, now: datetime, *, borrowed: bool) -> tuple[object, ...]:
    from harch.cli.follow import elapsed_s, state_of
    from harch.cli.output import age_text, since_text

    ran_s, created_at = elapsed_s(workload), workload.metadata.created_at
    return (
        workload.id,
        workload.name,
        workload.hub_id or "-",
        workload.runner_hub or "-",
        state_of(workload),
        workload.scheduling_class or "-",
        Sortable(_gpus(workload), workload.gpus_total),
        _nodes(workload),
        Sortable(since_text(created_at, now), (now - created_at).total_seconds()),
        Sortable("-" if ran_s is None else age_text(ran_s), ran_s),
        workload.tenant,
        _note(workload, borrowed=borrowed),
    )


def _note(workload: Workload, *, borrowed: bool) -> str:
    return (
        workload.error_message
        or _unheard(workload, borrowed=borrowed)
        or _held(workload)
        or ("" if workload.stopping else workload.preparing or workload.pending_reason)
    )


def _nodes(workload: Workload) -> str:
    """One by its name, the others by their number."""
    nodes = workload.nodes or sorted({task.node_id for task in workload.placement})
    others = len(nodes) - _NODES_NAMED
    return ", ".join(nodes[:_NODES_NAMED]) + (f" +{others}" if others > 0 else "") or "-"


def _silence(hub: SilentHub) -> str:
    """A list that lacks a hub must say so."""
    from harch.cli.output import age_text, clean

    counted = ", ".join(f"{count} {state}" for state, count in sorted(hub.workloads.items())) or "no work"
    known = f"{age_text(hub.age_s)} ago it had {counted}" if hub.age_s is not None else "no data about it"
    return f"{clean(hub.hub_id)} is not in this list ({clean(hub.why)}); {known}"


def _unheard(workload: Workload, *, borrowed: bool) -> str:
    """In the list of all hubs, borrowed work is reported by its runner only where its owner does not answer."""
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
