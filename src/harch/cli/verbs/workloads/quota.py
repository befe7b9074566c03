"""`harch quota`: what tenants hold at a hub, and what they may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.remote import connect, hub_option
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.sdk import TenantQuota

_COLUMNS = (
    TableColumn("TENANT"),
    TableColumn("CLASS", 1),
    TableColumn("GPUS", 2),
    TableColumn("TASKS", 4),
    TableColumn("PENDING", 3),
    TableColumn("WEIGHT", 5),
)


@click.command()
@hub_option
@list_options
def command(hub: str | None, listing: Listing) -> None:
    """Show what tenants hold, and what they may hold.

    At one hub: quotas stand in its scheduling file. Operators see every tenant that has work or a quota there, others
    their own. A class has limits beside those of its tenant only where the file names them.
    """
    with connect(hub) as client:
        quotas = client.quotas()
    listing.show(
        quotas,
        _COLUMNS,
        _row,
        name=lambda quota: f"{quota.tenant}/{quota.scheduling_class}".rstrip("/"),
        none="no tenant has work here, and none has a quota",
    )


def _row(quota: TenantQuota) -> tuple[object, ...]:
    return (
        quota.tenant,
        quota.scheduling_class or "all",
        _used(quota.gpus_held, quota.gpus_held_max),
        _used(quota.tasks_held, quota.tasks_held_max),
        _used(quota.workloads_pending, quota.workloads_pending_max),
        Sortable(f"{quota.weight:g}", quota.weight),
    )


def _used(count: float, most: float | None) -> Sortable:
    return Sortable(f"{count:g}" if most is None else f"{count:g} of {most:g}", count)
