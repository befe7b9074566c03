"""`harch data declassify` and `harch data authority`: who may loosen a tag, and how that is signed."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from harch.base.errors import HarchError
from harch.cli.quantity import DURATION
from harch.cli.remote import connect, remote_options
from harch.cli.tag_options import tag_from, tag_options

ED25519_KEY_BYTES = 32

key_file_option = click.option(
    "--key-file", metavar="FILE", required=True, help="File with the authority's private key; it stays here."
)


@click.command("declassify")
@click.argument("ref", metavar="NAME")
@click.option("--authority", "authority_name", metavar="NAME", required=True, help="In whose name it is signed.")
@key_file_option
@click.option("--reason", metavar="TEXT", required=True, help="Why; it goes into the audit chain.")
@click.option("--valid", type=DURATION, default="10m", metavar="TIME", help="How long the signature holds.")
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
    """Loosen a tag: sign a statement with an authority's key, and send it.

    The statement is about this object, its present tag and its new tag, and holds once.
    """
    import msgspec

    from harch.base.clock import SystemClock
    from harch.cli.data import show_tagged
    from harch.sovereignty.declassification import Declassification, sign
    from harch.sovereignty.in_force import jurisdictions_in_force
    from harch.sovereignty.tag_input import parse_tag
    from harch.sovereignty.tags import Tag

    new = parse_tag(tag_from(**options), jurisdictions_in_force())
    key = read_key(Path(key_file))
    with connect(hub) as client:
        data = client.data.get(ref)
        if data.tag is None:
            raise HarchError("E0201", f"{data.name} has no tag yet", hint="`harch data tag` gives it one; that is free")
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


@click.group("authority")
def authority() -> None:
    """Say whose signature may loosen tags at a hub."""


@authority.command("add")
@click.argument("name")
@key_file_option
@remote_options
def add(name: str, key_file: str, hub: str | None, as_json: bool) -> None:
    """Make a key an authority of a hub; the key is made first if the file is not there.

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
        click.echo(
            f"what {key_file} signs as {clean(made.name)} loosens tags from now on; public key {made.public_key}"
        )


@authority.command("ls")
@remote_options
def ls(hub: str | None, as_json: bool) -> None:
    """List the authorities of a hub."""
    from harch.cli.output import emit_json, table

    with connect(hub) as client:
        found = client.data.authorities()
    if as_json:
        emit_json({"items": found, "total": len(found)})
    else:
        table(("NAME", "PUBLIC KEY"), [(one.name, one.public_key) for one in found])


@authority.command("rm")
@click.argument("name")
@remote_options
def rm(name: str, hub: str | None, as_json: bool) -> None:
    """Take away an authority; what it has loosened stays so."""
    from harch.cli.output import emit_json

    with connect(hub) as client:
        client.data.remove_authority(name)
    if as_json:
        emit_json({"name": name, "removed": True})
    else:
        click.echo(f"{name} is no authority any more")


def read_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise HarchError(
            "E0202", f"{path} cannot be read: {error.strerror}", hint="`harch data authority add` makes a key"
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
