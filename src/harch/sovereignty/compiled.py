"""May it, right now, millions of times? The rules compiled to masks of hubs: one shift and one bit per decision.

A tag is compiled once per terrain: which hubs may process, keep and show it, and which hubs it can reach from each hub.
Hub masks are plain integers, so neither the number of hubs nor that of countries is limited; `batch` packs them into
64-bit words for arrays. What is not known (a hub, a tag) has no bit, and no bit means no.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from harch.sovereignty.geography import Terrain
from harch.sovereignty.jurisdictions import country_mask
from harch.sovereignty.tags import Classification, Tag

CACHE_MAX = 16_384  # compiled tags; a fleet has few distinct ones, and a flood of them only costs time


class CompiledTag(Struct, frozen=True):
    """Masks of hubs, by the bit numbers of `Rules.bits`."""

    process: int
    rest: int
    arrive: int
    view: int  # where it may be looked at; `restricted` data only at its own hub
    is_restricted: bool
    reach: tuple[int, ...]  # per hub number: where it can travel to from there, itself included


_NOTHING = CompiledTag(0, 0, 0, 0, True, ())


class Rules:
    """The rules of one terrain. Decisions are pure; the only state is a cache of compiled tags."""

    def __init__(self, terrain: Terrain) -> None:
        self.terrain = terrain
        self.bits: dict[str, int] = {site.hub: number for number, site in enumerate(terrain.sites)}
        self._cache: dict[Tag, CompiledTag] = {}
        self._in_country = _masks((site.country,) if site.country else () for site in terrain.sites)
        self._upholding = _masks(site.frameworks for site in terrain.sites)
        self._key_users = _masks(site.keys_in for site in terrain.sites)
        self._encrypting = sum(1 << number for number, site in enumerate(terrain.sites) if site.encrypts_at_rest)
        self._passages = [
            (
                (1 << self.bits[passage.ends[0]]) | (1 << self.bits[passage.ends[1]]),
                country_mask(passage.countries_crossed),
                passage.is_international,
                passage.encrypted,
            )
            for passage in terrain.passages
            if passage.countries_crossed and all(end in self.bits for end in passage.ends)
        ]

    def open_tag(self, countries: Collection[str] = ()) -> Tag:
        """What code and results carry of which nobody has said more: they may go wherever the work itself may.

        `countries`: where that is; empty for anywhere. Stores and links encrypt all the same.
        """
        places = set(countries) or {site.country for site in self.terrain.sites if site.country is not None}
        crossed = {country for passage in self.terrain.passages for country in passage.countries_crossed}
        return Tag(
            process_in=tuple(places),
            rest_in=tuple(places),
            transit_in=tuple(crossed) if len(places) > 1 else (),
            may_cross_borders=len(places) > 1,
            frameworks=(),
            classification=Classification.INTERNAL,
            encrypt_at_rest=False,
            encrypt_in_transit=False,
            key_in=(),
        )

    def may_process(self, tag: Tag | None, hub: str) -> bool:
        number = self.bits.get(hub, -1)
        return number >= 0 and bool(self.compile(tag).process >> number & 1)

    def may_rest(self, tag: Tag | None, hub: str) -> bool:
        number = self.bits.get(hub, -1)
        return number >= 0 and bool(self.compile(tag).rest >> number & 1)

    def may_move(self, tag: Tag | None, source: str, target: str) -> bool:
        """May data at `source` travel to `target`, to rest or be processed there? Nothing travels to where it is."""
        start, end = self.bits.get(source, -1), self.bits.get(target, -1)
        if tag is None or start < 0 or end < 0:
            return False
        compiled = self.compile(tag)
        return bool((compiled.reach[start] & compiled.arrive) >> end & 1)

    def may_see(self, tag: Tag | None, source: str, viewer: str) -> bool:
        """May data at `source`, or telemetry that carries its tag, be looked at from `viewer`?"""
        start, end = self.bits.get(source, -1), self.bits.get(viewer, -1)
        if tag is None or start < 0 or end < 0:
            return False
        compiled = self.compile(tag)
        if compiled.is_restricted and start != end:
            return False
        return bool((compiled.reach[start] & compiled.view) >> end & 1)

    def compile(self, tag: Tag | None) -> CompiledTag:
        if tag is None:
            return _NOTHING
        found = self._cache.get(tag)
        if found is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            found = self._cache[tag] = self._compile(tag)
        return found

    def hubs_in(self, countries: Iterable[str]) -> int:
        """The mask of all hubs in these countries."""
        return _any(self._in_country, countries)

    def mask_of(self, hubs: Iterable[str]) -> int:
        """The mask of these hubs; those that are not known have no bit."""
        mask = 0
        for hub in hubs:
            if hub in self.bits:
                mask |= 1 << self.bits[hub]
        return mask

    def _compile(self, tag: Tag) -> CompiledTag:
        lawful = (1 << len(self.bits)) - 1
        for law in tag.frameworks:
            lawful &= self._upholding.get(law, 0)
        safe = lawful
        if tag.encrypt_at_rest:
            safe &= self._encrypting & _any(self._key_users, tag.key_in)
        processing, resting = self.hubs_in(tag.process_in), self.hubs_in(tag.rest_in)
        return CompiledTag(
            process=processing & safe,
            rest=resting & safe,
            arrive=(processing | resting) & safe,
            view=processing & lawful,
            is_restricted=tag.classification is Classification.RESTRICTED,
            reach=self._reach(tag),
        )

    def _reach(self, tag: Tag) -> tuple[int, ...]:
        """All pairs at once. Links carry both ways, so what can be reached from a hub is its connected component."""
        closed = ~country_mask(tag.transit_in)
        component = [1 << number for number in range(len(self.bits))]
        for ends, countries, is_international, encrypted in self._passages:
            if countries & closed or (is_international and not tag.may_cross_borders):
                continue
            if tag.encrypt_in_transit and not encrypted:
                continue
            joined = 0
            for mask in component:
                if mask & ends:
                    joined |= mask
            for number in range(len(component)):
                if joined >> number & 1:
                    component[number] = joined
        return tuple(component)


def _masks(words_per_site: Iterable[Iterable[str]]) -> dict[str, int]:
    """Per word, the mask of the sites that have it."""
    masks: dict[str, int] = {}
    for number, words in enumerate(words_per_site):
        for word in words:
            masks[word] = masks.get(word, 0) | 1 << number
    return masks


def _any(masks: dict[str, int], words: Iterable[str]) -> int:
    mask = 0
    for word in words:
        mask |= masks.get(word, 0)
    return mask
