"""`harch hub cordon|drain|retire|open`: whether a hub takes work, and how it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from harch.cli.remote import connect, json_option

if TYPE_CHECKING:
    from harch.sdk import Client, HubClosure

F = TypeVar("F", bound=Callable[..., None])

_WAIT_EVERY_S = 0.5
_SHOWN_EVERY_S = 5.0


def _options(function: F) -> F:
    why = click.option("--why", default="", metavar="TEXT", help="The reason, shown wherever the change is.")
    return click.argument("hub", metavar="HUB")(why(json_option(function)))


@click.command("cordon")
@_options
def cordon(hub: str, why: str, as_json: bool) -> None:
    """Start nothing new at a hub, neither its own work nor that of others; what runs goes on."""
    with connect(hub) as client:
        _say(as_json, client.hubs.cordon(hub.lower(), why=why), "is cordoned")


@click.command("drain")
@click.option("--wait", is_flag=True, help="Return only when nothing is left there.")
@_options
def drain(hub: str, why: str, wait: bool, as_json: bool) -> None:
    """Cordon a hub and have its work go to other hubs.

    What runs is stopped with its grace and starts elsewhere, where its rules allow that. `harch hubs` shows how much
    is left.
    """
    with connect(hub) as client:
        closure = client.hubs.drain(hub.lower(), why=why)
        if wait:
            closure = _wait(client, closure, quiet=as_json)
    _say(as_json, closure, "is drained" if not closure.remaining_total else "is being drained")


@click.command("retire")
@_options
def retire(hub: str, why: str, as_json: bool) -> None:
    """Take a hub out of the federation for good; only once nothing is left there.

    Its peers no longer wait for it. It can come back only with a new invitation (`harch hub invite --again`).
    """
    with connect(hub) as client:
        _say(as_json, client.hubs.retire(hub.lower(), why=why), "has left the federation")


@click.command("open")
@_options
def open_(hub: str, why: str, as_json: bool) -> None:
    """Let a cordoned or drained hub take work again."""
    with connect(hub) as client:
        _say(as_json, client.hubs.open(hub.lower(), why=why), "takes work")


def _wait(client: Client, closure: HubClosure, *, quiet: bool) -> HubClosure:
    from harch.cli.output import note

    told_s = -_SHOWN_EVERY_S
    waited_s = 0.0
    while closure.remaining_total and closure.state != "open":
        if not quiet and waited_s - told_s >= _SHOWN_EVERY_S:
            note(_left(closure))
            told_s = waited_s
        time.sleep(_WAIT_EVERY_S)
        waited_s += _WAIT_EVERY_S
        closure = client.hubs.closure(closure.hub_id)
    return closure


def _left(closure: HubClosure) -> str:
    left = closure.remaining
    counts = ((left.running, "running"), (left.waiting, "waiting"), (left.lent, "at other hubs"))
    parts = [f"{count} {word}" for count, word in (*counts, (left.guests, "of other hubs")) if count]
    return f"work left: {', '.join(parts)}" if parts else "no work left"


def _say(as_json: bool, closure: HubClosure, words: str) -> None:
    from harch.cli.output import emit_json

    if as_json:
        emit_json(closure)
    else:
        click.echo(f"{closure.hub_id} {words}; {_left(closure)}")
