"""`harch context` and `harch login`: which federations this user knows, which one is used, and the key to it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from harch.base.errors import HarchError
from harch.cli.contexts import remember
from harch.cli.listing import Listing, list_options
from harch.cli.remote import json_option
from harch.cli.verb_group import VerbGroup
from harch.cli.views.table import TableColumn

if TYPE_CHECKING:
    from harch.sdk.contexts import HubContext

_KEY_BYTES_MAX = 4096
_COLUMNS = (
    TableColumn("CONTEXT"),
    TableColumn("HUBS", 1),
    TableColumn("FIRST HUB", 2),
    TableColumn("KEY FILE", 3),
)


@click.group(cls=VerbGroup)
def command() -> None:
    """List and choose the federations that this user knows.

    A context has the addresses of a federation's hubs and the file of a key. `harch up` and `harch login` write one.
    HARCH_CONTEXT chooses one for a single command; HARCH_URL or a state folder in the current folder comes first.
    """


@command.command("ls")
@list_options
def ls(listing: Listing) -> None:
    """List contexts; `*` marks the current one."""
    from harch.cli.output import note
    from harch.sdk.contexts import contexts_file, read_contexts

    known = read_contexts(contexts_file())

    def row(one: HubContext) -> tuple[object, ...]:
        name = f"{one.name} *" if one.name == known.current else one.name
        there = Path(one.key_file).expanduser().exists()
        return name, len(one.hubs), one.hubs[0], one.key_file if there else f"{one.key_file} (missing)"

    listing.show(
        [known.by_name[name] for name in sorted(known.by_name)],
        _COLUMNS,
        row,
        name=lambda one: one.name,
        document=lambda items: {"items": items, "total": len(items), "current": known.current},
        none="no contexts; `harch up` and `harch login URL` add one",
    )
    if listing.is_table and known.current:
        note("* the current context")


@command.command("use")
@click.argument("name")
@json_option
def use(name: str, as_json: bool) -> None:
    """Make a context the current one."""
    from harch.sdk.contexts import changing_contexts, contexts_file

    with changing_contexts(contexts_file()) as known:
        known[0] = known[0].using(name)
    _say(as_json, name, "in use")


@command.command("add")
@click.argument("name")
@click.option("--hub", "hubs", metavar="URL", multiple=True, required=True, help="Address of a hub. Repeatable.")
@click.option("--key-file", metavar="FILE", required=True, help="File that holds the key.")
@json_option
def add(name: str, hubs: tuple[str, ...], key_file: str, as_json: bool) -> None:
    """Add a context, or replace one.

    The first hub is asked first; another one where it does not answer.
    """
    path = Path(key_file).expanduser().absolute()
    if not path.is_file():
        raise HarchError("E0202", f"{path} is not a file", hint="`harch login URL` asks for a key and stores it")
    remember(name, hubs, path)
    _say(as_json, name, "added")


@command.command("rm")
@click.argument("name")
@json_option
def rm(name: str, as_json: bool) -> None:
    """Remove a context. Its key file stays, unless `harch login` made it."""
    from harch.sdk.contexts import changing_contexts, contexts_file

    with changing_contexts(contexts_file()) as known:
        key_file = Path(known[0].named(name).key_file)
        known[0] = known[0].without(name)
    if key_file == _stored_key(name):
        key_file.unlink(missing_ok=True)
    _say(as_json, name, "removed")


@click.command()
@click.argument("url")
@click.option("--name", metavar="NAME", help="Name of the context (default: the host's name).")
@click.option("--key-file", metavar="FILE", help="Read the key from this file instead of a prompt or stdin.")
@json_option
def login_command(url: str, name: str | None, key_file: str | None, as_json: bool) -> None:
    """Sign in to a federation, to use it from any folder.

    URL is the address of any of its hubs. The key is prompted for, or read from stdin; it is checked, and stored in
    a file that only you can read.
    """
    from harch.sdk import Client
    from harch.sdk.contexts import changing_contexts, checked_context, contexts_file

    key = _read_key(key_file)
    with Client(url, key) as client:
        identity = client.me()
        own = client.settings.url
        hubs = (own, *(hub.endpoint for hub in client.hubs.list() if hub.endpoint and hub.endpoint != own))
    known_as = name or (urlsplit(own).hostname or "hub").replace(":", "-")
    path = _stored_key(known_as)
    context = checked_context(known_as, hubs, str(path))  # before anything is written
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)  # also if it was there, and open to others
        file.write(f"{key}\n")
    with changing_contexts(contexts_file()) as known:
        known[0] = known[0].with_context(context).using(known_as)
    if as_json:
        _say(True, known_as, "in use")
    else:
        click.echo(f"signed in to {known_as} ({len(hubs)} hubs) as {identity.name}, {identity.role}; it is in use now")


def _stored_key(name: str) -> Path:
    from harch.sdk.contexts import contexts_file

    return contexts_file().parent / "keys" / f"{name}.key"


def _read_key(key_file: str | None) -> str:
    try:
        if key_file is not None:
            with Path(key_file).expanduser().open(encoding="utf-8") as stream:
                key = stream.read(_KEY_BYTES_MAX)
        elif sys.stdin.isatty():
            key = str(click.prompt("key", hide_input=True))
        else:
            key = sys.stdin.read(_KEY_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise HarchError("E0202", f"{key_file or 'stdin'} cannot be read: {error}", hint="check the path") from error
    if not key.strip():
        raise HarchError("E0101", "no key was given", hint="ask an operator for one: `POST /v1/auth/keys`")
    return key.strip()


def _say(as_json: bool, name: str, done: str) -> None:
    from harch.cli.output import emit_json

    if as_json:
        emit_json({"context": name, "status": done})
    else:
        click.echo(f"context {name} is {done}" if done == "in use" else f"{done} context {name}")
