"""How do things stand? One choice of stages, or the hull of many: what each resource is, and what binds data.

In a hull every resource may be any of its stages, what a gate lets through is read from the loosest rule that data may
have, and what is true from the strictest: candidates and admission before ∪ after, permission before ∩ after. Each
check looks at resources one by one and is monotone in both, so whatever a single choice can do wrong, the hull does
wrong too: a hull without findings proves every choice, and so every order. With one choice the two rules differ only
by the floor: what binds data today binds it until somebody signs a declassification, whatever a plan says.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import product

from harch.sovereignty.proof.book import Book, Box
from harch.sovereignty.proof.model import Cluster, Dataset, Hub, Kind, Link, Node, Policy, Resource
from harch.sovereignty.proof.unknowns import Stance, adverse, everything_tag, favourable
from harch.sovereignty.tags import Tag, meet
from harch.sovereignty.terrain import Passage, Site

Variants = dict[str, tuple[Resource, ...]]


class View:
    """What a box of choices can be. Answers are computed when asked for, and kept."""

    def __init__(self, book: Book, box: Box, stance: Stance = Stance.ADVERSE) -> None:
        self.book = book
        self.stance = stance
        self._kinds: dict[Kind, Variants] = {}
        self._absent: set[str] = set()  # policies that may not be there
        self._loose: dict[str, Tag | None] = {}
        self._strict: dict[str, Tag | None] = {}
        self._sites: dict[str, tuple[Site, ...]] = {}
        self._nodes: dict[str, list[Node]] | None = None
        for number, chosen in box.items():
            (kind, key), stages = book.tracks[number].key, book.tracks[number].stages
            if kind not in self._kinds:
                self._kinds[kind] = dict(book.now[kind])
            found = [stages[stage] for stage in chosen]
            self._kinds[kind][key] = tuple(stage for stage in found if stage is not None)
            if None in found and kind is Kind.POLICY:
                self._absent.add(key)
        if book.has_unknowns:
            self._expand_unknowns()

    def all(self, kind: Kind) -> Variants:
        """Per id, what it may be; an empty tuple if it is not there."""
        return self._kinds.get(kind, self.book.now[kind])

    def sites(self, hub: str) -> tuple[Site, ...]:
        """What the hub may truly be; empty if there is no such hub."""
        found = self._sites.get(hub)
        if found is None:
            hubs = self.all(Kind.HUB).get(hub, ())
            found = self._sites[hub] = tuple(one.site for one in hubs if isinstance(one, Hub))
        return found

    def is_silent(self, hub: str) -> bool:
        """True for a hub that is not there yet or no more: nothing happens there. One that nobody knows is not."""
        return not self.sites(hub) and hub in self.book.hubs_known

    def is_gone(self, data: str) -> bool:
        """The same for data: what is not there yet or no more cannot be shown or handed on."""
        return not self.all(Kind.DATASET).get(data) and data in self.book.data_known

    def declared_sites(self, cluster: Cluster) -> tuple[Site, ...]:
        """How a gate sees the cluster: one site per country that it declares, or its hub where it declares none."""
        sites = self.sites(cluster.hub)
        if cluster.hub not in self.book.hubs_known and cluster.countries is not None:
            sites = (Site(hub=cluster.hub, country=None),)  # a gate believes it, though nobody knows where it stands
        found: list[Site] = []
        for site in sites:
            frameworks = site.frameworks if cluster.frameworks is None else cluster.frameworks
            countries = (site.country,) if cluster.countries is None else cluster.countries
            found += (
                Site(
                    hub=cluster.id,
                    country=country,
                    frameworks=frameworks,
                    encrypts_at_rest=site.encrypts_at_rest,
                    keys_in=site.keys_in,
                )
                for country in countries
            )
        return tuple(found)

    def places(self, cluster: Cluster) -> tuple[str, ...]:
        """The hubs where its hardware stands: its own, and those of nodes that stand elsewhere."""
        if self._nodes is None:
            self._nodes = {}
            for nodes in self.all(Kind.NODE).values():
                for node in nodes:
                    if isinstance(node, Node) and node.hub is not None:
                        self._nodes.setdefault(node.cluster, []).append(node)
        if cluster.id not in self._nodes:
            return (cluster.hub,)
        elsewhere = (node.hub for node in self._nodes[cluster.id] if node.hub is not None)
        return tuple(dict.fromkeys((cluster.hub, *elsewhere)))

    def passages(self, link: Link) -> tuple[tuple[Passage, Passage], ...]:
        """The link as declared and as it truly is, for each country that its ends may be in."""
        pairs = []
        for one, other in product(self.sites(link.ends[0]), self.sites(link.ends[1])):
            declared = _crossed(one, other, link.transit)
            true = declared if link.transit_true is None else _crossed(one, other, link.transit_true)
            pairs.append((_passage(link, declared), _passage(link, true)))
        return tuple(pairs)

    def loosest(self, data: str) -> Tag | None:
        """What gates enforce for the data, at most; None permits nothing."""
        if data not in self._loose:
            self._loose[data] = self._loosest(self._datasets(data))
        return self._loose[data]

    def strictest(self, data: str) -> Tag | None:
        """What is truly permitted to the data, at least; None is nothing."""
        if data not in self._strict:
            floor = floor_of(self.book, data)
            tag = self._strictest(self._datasets(data))
            self._strict[data] = tag if tag is None or floor is None else meet((tag, floor))
        return self._strict[data]

    def _expand_unknowns(self) -> None:
        hubs, data = list(self.all(Kind.HUB)), list(self.all(Kind.DATASET))
        for kind in Kind:
            expanded: Variants = {}
            for key, found in self.all(kind).items():
                if any(variant.unknown for variant in found):
                    expanded[key] = tuple(
                        one
                        for variant in found
                        for one in (
                            (variant,)
                            if not variant.unknown
                            else favourable(variant)
                            if self.stance is Stance.FAVOURABLE
                            else adverse(variant, universe=self.book.universe, hubs=hubs, data=data)
                        )
                    )
            if expanded:
                self._kinds[kind] = {**self.all(kind), **expanded}

    def _datasets(self, data: str) -> list[Dataset]:
        return [found for found in self.all(Kind.DATASET).get(data, ()) if isinstance(found, Dataset)]

    def _policies(self) -> Iterable[tuple[bool, list[Policy]]]:
        """Per policy, whether it is surely there, and what it may be."""
        for key, variants in self.all(Kind.POLICY).items():
            yield key not in self._absent, [variant for variant in variants if isinstance(variant, Policy)]

    def _loosest(self, datasets: list[Dataset]) -> Tag | None:
        best = self.stance is Stance.FAVOURABLE
        unknown = None if best else everything_tag(self.book.universe)
        tags = [unknown if "tag" in dataset.unknown else dataset.tag for dataset in datasets]
        known = [tag for tag in tags if tag is not None]
        if not known:
            return None
        tag = reduce(join, known)
        for is_there, policies in self._policies():
            if best and any(p.unknown and may_select(p, d) for p in policies for d in datasets):
                return None
            sure = is_there and all(not p.unknown and p.enforced and selects(p, d) for p in policies for d in datasets)
            if sure and policies:
                tag = reduce(join, (narrow(tag, policy) for policy in policies))
        return tag

    def _strictest(self, datasets: list[Dataset]) -> Tag | None:
        best = self.stance is Stance.FAVOURABLE
        unknown = everything_tag(self.book.universe) if best else None
        tags = [unknown if "tag" in dataset.unknown else dataset.tag for dataset in datasets]
        known = [tag for tag in tags if tag is not None]
        if not known or len(known) < len(tags):
            return None
        tag = meet(known)
        for _, policies in self._policies():
            for policy in policies:
                if policy.unknown:
                    if not best and any(may_select(policy, dataset) for dataset in datasets):
                        return None
                elif policy.enforced and any(selects(policy, dataset) for dataset in datasets):
                    tag = narrow(tag, policy)
        return tag


def floor_of(book: Book, data: str) -> Tag | None:
    """What binds data that is there today, until it is declassified; None for data that is not there yet."""
    declassified = book.world.declassified.get(data)
    if declassified is not None:
        return declassified
    dataset = book.world.of(Kind.DATASET).get(data)
    if not isinstance(dataset, Dataset) or dataset.tag is None:
        return None
    tag = dataset.tag
    for policy in book.world.of(Kind.POLICY).values():
        if isinstance(policy, Policy) and policy.enforced and selects(policy, dataset):
            tag = narrow(tag, policy)
    return tag


def selects(policy: Policy, dataset: Dataset) -> bool:
    return all(dataset.labels.get(name) == value for name, value in policy.selector.items())


def narrow(tag: Tag, policy: Policy) -> Tag:
    """What both permit. A policy that allows borders says nothing about the countries crossed."""
    allowed = None if policy.countries is None else set(policy.countries)

    def kept(codes: tuple[str, ...]) -> tuple[str, ...]:
        return codes if allowed is None else tuple(code for code in codes if code in allowed)

    return Tag(
        process_in=kept(tag.process_in),
        rest_in=kept(tag.rest_in),
        transit_in=tag.transit_in if policy.may_cross_borders else kept(tag.transit_in),
        may_cross_borders=tag.may_cross_borders and policy.may_cross_borders,
        frameworks=tag.frameworks + policy.frameworks,
        classification=tag.classification,
        encrypt_at_rest=tag.encrypt_at_rest,
        encrypt_in_transit=tag.encrypt_in_transit,
        key_in=tag.key_in,
    )


def join(one: Tag, other: Tag) -> Tag:
    """The least that permits all that either permits: the counterpart of `meet`, for hulls only."""
    if one == other:
        return one
    least = one.classification if one.classification.rank <= other.classification.rank else other.classification
    return Tag(
        process_in=one.process_in + other.process_in,
        rest_in=one.rest_in + other.rest_in,
        transit_in=one.transit_in + other.transit_in,
        may_cross_borders=one.may_cross_borders or other.may_cross_borders,
        frameworks=tuple(set(one.frameworks).intersection(other.frameworks)),
        classification=least,
        encrypt_at_rest=one.encrypt_at_rest and other.encrypt_at_rest,
        encrypt_in_transit=one.encrypt_in_transit and other.encrypt_in_transit,
        key_in=one.key_in + other.key_in,
    )


def may_select(policy: Policy, dataset: Dataset) -> bool:
    """The same for policies whose selector may not be known."""
    return "selector" in policy.unknown or selects(policy, dataset)


def _crossed(one: Site, other: Site, transit: tuple[str, ...]) -> tuple[str, ...]:
    """Every country of the way. One that is not known makes all of it unknown, and nothing may take it."""
    if one.country is None or other.country is None:
        return ()
    return tuple(dict.fromkeys((one.country, *transit, other.country)))


def _passage(link: Link, countries: tuple[str, ...]) -> Passage:
    return Passage(ends=link.ends, rtt_ms=0.0, countries_crossed=countries, encrypted=link.encrypted)
