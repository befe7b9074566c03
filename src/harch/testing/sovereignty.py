"""Are the sovereignty rules right? An oracle written from the definitions of tags alone, and random worlds to ask it.

The oracle shares no code with `harch.sovereignty.compiled` or `.rules`: sets of words, and paths walked link by link.
It is slow, and it is meant to be read beside docs/reference/tags.md.
"""

from __future__ import annotations

import numpy as np

from harch.sovereignty.geography import LegalSite, Passage, Terrain
from harch.sovereignty.jurisdictions import COUNTRIES
from harch.sovereignty.tags import Classification, Tag

FRAMEWORKS = ("gdpr", "malabo-convention", "ma-law-09-08", "sn-law-2008-12", "ci-law-2013-450", "not-in-any-registry")
_LEVELS = tuple(Classification)


class Oracle:
    """The answers for one tag in one terrain."""

    def __init__(self, terrain: Terrain, tag: Tag) -> None:
        self.terrain = terrain
        self.tag = tag
        self.sites = {site.hub: site for site in terrain.sites}

    def may_process(self, hub: str) -> bool:
        return self._stands_in(hub, set(self.tag.process_in)) and self._upholds(hub) and self._encrypts(hub)

    def may_rest(self, hub: str) -> bool:
        return self._stands_in(hub, set(self.tag.rest_in)) and self._upholds(hub) and self._encrypts(hub)

    def may_move(self, source: str, target: str) -> bool:
        return target in self.reached_from(source) and (self.may_rest(target) or self.may_process(target))

    def may_see(self, source: str, viewer: str) -> bool:
        return viewer in self.reached_from(source) and self.may_look(source, viewer)

    def may_look(self, source: str, viewer: str) -> bool:
        """The part of `may_see` that is not about the way."""
        if self.tag.classification == "restricted" and viewer != source:
            return False
        return self._stands_in(viewer, set(self.tag.process_in)) and self._upholds(viewer)

    def reached_from(self, source: str) -> set[str]:
        """Every hub at the end of some path of allowed links; the hub itself is at the end of the empty path."""
        if source not in self.sites:
            return set()
        reached, edge = {source}, [source]
        while edge:
            here = edge.pop()
            for passage in self.terrain.passages:
                if here in passage.ends and self.may_take(passage):
                    for end in passage.ends:
                        if end in self.sites and end not in reached:
                            reached.add(end)
                            edge.append(end)
        return reached

    def may_take(self, passage: Passage) -> bool:
        crossed = set(passage.countries_crossed)
        if not crossed:
            return False
        for country in crossed:
            permitted = country in self.tag.transit_in or country in self.tag.process_in or country in self.tag.rest_in
            if not permitted:
                return False
        if len(crossed) > 1 and not self.tag.may_cross_borders:
            return False
        return not (self.tag.encrypt_in_transit and not passage.encrypted)

    def _stands_in(self, hub: str, countries: set[str]) -> bool:
        return hub in self.sites and self.sites[hub].country is not None and self.sites[hub].country in countries

    def _upholds(self, hub: str) -> bool:
        return set(self.tag.frameworks) <= set(self.sites[hub].frameworks)

    def _encrypts(self, hub: str) -> bool:
        if not self.tag.encrypt_at_rest:
            return True
        site = self.sites[hub]
        return site.encrypts_at_rest and bool(set(site.keys_in) & set(self.tag.key_in))


def random_terrain(rng: np.random.Generator, hub_count: int, country_count: int) -> Terrain:
    """Hubs in random countries (a few unknown), with a sparse random net of links over further countries."""
    countries = list(rng.permutation(sorted(COUNTRIES))[:country_count])
    sites = tuple(
        LegalSite(
            hub=f"hub-{number}",
            country=None if rng.random() < 0.03 else str(rng.choice(countries)),
            frameworks=_some(rng, FRAMEWORKS, 0.6),
            encrypts_at_rest=bool(rng.random() < 0.8),
            keys_in=_some(rng, countries, 0.5),
        )
        for number in range(hub_count)
    )
    passages = []
    for number, site in enumerate(sites):
        for other in sites[:number]:
            if rng.random() < 3 / hub_count:
                ends = (site.hub, other.hub)
                between = _some(rng, countries, 1 / country_count) if rng.random() < 0.3 else ()
                crossed = tuple(dict.fromkeys(c for c in (site.country, *between, other.country) if c is not None))
                known = site.country is not None and other.country is not None
                passages.append(
                    Passage(
                        ends=ends,
                        rtt_ms=float(rng.integers(1, 60)),
                        countries_crossed=crossed if known else (),
                        encrypted=bool(rng.random() < 0.8),
                    )
                )
    return Terrain(sites, tuple(passages))


def random_tag(rng: np.random.Generator, terrain: Terrain) -> Tag:
    """A tag about the countries of this terrain, sometimes one that permits nothing."""
    countries = sorted({c for p in terrain.passages for c in p.countries_crossed} | _homes(terrain))
    width = float(rng.choice((0.1, 0.4, 0.8, 1.0)))
    return Tag(
        process_in=_some(rng, countries, width),
        rest_in=_some(rng, countries, width),
        transit_in=_some(rng, countries, width),
        may_cross_borders=bool(rng.random() < 0.7),
        frameworks=_some(rng, FRAMEWORKS, 0.05 if rng.random() < 0.7 else 0.3),
        classification=_LEVELS[int(rng.integers(len(_LEVELS)))],
        encrypt_at_rest=bool(rng.random() < 0.4),
        encrypt_in_transit=bool(rng.random() < 0.4),
        key_in=_some(rng, countries, 0.7),
    )


def _homes(terrain: Terrain) -> set[str]:
    return {site.country for site in terrain.sites if site.country is not None}


def _some(rng: np.random.Generator, words: tuple[str, ...] | list[str], share: float) -> tuple[str, ...]:
    chosen = rng.random(len(words)) < share
    return tuple(str(word) for word, taken in zip(words, chosen, strict=True) if taken)
