"""`harch data add --files`, `data get` and `data rm`: data whose files HarchOS holds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import EXIT_OK, HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.sdk.data import DataObject
    from harch.wire.hubs import Health

_S_PER_DAY = 86_400
# Countries and frameworks that the hub may know by a file of its own: it decides.
_KNOWN_TO_THE_HUB = frozenset({"E0901", "E0905"})


def add_files(
    name: str,
    files: str,
    *,
    kind: str,
    tag: Mapping[str, object] | None,
    parents: Sequence[str],
    keep_s: float | None,
    hub: str | None,
    as_json: bool,
) -> int:
    """Sends them, then registers content and tag in one step. Not a byte is sent to where it may not rest."""
    from harch.cli.content.sending import PackedFolder, scan_all, send
    from harch.cli.output import clean, emit_json, note

    if tag is None:
        hint = "say where it may be processed and stored: --process-in CC --rest-in CC"
        raise HarchError("E0201", "data with files needs a tag before they are sent", hint=hint)
    if not os.path.exists(files):
        raise HarchError("E0202", f"{files} does not exist", hint="check the path")
    found = scan_all(Path(files))
    try:
        with connect(hub) as client:
            check_may_rest(name, tag, client.health())

            def register(packed: PackedFolder) -> DataObject:
                return client.data.add(
                    name,
                    kind=kind,
                    tag=tag,
                    size_bytes=packed.size_bytes,
                    parents=parents,
                    content=packed.digest,
                    keep_days=None if keep_s is None else keep_s / _S_PER_DAY,
                )

            data, sent = send(client, found, register, what=clean(name), as_json=as_json)
    except KeyboardInterrupt:
        note("\nstopped: nothing was registered. Run it again, and only what has not been sent is sent")
        return INTERRUPTED_EXIT_CODE
    if as_json:
        emit_json(data)
    else:
        click.echo(data.id)
        note(f"{clean(data.name)}: {sent}")
    return EXIT_OK


def check_may_rest(name: str, raw_tag: Mapping[str, object], hub: Health) -> None:
    """Raises E0904 and E0201 for a tag that is none, E0907 for one that does not let it rest at this hub.

    The hub checks that, too, but learns of the tag when it has the bytes.
    """
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
    from harch.sovereignty.tags import parse_tag

    try:
        tag = parse_tag(dict(raw_tag), jurisdictions_in_force())
    except HarchError as error:
        if error.code in _KNOWN_TO_THE_HUB:
            return
        raise
    if hub.country and hub.country not in tag.rest_in:
        allowed = ", ".join(tag.rest_in)
        raise HarchError(
            "E0907",
            f"{name} may rest in {allowed} only, and hub {hub.hub_id} is in {hub.country}",
            hint="`harch hubs` shows where the others are; --hub NAME sends it there",
        )


@click.command("get")
@click.argument("ref", metavar="NAME")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path())
@remote_options
def get(ref: str, folder: str | None, hub: str | None, as_json: bool) -> int:
    """Fetch the files of data into a folder, by default one of its name.

    A hub that does not have them fetches them from one that does, where their tag lets it.
    """
    from harch.cli.content.fetching import fetch_data
    from harch.cli.output import clean, emit_json, note

    try:
        with connect(hub) as client:
            data = client.data.get(ref)
            there = Path(data.name if folder is None else folder)
            got = fetch_data(client, data.id, there, as_json=as_json)
    except KeyboardInterrupt:
        note("\nstopped; run it again to go on")
        return INTERRUPTED_EXIT_CODE
    if as_json:
        emit_json(got)
    else:
        click.echo(f"{clean(data.name)}: {got} in {there}")
    return EXIT_OK


@click.command("rm")
@click.argument("refs", metavar="NAME...", nargs=-1, required=True)
@remote_options
def remove(refs: tuple[str, ...], hub: str | None, as_json: bool) -> None:
    """Remove data from the catalog, and the files that HarchOS holds of it.

    Refused while work reads it. What was derived from it stays.
    """
    from harch.cli.output import emit_json

    with connect(hub) as client:
        for ref in refs:
            client.data.remove(ref)
            if not as_json:
                click.echo(f"removed {ref}")
    if as_json:
        emit_json({"items": list(refs), "removed": True})
