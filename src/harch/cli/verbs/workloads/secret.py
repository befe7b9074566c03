"""`harch secret`: store secrets that workloads can name."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harch.base.errors import HarchError
from harch.cli.listing import Listing, list_options
from harch.cli.options import file_option, renamed
from harch.cli.remote import connect, hub_option, remote_options
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

_SECRET_BYTES_MAX = 64 * 1024


@click.group(cls=VerbGroup)
def command() -> None:
    """Manage secrets for workloads.

    A workload lists them under `secrets`; each task finds them as files in the folder $HARCH_SECRETS.
    """


@command.command("set")
@click.argument("name")
@file_option("Read the value from this file instead of stdin.")
@renamed("--from-file", "--file")
@remote_options
def set_(name: str, file: str | None, hub: str | None, as_json: bool) -> None:
    """Store a secret, or replace it.

    The value comes from stdin or a file, never from the command line, where other users of the machine could read it.
    One newline at its end is dropped.
    """
    value = _value(name, file)
    with connect(hub) as client:
        client.secrets.set(name, value)
    _say(as_json, name, "stored")


@command.command("ls")
@hub_option
@list_options
def ls(hub: str | None, listing: Listing) -> None:
    """List the names of the stored secrets; their values are never shown."""
    with connect(hub) as client:
        names = client.secrets.list()
    listing.show(names, (TableColumn("NAME"),), lambda name: (name,), name=str)


@command.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@remote_options
def rm(names: tuple[str, ...], hub: str | None, as_json: bool) -> None:
    """Remove secrets; running workloads keep what they were given."""
    with connect(hub) as client:
        for name in names:
            client.secrets.remove(name)
    _say(as_json, ", ".join(names), "removed")


def _value(name: str, from_file: str | None) -> str:
    try:
        if from_file is not None:
            with Path(from_file).open("rb") as stream:
                raw = stream.read(_SECRET_BYTES_MAX + 1)
        elif sys.stdin.isatty():
            # No echo, so that it stays off the screen and out of the terminal's history.
            raw = str(click.prompt(f"value of {name}", hide_input=True)).encode()
        else:
            raw = sys.stdin.buffer.read(_SECRET_BYTES_MAX + 1)
        value = raw.decode("utf-8").removesuffix("\n")
    except OSError as error:
        raise HarchError("E0202", f"{from_file} cannot be read: {error.strerror}", hint="check the path") from error
    except UnicodeDecodeError as error:
        raise HarchError("E0202", "the value is not UTF-8 text", hint="encode it first, e.g. with base64") from error
    if not value or len(raw) > _SECRET_BYTES_MAX:
        raise HarchError(
            "E0201", "the value is empty or larger than 64 KiB", hint=f"echo VALUE | harch secret set {name}"
        )
    return value


def _say(as_json: bool, names: str, done: str) -> None:
    if as_json:
        from harch.cli.output import emit_json

        emit_json({"name": names, "status": done})
    else:
        click.echo(f"{done} {names}")
