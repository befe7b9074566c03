"""`harch data`: tag data, see what it was made from and where it may go, and who may loosen a tag, signed."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harch.base.errors import EXIT_OK, HarchError
from harch.cli.inputs import DURATION
from harch.cli.listing import Listing, list_options
from harch.cli.options import reason_option
from harch.cli.remote import connect, hub_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.verbs.sovereignty.data_files import add_files, get, remove
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.sdk.data import DataObject


F = TypeVar("F", bound=Callable[..., Any])

# Written out: importing the types would cost `--help` its speed.
_STREAMS = ("stream", "log_stream", "metric_stream", "pipeline_output")
KINDS = ("dataset", "model", "checkpoint", *_STREAMS, "code", "artifact", "image")
CLASSES = ("public", "internal", "confidential", "restricted")

_COLUMNS = (
    TableColumn("NAME"),
    TableColumn("KIND", 4),
    TableColumn("ID", 5),
    TableColumn("PROCESS IN", 1),
    TableColumn("REST IN", 2),
    TableColumn("CLASS", 6),
    TableColumn("AT", 3),
    TableColumn("MADE BY", 7),
)
_OPTIONS = (
    click.option("--process-in", multiple=True, metavar="CC", help="Country where it may be processed. Repeatable."),
    click.option("--rest-in", multiple=True, metavar="CC", help="Country where copies may be stored. Repeatable."),
    click.option("--transit-in", multiple=True, metavar="CC", help="Further country that it may cross. Repeatable."),
    click.option("--may-cross-borders", is_flag=True, help="Allow links that cross more than one country."),
    click.option(
        "--framework", multiple=True, metavar="ID", help="Legal framework that a hub must be under. Repeatable."
    ),
    click.option("--classification", type=click.Choice(CLASSES), help="Sensitivity (default: restricted)."),
    click.option("--plain-at-rest", is_flag=True, help="Do not require encryption at rest."),
    click.option("--plain-in-transit", is_flag=True, help="Do not require encryption in transit."),
    click.option(
        "--key-in", multiple=True, metavar="CC", help="Country where keys may be held (default: as --rest-in)."
    ),
)


def tag_options(command: F) -> F:
    """The options of a tag; their values go to `tag_from` as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def tag_from(
    *,
    process_in: tuple[str, ...],
    rest_in: tuple[str, ...],
    transit_in: tuple[str, ...],
    may_cross_borders: bool,
    framework: tuple[str, ...],
    classification: str | None,
    plain_at_rest: bool,
    plain_in_transit: bool,
    key_in: tuple[str, ...],
) -> dict[str, object]:
    """What was given, and nothing else: what is left out is read in the strictest way. Empty: no tag was meant."""
    given: dict[str, object] = {
        "process_in": list(process_in),
        "rest_in": list(rest_in),
        "transit_in": list(transit_in),
        "frameworks": list(framework),
        "key_in": list(key_in),
        "classification": classification,
        "may_cross_borders": may_cross_borders,
        "encrypt_at_rest": False if plain_at_rest else None,
        "encrypt_in_transit": False if plain_in_transit else None,
    }
    # `false` is worth saying only where it differs from the strict reading, which says false of crossing borders.
    written = {name: value for name, value in given.items() if value not in (None, [])}
    return written if written != {"may_cross_borders": False} else {}


# `harch data declassify` and `harch data authority`: who may loosen a tag, and how that is signed.


ED25519_KEY_BYTES = 32

key_file_option = click.option(
    "--key-file", metavar="FILE", required=True, help="File with the authority's private key; it is never sent."
)


