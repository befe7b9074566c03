"""`harch cp`: copy files from the working folder of a workload, or into it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError
from harch.cli.failure import INTERRUPTED_EXIT_CODE
from harch.cli.remote import connect, remote_options

if TYPE_CHECKING:
    from harch.cli.content.copying import WorkPath
    from harch.sdk import Client


@click.command()
@click.argument("source", metavar="ID:FILE|LOCAL", type=click.Path())
@click.argument("target", metavar="LOCAL|ID:FILE", type=click.Path())
@click.option(
    "--rank", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Rank of the task in a gang."
)
@remote_options
def command(source: str, target: str, rank: int, hub: str | None, as_json: bool) -> int:
    """Copy files from the working folder of a workload, or into it.

    `harch cp ID:out/model.pt .` copies a file here, `harch cp ID: results` all of its folder; also after it has ended.
    `harch cp new.yaml ID:conf/` copies into the folder `conf` of a running one. An existing folder here is copied into.
    """
    from harch.cli.content.copying import direction
    from harch.cli.output import note

    theirs, ours = direction(source, target)
    try:
        with connect(hub) as client:
            if theirs is not None:
                _fetch(client, theirs, target, rank, as_json=as_json)
            elif ours is not None:
                _place(client, source, ours, rank, as_json=as_json)
    except KeyboardInterrupt:
        note("\nstopped; run it again to go on")
        return INTERRUPTED_EXIT_CODE
    return 0


def _fetch(client: Client, source: WorkPath, target: str, rank: int, *, as_json: bool) -> None:
    from msgspec.structs import replace

    from harch.cli.content.copying import LocalPlace, is_one_file, landing
    from harch.cli.content.fetching import entries_of, fetch, wait_for_tree
    from harch.cli.output import clean, emit_json
    from harch.cli.views.progress import progress_line

    with progress_line(f"packing {clean(source.ref)}:{clean(source.path)}", as_json):
        workload = client.workloads.get(source.ref)
        snapshot = client.workloads.files(workload.id, source.path, rank=rank)
    view = wait_for_tree(client, snapshot.ref, as_json=as_json)
    entries = entries_of(client, view)
    is_file = is_one_file(entries, source)
    folder, name = landing(
        source,
        is_file=is_file,
        name=os.path.basename(source.path) if source.path != "." else workload.name,
        target=target,
        place=LocalPlace.of(exists=os.path.lexists(target), is_folder=os.path.isdir(target)),
    )
    if is_file:
        if not os.path.isdir(folder):
            raise HarchError("E0201", f"{folder} is not a folder", hint=f"create it first: mkdir -p {folder}")
        entries = [replace(entries[0], path=name)]
    got = fetch(client, view, entries, Path(folder), as_json=as_json)
    if as_json:
        emit_json(got)
    else:
        click.echo(f"copied {got} to {os.path.join(folder, name)}")


def _place(client: Client, source: str, target: WorkPath, rank: int, *, as_json: bool) -> None:
    from harch.cli.content.copying import placing
    from harch.cli.content.sending import scan_all, send
    from harch.cli.output import clean, emit_json
    from harch.content.packing import PackedFolder

    if not os.path.exists(source):
        raise HarchError("E0202", f"{source} does not exist", hint="check the path")
    is_file = os.path.isfile(source)
    folder, name = placing(
        target,
        is_file=is_file,
        name=os.path.basename(os.path.abspath(source)),
        contents=source.endswith("/.") or source == ".",
    )
    found = scan_all(Path(source))

    def place(packed: PackedFolder) -> None:
        client.workloads.place_files(workload.id, folder, packed.digest, rank=rank)

    workload = client.workloads.get(target.ref)
    _, sent = send(client, found, place, what=clean(source), as_json=as_json, name=name)
    if as_json:
        emit_json(sent)
    else:
        click.echo(f"copied {sent} to {clean(workload.name)}:{clean(folder)}")
