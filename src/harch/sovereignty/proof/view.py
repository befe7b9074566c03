"""How does a world stand?

One choice of stages, or the hull of many: what each resource is, with the worst or nothing bad assumed of unknown
values.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import reduce
from itertools import product

from msgspec.structs import replace

from harch.sovereignty.geography import LegalSite, Passage
from harch.sovereignty.proof.model import (
    NOT_A_COUNTRY,
    Box,
    ChangeTracks,
    ClusterResource,
    Dataset,
    Export,
    HubResource,
    LinkResource,
    Names,
    NodeResource,
    PipelineResource,
    Policy,
    Resource,
    ResourceKind,
    WorkloadResource,
)
from harch.sovereignty.tags import Classification, Tag, meet

# What if a value is not known? Either the worst is assumed of it, or nothing bad at all; the truth lies between.
#
# Assuming the worst and finding nothing is a proof. Assuming the best and finding something is a violation for sure.
# Anything else depends on the value, and that is for the solver, or for nobody.


class Stance(StrEnum):
    ADVERSE = "adverse"
    FAVOURABLE = "favourable"


# Fields that may be unknown and still be reasoned about. Anything else that is unknown cannot be proven anything of.
UNDERSTOOD: dict[ResourceKind, frozenset[str]] = {
    ResourceKind.HUB: frozenset({"country"}),
    ResourceKind.CLUSTER: frozenset({"hub", "countries"}),
    ResourceKind.LINK: frozenset({"transit"}),
    ResourceKind.DATASET: frozenset({"tag", "hubs"}),
    ResourceKind.POLICY: frozenset({"countries", "may_cross_borders", "selector", "enforced"}),
    ResourceKind.WORKLOAD: frozenset({"reads", "hubs", "clusters"}),
    ResourceKind.PIPELINE: frozenset({"reads"}),
    ResourceKind.EXPORT: frozenset({"target"}),
}


def everything_tag(universe: Names) -> Tag:
    """Permits all that anybody in this world could ask for."""
    return Tag(
        process_in=universe,
        rest_in=universe,
        transit_in=universe,
        may_cross_borders=True,
        frameworks=(),
        classification=Classification.PUBLIC,
        encrypt_at_rest=False,
        encrypt_in_transit=False,
        key_in=universe,
    )


def adverse(resource: Resource, *, universe: Names, hubs: Iterable[str], data: Iterable[str]) -> tuple[Resource, ...]:
    """What it might be in the worst cases. Tags and policies that are not known are read by `view`, not here."""
    unknown = set(resource.unknown)
    match resource:
        case HubResource():
            countries = [code for code in universe if code != NOT_A_COUNTRY]
            return tuple(replace(resource, country=country) for country in (*countries, None))
        case ClusterResource():
            declared = universe if "countries" in unknown else resource.countries
            places = tuple(hubs) if "hub" in unknown else (resource.hub,)
            return tuple(replace(resource, hub=hub, countries=declared) for hub in places)
        case LinkResource():
            return replace(resource, transit=()), replace(resource, transit_true=(NOT_A_COUNTRY,))
        case Dataset():
            return (replace(resource, hubs=tuple(hubs)) if "hubs" in unknown else resource,)
        case WorkloadResource():
            reads = [(id,) for id in data] if "reads" in unknown else [resource.reads]
            where = "hubs" in unknown or "clusters" in unknown
            return tuple(
                replace(
                    resource,
                    reads=read,
                    hubs=() if where else resource.hubs,
                    clusters=() if where else resource.clusters,
                )
                for read in reads
            )
        case PipelineResource():
            return tuple(replace(resource, reads=(id,)) for id in data)
        case Export():
            return (replace(resource, target=None),)
        case _:
            return (resource,)


def favourable(resource: Resource) -> tuple[Resource, ...]:
    """Nothing, where an unknown resource can only do harm; tags and policies are read by `view`."""
    if isinstance(resource, Dataset):
        return (replace(resource, hubs=()) if "hubs" in resource.unknown else resource,)
    return (resource,) if isinstance(resource, Policy) else ()


def not_understood(resources: Iterable[tuple[ResourceKind, Resource]]) -> list[str]:
    """The unknown fields that nothing can be said about, as `kind.field of id`."""
    return sorted(
        {
            f"{kind}.{name} of {resource.id}"
            for kind, resource in resources
            for name in resource.unknown
            if name not in UNDERSTOOD.get(kind, frozenset())
        }
    )


# How do things stand? One choice of stages, or the hull of many: what each resource is, and what binds data.
#
# In a hull every resource may be any of its stages, what a gate lets through is read from the loosest rule that data
# may
# have, and what is true from the strictest: candidates and admission before ∪ after, permission before ∩ after. Each
# check looks at resources one by one and is monotone in both, so whatever a single choice can do wrong, the hull does
# wrong too: a hull without findings proves every choice, and so every order. With one choice the two rules differ only
# by the floor: what binds data today binds it until somebody signs a declassification, whatever a plan says.


Variants = dict[str, tuple[Resource, ...]]


class WorldView:
    """What a box of choices can be. Answers are computed when asked for, and kept."""

    def __init__(self, book: ChangeTracks, box: Box, stance: Stance = Stance.ADVERSE) -> None:
        self.book = book
        self.stance = stance
        self._kinds: dict[ResourceKind, Variants] = {}
        self._absent: set[str] = set()  # policies that may not be there
        self._loose: dict[str, Tag | None] = {}
        self._strict: dict[str, Tag | None] = {}
        self._sites: dict[str, tuple[LegalSite, ...]] = {}
        self._nodes: dict[str, list[NodeResource]] | None = None
        for number, chosen in box.items():
            (kind, key), stages = book.tracks[number].key, book.tracks[number].stages
            if kind not in self._kinds:
                self._kinds[kind] = dict(book.now[kind])
            found = [stages[stage] for stage in chosen]
            self._kinds[kind][key] = tuple(stage for stage in found if stage is not None)
            if None in found and kind is ResourceKind.POLICY:
                self._absent.add(key)
        if book.has_unknowns:
            self._expand_unknowns()

    def all(self, kind: ResourceKind) -> Variants:
        """Per id, what it may be; an empty tuple if it is not there."""
        return self._kinds.get(kind, self.book.now[kind])

    def sites(self, hub: str) -> tuple[LegalSite, ...]:
        """What the hub may truly be; empty if there is no such hub."""
        found = self._sites.get(hub)
        if found is None:
            hubs = self.all(ResourceKind.HUB).get(hub, ())
            found = self._sites[hub] = tuple(one.site for one in hubs if isinstance(one, HubResource))
        return found

    def is_silent(self, hub: str) -> bool:
        """True for a hub that is not there yet or no more: nothing happens there. One that nobody knows is not."""
        return not self.sites(hub) and hub in self.book.hubs_known

    def is_gone(self, data: str) -> bool:
        """The same for data: what is not there yet or no more cannot be shown or handed on."""
        return not self.all(ResourceKind.DATASET).get(data) and data in self.book.data_known

    def declared_sites(self, cluster: ClusterResource) -> tuple[LegalSite, ...]:
        """How a gate sees the cluster: one site per country that it declares, or its hub where it declares none."""
        sites = self.sites(cluster.hub)
        if cluster.hub not in self.book.hubs_known and cluster.countries is not None:
            sites = (
                LegalSite(hub=cluster.hub, country=None),
            )  # a gate believes it, though nobody knows where it stands
        found: list[LegalSite] = []
        for site in sites:
            frameworks = site.frameworks if cluster.frameworks is None else cluster.frameworks
            countries = (site.country,) if cluster.countries is None else cluster.countries
            found += (
                LegalSite(
                    hub=cluster.id,
                    country=country,
                    frameworks=frameworks,
                    encrypts_at_rest=site.encrypts_at_rest,
                    keys_in=site.keys_in,
                )
                for country in countries
            )
        return tuple(found)

    def places(self, cluster: ClusterResource) -> tuple[str, ...]:
        """The hubs where its hardware stands: its own, and those of nodes that stand elsewhere."""
        if self._nodes is None:
            self._nodes = {}
            for nodes in self.all(ResourceKind.NODE).values():
                for node in nodes:
                    if isinstance(node, NodeResource) and node.hub is not None:
                        self._nodes.setdefault(node.cluster, []).append(node)
        if cluster.id not in self._nodes:
            return (cluster.hub,)
        elsewhere = (node.hub for node in self._nodes[cluster.id] if node.hub is not None)
        return tuple(dict.fromkeys((cluster.hub, *elsewhere)))

    def passages(self, link: LinkResource) -> tuple[tuple[Passage, Passage], ...]:
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
        hubs, data = list(self.all(ResourceKind.HUB)), list(self.all(ResourceKind.DATASET))
        for kind in ResourceKind:
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
        return [found for found in self.all(ResourceKind.DATASET).get(data, ()) if isinstance(found, Dataset)]

    def _policies(self) -> Iterable[tuple[bool, list[Policy]]]:
        """Per policy, whether it is surely there, and what it may be."""
        for key, variants in self.all(ResourceKind.POLICY).items():
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


def floor_of(book: ChangeTracks, data: str) -> Tag | None:
    """What binds data that is there today, until it is declassified; None for data that is not there yet."""
    declassified = book.world.declassified.get(data)
    if declassified is not None:
        return declassified
    dataset = book.world.of(ResourceKind.DATASET).get(data)
    if not isinstance(dataset, Dataset) or dataset.tag is None:
        return None
    tag = dataset.tag
    for policy in book.world.of(ResourceKind.POLICY).values():
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


def _crossed(one: LegalSite, other: LegalSite, transit: tuple[str, ...]) -> tuple[str, ...]:
    """Every country of the way. One that is not known makes all of it unknown, and nothing may take it."""
    if one.country is None or other.country is None:
        return ()
    return tuple(dict.fromkeys((one.country, *transit, other.country)))


def _passage(link: LinkResource, countries: tuple[str, ...]) -> Passage:
    return Passage(ends=link.ends, rtt_ms=0.0, countries_crossed=countries, encrypted=link.encrypted)