@click.command("declassify")
@click.argument("ref", metavar="NAME")
@click.option("--authority", "authority_name", metavar="NAME", required=True, help="Authority that signs.")
@key_file_option
@reason_option("Reason, recorded in the audit chain.", required=True)
@click.option(
    "--valid", type=DURATION, default="10m", show_default=True, metavar="DURATION", help="Validity of the signature."
)
@tag_options
@remote_options
def declassify(
    ref: str,
    authority_name: str,
    key_file: str,
    reason: str,
    valid: float,
    hub: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Loosen a tag with a statement signed by an authority.

    The statement covers this object, its current tag and its new tag, and is valid once.
    """
    import msgspec

    from harch.base.clock import SystemClock
    from harch.sovereignty.declassification import Declassification, sign
    from harch.sovereignty.jurisdiction_file import jurisdictions_in_force
    from harch.sovereignty.tags import Tag, parse_tag

    new = parse_tag(tag_from(**options), jurisdictions_in_force())
    key = read_key(Path(key_file))
    with connect(hub) as client:
        data = client.data.get(ref)
        if data.tag is None:
            raise HarchError(
                "E0201", f"{data.name} has no tag yet", hint="`harch data tag` sets one, without a signature"
            )
        now = SystemClock().now()
        statement = Declassification(
            object_id=data.id,
            tag_revision=data.tag_revision,
            old=msgspec.convert(data.tag, Tag),
            new=new,
            reason=reason,
            authority=authority_name,
            issued_at=now,
            valid_until=now + timedelta(seconds=valid),
        )
        signed = msgspec.to_builtins(sign(statement, key))
        data = client.data.retag(ref, msgspec.to_builtins(new), declassification=signed)
    show_tagged(data, as_json)


@click.group("authority", cls=VerbGroup)
def authority() -> None:
    """Manage the authorities that may loosen tags at a hub."""


@authority.command("add")
@click.argument("name")
@key_file_option
@remote_options
def add_authority(name: str, key_file: str, hub: str | None, as_json: bool) -> None:
    """Register a key as an authority of a hub; creates the key if the file does not exist.

    Only the public half is sent. Keep the file where declassifications are signed, and nowhere else.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from harch.cli.output import clean, emit_json

    path = Path(key_file)
    if not path.exists():
        _write_key(path, Ed25519PrivateKey.generate().private_bytes_raw())
    public_key = Ed25519PrivateKey.from_private_bytes(read_key(path)).public_key().public_bytes_raw().hex()
    with connect(hub) as client:
        made = client.data.add_authority(name, public_key)
    if as_json:
        emit_json(made)
    else:
        click.echo(f"what {key_file} signs as {clean(made.name)} may now loosen tags; public key {made.public_key}")


@authority.command("ls")
@hub_option
@list_options
def ls_authorities(hub: str | None, listing: Listing) -> None:
    """List the authorities of a hub."""
    with connect(hub) as client:
        found = client.data.authorities()
    columns = (TableColumn("NAME"), TableColumn("PUBLIC KEY"))
    listing.show(found, columns, lambda one: (one.name, one.public_key), name=lambda one: one.name)


@authority.command("rm")
@click.argument("name")
@remote_options
def rm(name: str, hub: str | None, as_json: bool) -> None:
    """Remove an authority; the tags that it loosened stay loosened."""
    from harch.cli.output import emit_json

    with connect(hub) as client:
        client.data.remove_authority(name)
    if as_json:
        emit_json({"name": name, "removed": True})
    else:
        click.echo(f"{name} is no longer an authority")


def read_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise HarchError(
            "E0202", f"{path} cannot be read: {error.strerror}", hint="`harch data authority add` creates a key"
        ) from error
    except ValueError:
        key = b""
    if len(key) != ED25519_KEY_BYTES:
        raise HarchError("E0202", f"{path} holds no private key", hint="it must be 64 hexadecimal digits")
    return key


def _write_key(path: Path, key: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise HarchError("E0201", f"{path} cannot be written: {error.strerror}", hint="check the path") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(key.hex() + "\n")


# `harch data`: tag data, and see what it was made from and where it may go.


@click.group(cls=VerbGroup)
def command() -> None:
    """Tag data; show its lineage and where it may go.

    A tag is a hard rule on where data may be processed, stored and sent; see docs/reference/tags.md.
    """


command.add_command(declassify)
command.add_command(authority)
command.add_command(get)
command.add_command(remove)


@command.command("add")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default="dataset", help="Kind of object (default: dataset).")
@click.option(
    "--at", "hubs", multiple=True, metavar="HUB", help="Hub with a copy (default: the queried hub). Repeatable."
)
@click.option("--from", "parents", multiple=True, metavar="NAME", help="Data that it was derived from. Repeatable.")
@click.option("--size-bytes", type=int, default=0, metavar="N", help="Size in bytes.")
@click.option("--digest", default="", metavar="HEX", help="SHA-256 of its content.")
@click.option(
    "--files", type=click.Path(), metavar="DIR", help="Send this folder, or file: HarchOS holds it from then on."
)
@click.option("--keep", type=DURATION, metavar="DURATION", help="How long files are kept (default: until removed).")
@tag_options
@remote_options
def add(
    name: str,
    kind: str,
    hubs: tuple[str, ...],
    parents: tuple[str, ...],
    size_bytes: int,
    digest: str,
    files: str | None,
    keep: float | None,
    hub: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Register data with its tag. Untagged data cannot be used.

    With --files, its files are sent to the hub, where the tag must let them rest; work that reads it finds them in
    $HARCH_DATA.
    """
    from harch.cli.output import emit_json, note

    tag = tag_from(**options) or None
    if files is not None:
        if hubs or size_bytes or digest:
            hint = "the hub that receives the files knows these"
            raise HarchError("E0201", "--files excludes --at, --size-bytes and --digest", hint=hint)
        return add_files(name, files, kind=kind, tag=tag, parents=parents, keep_s=keep, hub=hub, as_json=as_json)
    if keep is not None:
        raise HarchError("E0201", "--keep is for files, and there are none", hint="name them: --files DIR")
    with connect(hub) as client:
        data = client.data.add(
            name,
            kind=kind,
            tag=tag,
            hubs=[word.lower() for word in hubs] or None,
            size_bytes=size_bytes,
            sha256=digest,
            parents=parents,
        )
    if as_json:
        emit_json(data)
        return EXIT_OK
    click.echo(data.id)
    if data.tag is None:
        note(f"{data.name} has no tag and cannot be used; `harch data tag {data.name} --process-in … --rest-in …`")
    return EXIT_OK


@command.command("ls")
@click.option("--kind", type=click.Choice(KINDS), help="Only objects of this kind.")
@hub_option
@list_options
def ls(kind: str | None, hub: str | None, listing: Listing) -> None:
    """List data, newest first; code only with `--kind code`."""
    with connect(hub) as client:
        found = [data for data in client.data.list(kind=kind) if kind is not None or data.kind != "code"]
    listing.show(found, _COLUMNS, _row, name=lambda data: data.name)


def _row(data: DataObject) -> tuple[object, ...]:
    return (
        data.name,
        data.kind,
        data.id,
        _words(data, "process_in"),
        _words(data, "rest_in"),
        _words(data, "classification"),
        ", ".join(data.hubs) or "-",
        data.made_by or "-",
    )


@command.command("tag")
@click.argument("ref", metavar="NAME")
@tag_options
@remote_options
def tag(ref: str, hub: str | None, as_json: bool, **options: Any) -> None:
    """Replace the tag of data. Only `harch data declassify` can loosen a tag.

    Work that the new tag forbids is paused at once and cancelled, and its output is deleted.
    """
    with connect(hub) as client:
        data = client.data.retag(ref, tag_from(**options))
    show_tagged(data, as_json)


@command.command("lineage")
@click.argument("ref", metavar="NAME")
@remote_options
def lineage(ref: str, hub: str | None, as_json: bool) -> None:
    """Show the lineage of data: its sources and what was derived from it."""
    from harch.cli.output import clean, emit_json, note
    from harch.cli.views.table import table

    with connect(hub) as client:
        found = client.data.lineage(ref)
    if as_json:
        emit_json(found)
        return
    rows = [("source", data) for data in reversed(found.ancestors)]
    rows += [("itself", found.subject), *(("derived", data) for data in found.descendants)]
    table(
        (
            TableColumn(""),
            TableColumn("NAME"),
            TableColumn("KIND", 3),
            TableColumn("ID"),
            TableColumn("PROCESS IN", 1),
            TableColumn("MADE BY", 2),
        ),
        [(word, data.name, data.kind, data.id, _words(data, "process_in"), data.made_by or "-") for word, data in rows],
    )
    for data_id in found.missing:
        note(f"made from {clean(data_id)}, which this hub no longer knows")
    for data_id in found.too_loose:
        note(f"{clean(data_id)} permits more than its sources")


@command.command("where")
@click.argument("ref", metavar="NAME")
@remote_options
def where(ref: str, hub: str | None, as_json: bool) -> None:
    """Show where data and its derivatives are, and what each hub may do with it, by which rule."""
    from harch.cli.output import clean, emit_json, note
    from harch.cli.views.table import table

    with connect(hub) as client:
        found = client.data.where(ref)
    if as_json:
        emit_json(found)
        return
    copies = [f"{copy.hub} ({copy.name})" if copy.is_derived else copy.hub for copy in found.copies]
    click.echo(f"{clean(found.subject.name)} is at {', '.join(map(clean, copies)) or 'no hub'}\n")
    table(
        (
            TableColumn("HUB"),
            TableColumn("COUNTRY", 1),
            TableColumn("PROCESS"),
            TableColumn("REST"),
            TableColumn("WHY NOT", 2, takes_rest=True),
        ),
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
