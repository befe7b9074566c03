"""`harch content`: what the content store of a hub holds and for whom; collect what nobody needs; verify the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_ERROR, EXIT_OK
from harch.cli.inputs import DURATION
from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.remote import connect, hub_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.sdk.content import TenantUsage, TransferView

_NAMES_LISTED = 20
_TENANTS = (
    TableColumn("TENANT"),
    TableColumn("TREES", 2, right=True),
    TableColumn("CHUNKS", 3, right=True),
    TableColumn("RAW", 4, right=True),
    TableColumn("STORED", right=True),
    TableColumn("LIMIT", 1, right=True),
)


@click.group(cls=VerbGroup)
def command() -> None:
    """Show, collect and check the content store of a hub.

    Code, data, images and artifacts are kept there as chunks, encrypted for each tenant. To collect and to check needs
    the role `operator`.
    """


@command.command("status")
@remote_options
def status(hub: str | None, as_json: bool) -> None:
    """Show how much the store of a hub holds, and what it is fetching from other hubs."""
    from harch.cli.output import clean, emit_json
    from harch.content.folder_scan import size_text

    with connect(hub) as client:
        found = client.content.status()
    if as_json:
        emit_json(found)
        return
    click.echo(f"{clean(found.hub)} keeps {size_text(found.bytes_stored)} in {clean(found.location)}")
    click.echo(f"  garbage    {size_text(found.bytes_garbage)}")
    if found.bytes_free is not None:
        click.echo(f"  disk free  {size_text(found.bytes_free)}")
    click.echo(f"  tenants    {len(found.tenants)}")
    for transfer in found.transfers:
        click.echo(f"  transfer   {clean(transfer_text(transfer))}")


def transfer_text(transfer: TransferView) -> str:
    from harch.content.folder_scan import size_text

    total = f" of {size_text(transfer.bytes_total)}" if transfer.bytes_total else ""
    source = f" from {transfer.source_hub}" if transfer.source_hub else ""
    return transfer.error or f"{transfer.digest[:12]}{source}: {size_text(transfer.bytes_done)}{total}"


@command.command("tenants")
@hub_option
@list_options
def tenants(hub: str | None, listing: Listing) -> None:
    """List how much each tenant keeps at a hub, and how much it may."""
    with connect(hub) as client:
        found = client.content.status().tenants
    listing.show(found, _TENANTS, _tenant_row, name=lambda one: one.tenant, none="no tenant keeps anything here")


def _tenant_row(one: TenantUsage) -> tuple[object, ...]:
    from harch.content.folder_scan import size_text

    return (
        one.tenant,
        one.trees,
        one.chunks,
        Sortable(size_text(one.bytes_raw), one.bytes_raw),
        Sortable(size_text(one.bytes_stored), one.bytes_stored),
        Sortable("-" if one.bytes_max is None else size_text(one.bytes_max), one.bytes_max),
    )


@command.command("collect")
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    metavar="DURATION",
    help="Spare chunks younger than this, which an upload may still need (default: the hub's setting).",
)
@remote_options
def collect(grace_s: float | None, hub: str | None, as_json: bool) -> None:
    """Remove chunks that nothing holds any more.

    Hubs do so by themselves from time to time; what is held is never removed.
    """
    from harch.cli.output import emit_json
    from harch.cli.views.counted import counted
    from harch.cli.views.progress import progress_line
    from harch.content.folder_scan import size_text

    with connect(hub) as client, progress_line("collecting", as_json):
        found = client.content.collect(grace_s=grace_s)
    if as_json:
        emit_json(found)
    else:
        click.echo(f"removed {counted(found.chunks, 'chunk')}, {size_text(found.bytes)}")


@command.command("check")
@remote_options
def check(hub: str | None, as_json: bool) -> int:
    """Read and verify every chunk of a hub.

    Takes as long as reading the whole store. Exits with 1 if chunks are damaged or missing.
    """
    from harch.cli.output import emit_json, note
    from harch.cli.views.counted import counted
    from harch.cli.views.progress import progress_line
    from harch.content.folder_scan import size_text

    with connect(hub) as client, progress_line("checking", as_json):
        found = client.content.check()
    wrong = len(found.damaged) + len(found.missing)
    if as_json:
        emit_json(found)
        return EXIT_ERROR if wrong else EXIT_OK
    verdict = "all are as they should be" if not wrong else f"{counted(wrong, 'chunk')} of them cannot be read"
    click.echo(f"{counted(found.chunks, 'chunk')}, {size_text(found.bytes)}: {verdict}")
    lines = [f"damaged {name}" for name in found.damaged] + [f"missing {name}" for name in found.missing]
    for line in lines[:_NAMES_LISTED]:
        click.echo(f"  {line}")
    if len(lines) > _NAMES_LISTED:
        note(f"and {len(lines) - _NAMES_LISTED} more; --json has all")
    return EXIT_ERROR if wrong else EXIT_OK
