"""`harch artifacts`: what work has left to be kept: list it, and fetch it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.listing import Listing, Sortable, list_options
from harch.cli.remote import connect, hub_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from datetime import datetime

    from harch.sdk import Client
    from harch.sdk.content import ArtifactView

_COLUMNS = (
    TableColumn("NAME"),
    TableColumn("WORKLOAD", 2),
    TableColumn("SIZE", 1, right=True),
    TableColumn("AT", 4),
    TableColumn("AGE", 3),
    TableColumn("KEPT FOR", 5),
    TableColumn("ID"),
    TableColumn("FROM", 7, wide_only=True),
    TableColumn("DIGEST", 8, wide_only=True),
)


@click.group(cls=VerbGroup)
def command() -> None:
    """List and fetch what work has left to be kept.

    `harch run --artifact NAME=…` declares it. It carries the tags of all that the work has read.
    """


@command.command("ls")
@click.argument("ref", metavar="[ID]", required=False)
@hub_option
@list_options
def ls(ref: str | None, hub: str | None, listing: Listing) -> None:
    """List artifacts, newest first: of one workload, or all."""
    from harch.base.clock import SystemClock

    with connect(hub) as client:
        found = client.workloads.artifacts(ref)
    now = SystemClock().now()
    listing.show(found, _COLUMNS, lambda one: _row(one, now), name=lambda one: one.id, none="no artifacts are kept")


def _row(one: ArtifactView, now: datetime) -> tuple[object, ...]:
    from harch.cli.output import age_text, since_text
    from harch.content.folder_scan import size_text

    age_s = None if one.created_at is None else (now - one.created_at).total_seconds()
    left_s = None if one.expires_at is None else max(0.0, (one.expires_at - now).total_seconds())
    return (
        one.name,
        one.workload_id,
        Sortable(size_text(one.size_bytes), one.size_bytes),
        ", ".join(one.hubs) or "-",
        Sortable(since_text(one.created_at, now), age_s),
        Sortable("-" if left_s is None else age_text(left_s), left_s),
        one.id,
        ", ".join(one.parents) or "-",
        one.digest,
    )


@command.command("get")
@click.argument("ref", metavar="ID|NAME")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path())
@remote_options
def get(ref: str, folder: str | None, hub: str | None, as_json: bool) -> None:
    """Fetch an artifact into a folder, by default one of its name.

    Of several with that name, the newest. With the id of a workload, all of its artifacts, each in its own folder.
    """
    from harch.cli.content.fetching import fetch_data
    from harch.cli.output import clean, emit_json

    with connect(hub) as client:
        several, refs = _wanted(client, ref)
        got = []
        for data_id, name in refs:
            there = Path(folder or ".") / name if several or folder is None else Path(folder)
            got.append(fetch_data(client, data_id, there, as_json=as_json))
            if not as_json:
                click.echo(f"{clean(name)}: {got[-1]} in {there}")
    if as_json:
        emit_json({"items": got, "total": len(got)})


def _wanted(client: Client, ref: str) -> tuple[bool, list[tuple[str, str]]]:
    """Whether a workload was meant, and (id, name) of what is to be fetched."""
    try:
        data = client.data.get(ref)
    except HarchError as error:
        if error.code != "E0906":
            raise
        try:
            artifacts = client.workloads.artifacts(ref)
        except HarchError as other:
            raise (error if other.code == "E0301" else other) from None
        if not artifacts:
            hint = "it keeps those that it declares when it has ended well: --artifact NAME=…"
            raise HarchError("E0906", f"{ref} has left no artifacts", hint=hint) from None
        return True, [(one.id, one.name) for one in artifacts]
    return False, [(data.id, data.name)]
