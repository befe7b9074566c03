"""What do the rules know of the world? Sites and passages: a fleet with its safeguards, in the words of the law.

A safeguard that nobody declared is not there: a hub encrypts nothing and a link is open until somebody says otherwise.
"""

# harch: pure

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from harch.fleet.model import Fleet, Link
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.tags import Countries


class SiteSafeguards(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator declares of one hub: frameworks upheld beyond those of its country, encryption, keys."""

    frameworks: tuple[str, ...] = ()
    encrypts_at_rest: bool = False
    keys_in: Countries = ()  # countries whose key stores it can use


class Safeguards(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What operators declare of a fleet. `links_encrypted` holds pairs of hub ids, in any order."""

    sites: dict[str, SiteSafeguards] = {}
    links_encrypted: tuple[tuple[str, str], ...] = ()


class LegalSite(Struct, frozen=True, kw_only=True):
    """A hub as the rules see it. A country that the registry does not know is None, and nothing is permitted there."""

    hub: str
    country: str | None
    frameworks: tuple[str, ...] = ()  # in force in its country, and declared
    encrypts_at_rest: bool = False
    keys_in: Countries = ()


class Passage(Struct, frozen=True, kw_only=True):
    """A link as the rules see it: every country that it crosses, both ends included.

    One that crosses a country which the registry does not know names no country at all, and nothing may take it.
    """

    ends: tuple[str, str]
    rtt_ms: float
    countries_crossed: tuple[str, ...]
    encrypted: bool = False

    @property
    def is_international(self) -> bool:
        return len(set(self.countries_crossed)) != 1


class Terrain(Struct, frozen=True, dict=True):
    """All sites and passages, in the order of the fleet."""

    sites: tuple[LegalSite, ...]
    passages: tuple[Passage, ...]

    @cached_property
    def by_hub(self) -> dict[str, LegalSite]:
        return {site.hub: site for site in self.sites}

    @cached_property
    def _passages(self) -> dict[str, tuple[Passage, ...]]:
        return {
            site.hub: tuple(passage for passage in self.passages if site.hub in passage.ends) for site in self.sites
        }

    def site(self, hub_id: str) -> LegalSite | None:
        return self.by_hub.get(hub_id)

    def passages_of(self, hub_id: str) -> tuple[Passage, ...]:
        return self._passages.get(hub_id, ())


def declared_safeguards(fleet: Fleet) -> Safeguards:
    """What the fleet file declares. A link is encrypted if both its ends encrypt what they send."""
    sending = {hub.id for hub in fleet.hubs if hub.safeguards.encrypts_in_transit}
    return Safeguards(
        sites={
            hub.id: SiteSafeguards(
                frameworks=hub.safeguards.frameworks,
                encrypts_at_rest=hub.safeguards.encrypts_at_rest,
                keys_in=hub.safeguards.keys_in,
            )
            for hub in fleet.hubs
        },
        links_encrypted=tuple(link.ends for link in fleet.links if sending.issuperset(link.ends)),
    )


def terrain_of(fleet: Fleet, jurisdictions: Jurisdictions, safeguards: Safeguards | None = None) -> Terrain:
    """The fleet as the rules see it; `safeguards` replaces what its file declares."""
    declared = declared_safeguards(fleet) if safeguards is None else safeguards
    encrypted = {frozenset(pair) for pair in declared.links_encrypted}
    return Terrain(
        tuple(
            site_of(hub.id, hub.country, jurisdictions, declared.sites.get(hub.id, SiteSafeguards()))
            for hub in fleet.hubs
        ),
        tuple(_passage(link, jurisdictions, encrypted) for link in fleet.links),
    )


def site_of(hub_id: str, country: str, jurisdictions: Jurisdictions, declared: SiteSafeguards) -> LegalSite:
    """One hub as the rules see it; the agent uses it for its own."""
    known = country if country in jurisdictions.countries else None
    in_force = jurisdictions.frameworks_in(known) if known is not None else ()
    upheld = {*in_force, *declared.frameworks} & set(jurisdictions.frameworks)
    return LegalSite(
        hub=hub_id,
        country=known,
        frameworks=tuple(sorted(upheld)),
        encrypts_at_rest=declared.encrypts_at_rest,
        keys_in=declared.keys_in,
    )


def _passage(link: Link, jurisdictions: Jurisdictions, encrypted: set[frozenset[str]]) -> Passage:
    known = all(code in jurisdictions.countries for code in link.countries_crossed)
    return Passage(
        ends=link.ends,
        rtt_ms=link.rtt_ms,
        countries_crossed=link.countries_crossed if known else (),
        encrypted=frozenset(link.ends) in encrypted,
    )
