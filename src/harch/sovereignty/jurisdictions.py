"""Which countries, legal frameworks, groups and places are there? The registry that tags are compiled against.

A grid zone is no jurisdiction: it says whose carbon intensity applies, and has no place in here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from harch.base.errors import HarchError, Problems
from harch.sovereignty.countries import COUNTRIES, country_of
from harch.sovereignty.places import Places

WORLD = "WORLD"  # the group of every country that the registry knows


class Framework(Struct, frozen=True, kw_only=True):
    """A law or treaty about data. The summary tells what it is about and is not legal advice."""

    id: str
    bit: int
    name: str
    in_force: tuple[str, ...]
    summary: str
    aliases: tuple[str, ...] = ()


class Group(Struct, frozen=True, kw_only=True):
    """Countries with a common name. `mistaken_for`: country codes that people write when they mean the group."""

    id: str
    name: str
    countries: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    mistaken_for: tuple[str, ...] = ()


class Jurisdictions(Struct, frozen=True, dict=True, kw_only=True):
    """The registry. `countries` maps ISO codes to names; frameworks and groups are known by their ids. `places`: where
    networks outside of the fleet stand, as the operator says."""

    countries: dict[str, str]
    frameworks: dict[str, Framework]
    groups: dict[str, Group]
    places: Places = Places()

    def frameworks_in(self, country: str) -> tuple[str, ...]:
        """The frameworks in force in a country."""
        return self._in_force.get(country, ())

    def framework_mask(self, ids: Iterable[str]) -> int:
        """The mask of some frameworks by their bits. Raises E0905 for one that is not known."""
        mask = 0
        for id in ids:
            mask |= 1 << self.frameworks[self.framework(id)].bit
        return mask

    def country(self, word: str) -> str:
        """The code behind a code, a name or a region word. Raises E0901."""
        return word if word in self.countries else country_of(word)

    def framework(self, word: str) -> str:
        """The id behind an id or alias, in any case. Raises E0905."""
        found = self._framework_words.get(word.strip().lower())
        if found is None:
            raise HarchError(
                "E0905", f"`{word[:64]}` is not a known framework", hint=f"known: {', '.join(self.frameworks)}"
            )
        return found

    def expand(self, words: Iterable[str], where: str, problems: Problems) -> tuple[str, ...]:
        """Country codes for countries, names and groups. What is not understood is a problem and expands to none."""
        written = tuple(words)
        found: set[str] = set()
        for index, word in enumerate(written):
            group = self._group_words.get(word.strip().upper())
            if group is not None:
                found.update(group)
                continue
            try:
                found.add(self.country(word))
            except HarchError as error:
                problems.add(f"{where}[{index}]", f"{error.message}; {error.hint}")
        self._refuse_mistaken(written, found, where, problems)
        return tuple(sorted(found))

    def _refuse_mistaken(self, written: tuple[str, ...], found: set[str], where: str, problems: Problems) -> None:
        """`AU` is Australia. Alone or among African countries it was hardly meant, and guessing would move data."""
        for group in self.groups.values():
            for code in group.mistaken_for:
                if code in written and found - {code} <= set(group.countries):
                    problems.add(
                        where,
                        f"`{code}` is the code of {self.countries[code]}; write `{group.id}` for the {group.name}, "
                        f"or `{self.countries[code].lower()}` if you mean the country",
                    )

    @cached_property
    def _in_force(self) -> dict[str, tuple[str, ...]]:
        return {
            code: tuple(sorted(law.id for law in self.frameworks.values() if code in law.in_force))
            for code in self.countries
        }

    @cached_property
    def _framework_words(self) -> dict[str, str]:
        return {word.lower(): law.id for law in self.frameworks.values() for word in (law.id, *law.aliases)}

    @cached_property
    def _group_words(self) -> dict[str, tuple[str, ...]]:
        words = {word.upper(): g.countries for g in self.groups.values() for word in (g.id, *g.aliases)}
        return {**words, WORLD: tuple(sorted(self.countries))}


def bare_registry() -> Jurisdictions:
    """The countries of ISO 3166-1 and nothing else; files build on it."""
    return Jurisdictions(countries=dict(COUNTRIES), frameworks={}, groups={})


def country_bit(code: str) -> int:
    """The number of a country in masks, from its two letters: it never changes, whatever is added to the registry."""
    return (ord(code[0]) - 65) * 26 + ord(code[1]) - 65


def country_mask(codes: Iterable[str]) -> int:
    """The mask of some countries, a plain integer of up to 676 bits: compared when rules are compiled, not later."""
    mask = 0
    for code in codes:
        mask |= 1 << country_bit(code)
    return mask
