"""`harch data`: tag data, and see what it was made from and where it may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harch.cli.data_authority import authority, declassify
from harch.cli.remote import connect, remote_options
from harch.cli.tag_options import KINDS, tag_from, tag_options

if TYPE_CHECKING:
    from harch.sdk.data import DataObject


@click.group()
def command() -> None:
    """Tag data, and see what it was made from and where it may go.

    A tag is a hard rule about where data may be processed, rest and travel; docs/reference/tags.md tells all of it.
    """


command.add_command(declassify)
command.add_command(authority)


@command.command("add")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default="dataset", help="What it is; dataset if absent.")
@click.option(
    "--at", "hubs", multiple=True, metavar="HUB", help="Where a copy is; the hub asked if absent. Repeatable."
)
@click.option("--from", "parents", multiple=True, metavar="NAME", help="Data that it was made from. Repeatable.")
@click.option("--size-bytes", type=int, default=0, metavar="N", help="How large it is.")
@click.option("--digest", default="", metavar="HEX", help="Its SHA-256, to know it again.")
@tag_options
@remote_options
def add(
    name: str,
    kind: str,
    hubs: tuple[str, ...],
    parents: tuple[str, ...],
    size_bytes: int,
    digest: str,
    hub: str | None,
    as_json: bool,
    **tag: Any,
) -> None:
    """Register data with its tag. Without a tag nobody may use it."""
    from harch.cli.output import emit_json, note

    with connect(hub) as client:
        data = client.data.add(
            name,
            kind=kind,
            tag=tag_from(**tag) or None,
            hubs=[word.lower() for word in hubs] or None,
            size_bytes=size_bytes,
            sha256=digest,
            parents=parents,
        )
    if as_json:
        emit_json(data)
        return
    click.echo(data.id)
    if data.tag is None:
        note(f"{data.name} has no tag, so nobody may use it; `harch data tag {data.name} --process-in … --rest-in …`")


@command.command("ls")
@click.option("--kind", type=click.Choice(KINDS), help="Only data of this kind.")
@remote_options
def ls(kind: str | None, hub: str | None, as_json: bool) -> None:
    """List data, newest first."""
    from harch.cli.output import emit_json, table

    with connect(hub) as client:
        found = client.data.list(kind=kind)
    if as_json:
        emit_json({"items": found, "total": len(found)})
        return
    table(
        ("NAME", "KIND", "ID", "PROCESS IN", "REST IN", "CLASS", "AT", "MADE BY"),
        [
            (
                data.name,
                data.kind,
                data.id,
                _words(data, "process_in"),
                _words(data, "rest_in"),
                _words(data, "classification"),
                ", ".join(data.hubs) or "-",
                data.made_by or "-",
            )
            for data in found
        ],
    )


@command.command("tag")
@click.argument("ref", metavar="NAME")
@tag_options
@remote_options
def tag(ref: str, hub: str | None, as_json: bool, **options: Any) -> None:
    """Replace the tag of data. Only `harch data declassify` makes it permit more.

    Work that the new tag forbids is paused at once, cancelled, and what it wrote is deleted.
    """
    with connect(hub) as client:
        data = client.data.retag(ref, tag_from(**options))
    show_tagged(data, as_json)


@command.command("lineage")
@click.argument("ref", metavar="NAME")
@remote_options
def lineage(ref: str, hub: str | None, as_json: bool) -> None:
    """Show what data was made from, and what came of it."""
    from harch.cli.output import clean, emit_json, note, table

    with connect(hub) as client:
        found = client.data.lineage(ref)
    if as_json:
        emit_json(found)
        return
    rows = [("made from", data) for data in reversed(found.ancestors)]
    rows += [("itself", found.subject), *(("came of it", data) for data in found.descendants)]
    table(
        ("", "NAME", "KIND", "ID", "PROCESS IN", "MADE BY"),
        [(word, data.name, data.kind, data.id, _words(data, "process_in"), data.made_by or "-") for word, data in rows],
    )
    for data_id in found.missing:
        note(f"made from {clean(data_id)}, which this hub no longer knows")
    for data_id in found.too_loose:
        note(f"{clean(data_id)} permits more than what it was made from")


@command.command("where")
@click.argument("ref", metavar="NAME")
@remote_options
def where(ref: str, hub: str | None, as_json: bool) -> None:
    """Show where data and what came of it is, and what each hub may do with it, by which rule."""
    from harch.cli.output import clean, emit_json, note, table

    with connect(hub) as client:
        found = client.data.where(ref)
    if as_json:
        emit_json(found)
        return
    copies = [f"{copy.hub} ({copy.name})" if copy.is_derived else copy.hub for copy in found.copies]
    click.echo(f"{clean(found.subject.name)} is at {', '.join(map(clean, copies)) or 'no hub'}\n")
    table(
        ("HUB", "COUNTRY", "PROCESS", "REST", "WHY NOT"),
        [
            (
                rules.hub,
                rules.country,
                "yes" if rules.may_process else "no",
                "yes" if rules.may_rest else "no",
                "; ".join(
                    dict.fromkeys(
                        f"{one.rule}: {one.detail}" for one in (*rules.process, *rules.rest) if not one.passed
                    )
                ),
            )
            for rules in found.hubs
        ],
    )
    for workload_id in found.readers:
        note(f"read by {clean(workload_id)}")


def show_tagged(data: DataObject, as_json: bool) -> None:
    from harch.cli.output import clean, emit_json

    if as_json:
        emit_json(data)
    else:
        click.echo(
            f"{clean(data.name)}: revision {data.tag_revision} of its tag; processed in {_words(data, 'process_in')}, "
            f"rests in {_words(data, 'rest_in')}, {_words(data, 'classification')}"
        )


def _words(data: DataObject, name: str) -> str:
    if data.tag is None:
        return "no tag"
    value = data.tag.get(name)
    return ", ".join(map(str, value)) or "nowhere" if isinstance(value, list) else str(value)
