"""How does a world read as formulas? One truth value per country, choice and unknown; no tags, no hulls, no graphs.

Written apart from `view` and `steps`, pointwise from the definitions, so that the two can be held against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harch.sovereignty.proof.book import Book
from harch.sovereignty.proof.model import (
    NOT_A_COUNTRY,
    Cluster,
    Dataset,
    Hub,
    Kind,
    Link,
    Names,
    Node,
    Policy,
    Resource,
    Workload,
)
from harch.sovereignty.proof.rule_formulas import Formula, Rule, read_rule, rule_of_tag
from harch.sovereignty.proof.view import floor_of

Place = dict[str, Any]


class Formulas:
    """A book as formulas of one z3 context. `constraints` must hold; `unknowns` are the values that nobody knows."""

    def __init__(self, book: Book, z3: Any) -> None:
        self.book, self.z3 = book, z3
        self.constraints: list[Formula] = []
        self.unknowns: dict[str, Formula] = {}
        self.countries, self.laws = _words(book)
        self.chosen = [
            [z3.Bool(f"stage:{number}:{stage}") for stage in range(len(track.stages))]
            for number, track in enumerate(book.tracks)
        ]
        for options in self.chosen:
            self._exactly_one(options)
        self._rules: dict[tuple[str, bool], Rule] = {}
        self._places: dict[str, Place] = {}
        self._crossed: dict[tuple[str, int, bool], dict[str, Formula]] = {}
        self._expanded: dict[tuple[Kind, str], list[tuple[Formula, Resource]]] = {}
        self._fails = {hub: z3.Bool(f"fails:{hub}") for hub in sorted(book.hubs_known)}
        self._failed: dict[str, Formula] = {}
        self._recovered = z3.Bool("recovered")
        self.constraints.append(z3.PbLe([(fails, 1) for fails in self._fails.values()] or [(z3.BoolVal(False), 1)], 1))
        self.constraints += [z3.Implies(fails, self.place(hub)["there"]) for hub, fails in self._fails.items()]

    def variants(self, kind: Kind, key: str) -> list[tuple[Formula, Resource]]:
        """What it may be, each with the condition for it."""
        found = self._expanded.get((kind, key))
        if found is None:
            found = self._expanded[kind, key] = list(self._variants(kind, key))
        return found

    def all(self, kind: Kind) -> list[tuple[Formula, Resource]]:
        return [variant for key in sorted(self.book.everything(kind)) for variant in self.variants(kind, key)]

    def place(self, hub: str) -> Place:
        """The true hub: where it is, by which laws, with which safeguards."""
        found = self._places.get(hub)
        if found is not None:
            return found
        hubs = [(when, one) for when, one in self.variants(Kind.HUB, hub) if isinstance(one, Hub)]
        country: dict[str, Formula] = {}
        for code in self.countries:
            options = []
            for number, (when, one) in enumerate(hubs):
                unknown = "country" in one.unknown
                options.append(
                    self.z3.And(when, self.value(f"country of {hub}:{number}", code))
                    if unknown
                    else self._when(when, one.country == code)
                )
            country[code] = self.z3.Or(options)
        for number, (_, one) in enumerate(hubs):
            if "country" in one.unknown:
                self._exactly_one([self.value(f"country of {hub}:{number}", code) for code in self.countries])
        found = {
            "there": self.z3.Or([when for when, _ in hubs]),
            "country": country,
            "laws": {law: self.any((when, law in one.frameworks) for when, one in hubs) for law in self.laws},
            "locks": self.any((when, one.encrypts_at_rest) for when, one in hubs),
            "keys": {code: self.any((when, code in one.keys_in) for when, one in hubs) for code in self.countries},
            "down": self.any((when, one.failed) for when, one in hubs),
        }
        self._places[hub] = found
        return found

    def failed(self, hub: str) -> Formula:
        """At most one hub fails, besides those that are down already, which may come back at any time."""
        found = self._failed.get(hub)
        if found is None:
            z3 = self.z3
            is_down = z3.And(self.place(hub)["down"], z3.Not(self._recovered))
            found = z3.Or(self._fails[hub], is_down) if hub in self._fails else z3.BoolVal(False)
            self._failed[hub] = found
        return found

    def declared(self, cluster: Cluster) -> Place:
        """The cluster as a gate reads it. Several countries may hold at once."""
        place = dict(self.place(cluster.hub))
        if cluster.hub not in self.book.hubs_known and cluster.countries is not None:
            place["there"] = self.z3.BoolVal(True)
        if "countries" in cluster.unknown:
            place["country"] = {code: self.value(f"countries of {cluster.id}", code) for code in self.countries}
        elif cluster.countries is not None:
            place["country"] = {code: self.z3.BoolVal(code in cluster.countries) for code in self.countries}
        if cluster.frameworks is not None:
            place["laws"] = {law: self.z3.BoolVal(law in cluster.frameworks) for law in self.laws}
        return place

    def standing(self, cluster: Cluster) -> list[tuple[Formula, str]]:
        """The hubs where hardware of the cluster is, each with the condition for it."""
        found = [(self.z3.BoolVal(True), cluster.hub)]
        for when, node in self.all(Kind.NODE):
            if isinstance(node, Node) and node.cluster == cluster.id and node.hub is not None:
                found.append((when, node.hub))
        return found

    def rule(self, data: str, *, truly: bool) -> Rule:
        """What binds the data: as gates read it now or, truly, together with what bound it before."""
        found = self._rules.get((data, truly))
        if found is None:
            found = read_rule(self, data) if not truly else self.rule(data, truly=False)
            floor = floor_of(self.book, data) if truly else None
            if floor is not None:
                found = self.both(found, rule_of_tag(self, floor))
            self._rules[data, truly] = found
        return found

    def both(self, one: Rule, other: Rule) -> Rule:
        z3 = self.z3
        rule: Rule = {name: z3.And(one[name], other[name]) for name in ("tagged", "cross")}
        rule |= {name: z3.Or(one[name], other[name]) for name in ("restricted", "lock", "wire")}
        for name in ("process", "rest", "transit", "keys"):
            rule[name] = {code: z3.And(one[name][code], other[name][code]) for code in self.countries}
        rule["laws"] = {law: z3.Or(one["laws"][law], other["laws"][law]) for law in self.laws}
        return rule

    def permits(self, rule: Rule, words: Sequence[str], place: Place) -> Formula:
        """Whether the rule lets data be there, in one of these ways."""
        z3 = self.z3
        allowed = [z3.And(place["country"][code], rule[word][code]) for code in self.countries for word in words]
        keys = z3.Or([z3.And(rule["keys"][code], place["keys"][code]) for code in self.countries])
        return z3.And(
            rule["tagged"],
            place["there"],
            z3.Or(allowed),
            self.lawful(rule, place),
            z3.Implies(rule["lock"], z3.And(place["locks"], keys)),
        )

    def lawful(self, rule: Rule, place: Place) -> Formula:
        return self.z3.And([self.z3.Implies(rule["laws"][law], place["laws"][law]) for law in self.laws])

    def takes(self, rule: Rule, link: Link, number: int, *, truly: bool) -> Formula:
        """Whether the rule lets data take the link: as it declares itself or, truly, as it is."""
        z3 = self.z3
        one, other = (self.place(end)["country"] for end in link.ends)
        crossed = self._crosses(link, number, truly, one, other)
        is_domestic = z3.PbLe([(crossed[code], 1) for code in self.countries], 1)
        return z3.And(
            rule["tagged"],
            z3.Or(list(one.values())),
            z3.Or(list(other.values())),
            z3.And([z3.Implies(crossed[code], rule["transit"][code]) for code in self.countries]),
            z3.Or(rule["cross"], is_domestic),
            z3.Or(z3.BoolVal(link.encrypted), z3.Not(rule["wire"])),
        )

    def value(self, what: str, option: str) -> Formula:
        """One truth value of something that is not known."""
        name = f"{what}={option}"
        if name not in self.unknowns:
            self.unknowns[name] = self.z3.Bool(name)
        return self.unknowns[name]

    def _variants(self, kind: Kind, key: str) -> Iterable[tuple[Formula, Resource]]:
        number = self.book.track_of.get((kind, key))
        if number is None:
            stages: tuple[Resource | None, ...] = (self.book.world.of(kind).get(key),)
            guards: list[Formula] = [self.z3.BoolVal(True)]
        else:
            stages, guards = self.book.tracks[number].stages, self.chosen[number]
        for when, resource in zip(guards, stages, strict=True):
            if resource is None:
                continue
            if isinstance(resource, Cluster) and "hub" in resource.unknown:
                options = [self.value(f"hub of {key}", hub) for hub in sorted(self.book.hubs_known)]
                self._exactly_one(options)
                for hub, option in zip(sorted(self.book.hubs_known), options, strict=True):
                    moved = Cluster(
                        id=key,
                        hub=hub,
                        countries=resource.countries,
                        frameworks=resource.frameworks,
                        unknown=resource.unknown,
                    )
                    yield self.z3.And(when, option), moved
            else:
                yield when, resource

    def _crosses(
        self, link: Link, number: int, truly: bool, one: dict[str, Formula], other: dict[str, Formula]
    ) -> dict[str, Formula]:
        key = (link.id, number, truly)
        if key not in self._crossed:
            transit = link.transit_true if truly and link.transit_true is not None else link.transit
            is_unknown = "transit" in link.unknown and (not truly or link.transit_true is None)
            self._crossed[key] = {
                code: self.z3.Or(
                    one[code],
                    other[code],
                    self.value(f"transit of {link.id}:{number}", code)
                    if is_unknown
                    else self.z3.BoolVal(code in transit),
                )
                for code in self.countries
            }
        return self._crossed[key]

    def any(self, cases: Iterable[tuple[Formula, bool]]) -> Formula:
        return self.z3.Or([when for when, holds in cases if holds])

    def _when(self, condition: Formula, holds: bool) -> Formula:
        return condition if holds else self.z3.BoolVal(False)

    def _exactly_one(self, options: list[Formula]) -> None:
        self.constraints.append(self.z3.PbEq([(option, 1) for option in options], 1))


def _words(book: Book) -> tuple[Names, Names]:
    """The countries that places, links and work name, and the frameworks; no others can make a difference."""
    countries, laws = {NOT_A_COUNTRY}, set[str]()
    for kind in Kind:
        for key in book.everything(kind):
            number = book.track_of.get((kind, key))
            stages = book.tracks[number].stages if number is not None else (book.world.of(kind).get(key),)
            for one in stages:
                match one:
                    case Hub():
                        countries.update((one.country,) if one.country else (), one.keys_in)
                        laws.update(one.frameworks)
                    case Cluster():
                        countries.update(one.countries or ())
                        laws.update(one.frameworks or ())
                    case Link():
                        countries.update(one.transit, one.transit_true or ())
                    case Workload():
                        countries.update(one.countries or ())
                    case Policy():
                        laws.update(one.frameworks)
                    case Dataset():
                        laws.update(one.tag.frameworks if one.tag else ())
                    case _:
                        pass
    return tuple(sorted(countries)), tuple(sorted(laws))
