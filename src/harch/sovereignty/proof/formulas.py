"""How does a world read as formulas?

One truth value per country, choice and unknown; what binds data: its tag, narrowed by every policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harch.sovereignty.proof.model import (
    NOT_A_COUNTRY,
    ChangeTracks,
    ClusterResource,
    Dataset,
    HubResource,
    LinkResource,
    Names,
    NodeResource,
    Policy,
    Resource,
    ResourceKind,
    WorkloadResource,
    everything,
)
from harch.sovereignty.proof.view import floor_of
from harch.sovereignty.tags import Classification, Tag

# What binds data, as formulas: its tag, known or not, narrowed by every policy that applies to it.


Formula = Any  # z3's types are not known without the package
Rule = dict[str, Any]  # a formula per word, and per country or framework


def read_rule(f: Formulas, data: str) -> Rule:
    """What gates read of the data now."""
    z3 = f.z3
    datasets = [(when, one) for when, one in f.variants(ResourceKind.DATASET, data) if isinstance(one, Dataset)]
    rules = [
        (when, _unknown_tag(f, data) if "tag" in one.unknown else rule_of_tag(f, one.tag)) for when, one in datasets
    ]
    rule: Rule = {
        name: z3.Or([z3.And(when, one[name]) for when, one in rules])
        for name in ("tagged", "cross", "restricted", "lock", "wire")
    }
    for name in ("process", "rest", "transit", "keys"):
        rule[name] = {c: z3.Or([z3.And(when, one[name][c]) for when, one in rules]) for c in f.countries}
    rule["laws"] = {w: z3.Or([z3.And(when, one["laws"][w]) for when, one in rules]) for w in f.laws}
    for number, (there, policy) in enumerate(f.all(ResourceKind.POLICY)):
        if isinstance(policy, Policy):
            active = z3.And(there, _applies(f, policy, number, data, datasets))
            _narrow(f, rule, policy, number, active)
    return rule


def _applies(f: Formulas, policy: Policy, number: int, data: str, datasets: list[tuple[Formula, Dataset]]) -> Formula:
    z3 = f.z3
    is_on = (
        f.value(f"enforced of {policy.id}:{number}", "true")
        if "enforced" in policy.unknown
        else z3.BoolVal(policy.enforced)
    )
    if "selector" in policy.unknown:
        return z3.And(is_on, f.value(f"selector of {policy.id}:{number}", data))
    wanted = policy.selector.items()
    return z3.And(is_on, f.any((when, wanted <= one.labels.items()) for when, one in datasets))


def _narrow(f: Formulas, rule: Rule, policy: Policy, number: int, active: Formula) -> None:
    z3 = f.z3
    crosses = (
        f.value(f"may_cross_borders of {policy.id}:{number}", "true")
        if "may_cross_borders" in policy.unknown
        else z3.BoolVal(policy.may_cross_borders)
    )
    for code in f.countries:
        if "countries" in policy.unknown:
            allowed = f.value(f"countries of {policy.id}:{number}", code)
        else:
            allowed = z3.BoolVal(policy.countries is None or code in policy.countries)
        for name in ("process", "rest"):
            rule[name][code] = z3.And(rule[name][code], z3.Implies(active, allowed))
        rule["transit"][code] = z3.And(rule["transit"][code], z3.Implies(z3.And(active, z3.Not(crosses)), allowed))
    rule["cross"] = z3.And(rule["cross"], z3.Implies(active, crosses))
    for law in f.laws:
        rule["laws"][law] = z3.Or(rule["laws"][law], z3.And(active, z3.BoolVal(law in policy.frameworks)))


def rule_of_tag(f: Formulas, tag: Tag | None) -> Rule:
    value = f.z3.BoolVal
    lists = {
        "process": tag.process_in if tag else (),
        "rest": tag.rest_in if tag else (),
        "transit": tag.transit_in if tag else (),
        "keys": tag.key_in if tag else (),
    }
    rule: Rule = {name: {code: value(code in codes) for code in f.countries} for name, codes in lists.items()}
    return rule | {
        "tagged": value(tag is not None),
        "cross": value(tag is not None and tag.may_cross_borders),
        "restricted": value(tag is None or tag.classification is Classification.RESTRICTED),
        "lock": value(tag is None or tag.encrypt_at_rest),
        "wire": value(tag is None or tag.encrypt_in_transit),
        "laws": {law: value(tag is not None and law in tag.frameworks) for law in f.laws},
    }


def _unknown_tag(f: Formulas, data: str) -> Rule:
    rule: Rule = {
        name: {code: f.value(f"{name} of {data}", code) for code in f.countries}
        for name in ("process", "rest", "transit", "keys")
    }
    for code in f.countries:
        inside = f.z3.Or(rule["process"][code], rule["rest"][code])
        f.constraints.append(f.z3.Implies(inside, rule["transit"][code]))
    for name in ("tagged", "cross", "restricted", "lock", "wire"):
        rule[name] = f.value(f"{name} of {data}", "true")
    rule["laws"] = {law: f.value(f"frameworks of {data}", law) for law in f.laws}
    return rule


# How does a world read as formulas? One truth value per country, choice and unknown; no tags, no hulls, no graphs.
#
# Written apart from `view` and `steps`, pointwise from the definitions, so that the two can be held against each other.


Place = dict[str, Any]


class Formulas:
    """A book as formulas of one z3 context. `constraints` must hold; `unknowns` are the values that nobody knows."""

    def __init__(self, book: ChangeTracks, z3: Any) -> None:
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
        self._expanded: dict[tuple[ResourceKind, str], list[tuple[Formula, Resource]]] = {}
        self._fails = {hub: z3.Bool(f"fails:{hub}") for hub in sorted(book.hubs_known)}
        self._failed: dict[str, Formula] = {}
        self._recovered = z3.Bool("recovered")
        self.constraints.append(z3.PbLe([(fails, 1) for fails in self._fails.values()] or [(z3.BoolVal(False), 1)], 1))
        self.constraints += [z3.Implies(fails, self.place(hub)["there"]) for hub, fails in self._fails.items()]

    def variants(self, kind: ResourceKind, key: str) -> list[tuple[Formula, Resource]]:
        """What it may be, each with the condition for it."""
        found = self._expanded.get((kind, key))
        if found is None:
            found = self._expanded[kind, key] = list(self._variants(kind, key))
        return found

    def all(self, kind: ResourceKind) -> list[tuple[Formula, Resource]]:
        return [variant for key in sorted(self.book.everything(kind)) for variant in self.variants(kind, key)]

    def place(self, hub: str) -> Place:
        """The true hub: where it is, by which laws, with which safeguards."""
        found = self._places.get(hub)
        if found is not None:
            return found
        hubs = [(when, one) for when, one in self.variants(ResourceKind.HUB, hub) if isinstance(one, HubResource)]
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

    def declared(self, cluster: ClusterResource) -> Place:
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

    def standing(self, cluster: ClusterResource) -> list[tuple[Formula, str]]:
        """The hubs where hardware of the cluster is, each with the condition for it."""
        found = [(self.z3.BoolVal(True), cluster.hub)]
        for when, node in self.all(ResourceKind.NODE):
            if isinstance(node, NodeResource) and node.cluster == cluster.id and node.hub is not None:
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

    def takes(self, rule: Rule, link: LinkResource, number: int, *, truly: bool) -> Formula:
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

    def _variants(self, kind: ResourceKind, key: str) -> Iterable[tuple[Formula, Resource]]:
        number = self.book.track_of.get((kind, key))
        if number is None:
            stages: tuple[Resource | None, ...] = (self.book.world.of(kind).get(key),)
            guards: list[Formula] = [self.z3.BoolVal(True)]
        else:
            stages, guards = self.book.tracks[number].stages, self.chosen[number]
        for when, resource in zip(guards, stages, strict=True):
            if resource is None:
                continue
            if isinstance(resource, ClusterResource) and "hub" in resource.unknown:
                options = [self.value(f"hub of {key}", hub) for hub in sorted(self.book.hubs_known)]
                self._exactly_one(options)
                for hub, option in zip(sorted(self.book.hubs_known), options, strict=True):
                    moved = ClusterResource(
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
        self, link: LinkResource, number: int, truly: bool, one: dict[str, Formula], other: dict[str, Formula]
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


def _words(book: ChangeTracks) -> tuple[Names, Names]:
    """The countries that places, links and work name, and the frameworks.

    Other countries make a difference only where a value is not known, which can then be one of them.
    """
    countries, laws = {NOT_A_COUNTRY}, set[str]()
    for kind in ResourceKind:
        for key in book.everything(kind):
            number = book.track_of.get((kind, key))
            stages = book.tracks[number].stages if number is not None else (book.world.of(kind).get(key),)
            for one in stages:
                match one:
                    case HubResource():
                        countries.update((one.country,) if one.country else (), one.keys_in)
                        laws.update(one.frameworks)
                    case ClusterResource():
                        countries.update(one.countries or ())
                        laws.update(one.frameworks or ())
                    case LinkResource():
                        countries.update(one.transit, one.transit_true or ())
                    case WorkloadResource():
                        countries.update(one.countries or ())
                    case Policy():
                        laws.update(one.frameworks)
                    case Dataset():
                        laws.update(one.tag.frameworks if one.tag else ())
                    case _:
                        pass
    if book.has_unknowns:
        countries.update(_only_in_rules(book, countries))
    return tuple(sorted(countries)), tuple(sorted(laws))


def _only_in_rules(book: ChangeTracks, named: set[str]) -> Iterator[str]:
    """Countries that only rules name: of those that no rule tells apart two, as two may be one country or not."""
    tags = [*book.world.declassified.values()]
    lists: list[Names] = []
    for one in everything(book.world, book.changes):
        if isinstance(one, Dataset) and one.tag is not None:
            tags.append(one.tag)
        elif isinstance(one, Policy):
            lists.append(one.countries or ())
    for tag in tags:
        lists += (tag.process_in, tag.rest_in, tag.transit_in, tag.key_in)
    alike: dict[tuple[bool, ...], list[str]] = {}
    for code in book.universe:
        if code not in named:
            alike.setdefault(tuple(code in codes for codes in lists), []).append(code)
    for codes in alike.values():
        yield from codes[:2]
