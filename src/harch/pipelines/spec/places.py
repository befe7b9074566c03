"""In which country does a sink or source stand? Where the operator says that its hosts are; the file may only agree."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from harch.base.hosts import NamedHost, address_of
from harch.base.rejection import Rejection
from harch.sovereignty.places import HOME, Places

DECLARE = "docs/reference/tags.md#places"


class PipelineHosts(Struct, frozen=True, kw_only=True):
    """Every host that a pipeline would connect to, by the name of its sink or source; those that only listen or read
    files are not in here."""

    sinks: Mapping[str, tuple[NamedHost, ...]]
    sources: Mapping[str, tuple[NamedHost, ...]]


def place_of(
    subject: str, hosts: tuple[NamedHost, ...], said: str, places: Places, home: str | None
) -> str | tuple[Rejection, ...]:
    """The country of all hosts, `HOME` for the hub's own machine, or why it cannot be told. `said`: the country that
    the file claims, if it does; `home`: that of the hub."""
    refused: list[Rejection] = []
    found: dict[str, None] = {}
    for one in hosts:
        shown = "its address" if one.hidden else f"`{one.host}`"
        country = None if one.problem else places.of_host(one.host)
        if one.problem:
            refused.append(Rejection(subject, "address", f"`{one.field}` {one.problem}", "mend the address"))
        elif country is None:
            detail = f"`{one.field}`: no operator of the hub has declared where {shown} stands"
            refused.append(Rejection(subject, "place", detail, _declare(one, said or home)))
        else:
            found[country] = None
    if refused:
        return tuple(refused)
    if len(found) > 1:
        detail = f"its addresses are in {', '.join(_shown(one) for one in found)}"
        return (Rejection(subject, "place", detail, "make one of it for each country"),)
    country = next(iter(found), HOME)
    if said and said != (country or home):
        detail = f"the file says {said}, and its address is {_shown(country)}"
        return (Rejection(subject, "country", detail, "leave `country` out, or correct the address"),)
    return country


def _declare(one: NamedHost, country: str | None) -> str:
    entry = f'[places.NAME] country = "{country or "MA"}"'
    if one.hidden:
        return f"an operator adds it to jurisdictions.toml: {entry} ({DECLARE})"
    if (address := address_of(one.host)) is not None:
        return f'an operator adds it to jurisdictions.toml: {entry}, networks = ["{address}/{address.max_prefixlen}"]'
    return f'an operator adds it to jurisdictions.toml: {entry}, names = ["{one.host}"], networks = [its addresses]'


def _shown(country: str) -> str:
    return f"in {country}" if country else "the hub's own machine"
