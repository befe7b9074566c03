"""What is a proof about? A world of hubs, links, data and work, and the changes that are pending in it.

Two readings of the same thing are kept apart everywhere. What a gate *reads* are declarations: the countries that a
cluster says it stands in, the countries that a link says it crosses. What is *true* is the country of the hub where the
hardware stands and the route that the fibre takes. A violation is something that the first lets through and the second
forbids. `unknown` names fields whose value is not known yet, as in a plan before it is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from harch.sovereignty.tags import Countries, Tag
from harch.sovereignty.terrain import Site

RESOURCES_MAX = 100_000
CHANGES_MAX = 10_000
NOT_A_COUNTRY = "ZZ"  # never given to a country by ISO 3166: stands for one that nobody named
Names = tuple[str, ...]


class Kind(StrEnum):
    """What a change can be about; also the names of the lists in a state document, in the plural."""

    HUB = "hub"
    CLUSTER = "cluster"
    NODE = "node"
    LINK = "link"
    DATASET = "dataset"
    POLICY = "policy"
    WORKLOAD = "workload"
    SPILL_OVER = "spill_over"
    PIPELINE = "pipeline"
    EXPORT = "export"


class _Thing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    unknown: Names = ()


class Hub(_Thing, frozen=True, kw_only=True):
    """A site. `country` None means that the registry does not know it, so nothing is permitted there."""

    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")] | None
    frameworks: Names = ()
    encrypts_at_rest: bool = False
    keys_in: Countries = ()
    failed: bool = False

    @property
    def site(self) -> Site:
        return Site(
            hub=self.id,
            country=self.country,
            frameworks=self.frameworks,
            encrypts_at_rest=self.encrypts_at_rest,
            keys_in=self.keys_in,
        )


class Cluster(_Thing, frozen=True, kw_only=True):
    """GPUs that are admitted to by what they declare. None: nothing of their own, so the hub speaks for them."""

    hub: str
    countries: Countries | None = None
    frameworks: Names | None = None


class Node(_Thing, frozen=True, kw_only=True):
    """A machine of a cluster. `hub` is where it really stands, if that is known to differ from the cluster's."""

    cluster: str
    hub: str | None = None


class Link(_Thing, frozen=True, kw_only=True):
    """A fibre route. `transit` is what it declares to cross besides its ends; `transit_true` what is known to be so."""

    ends: tuple[str, str]
    transit: Countries = ()
    transit_true: Countries | None = None
    encrypted: bool = False


class Flow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A standing transfer. `via` are the links that it was set up on, in order; it stays on them while they exist."""

    source: str
    target: str
    via: Names = ()


class Dataset(_Thing, frozen=True, kw_only=True):
    """A data object of any kind. `hubs` hold a copy; `spares` get one when a hub that holds one fails."""

    tag: Tag | None
    hubs: Names = ()
    spares: Names = ()
    flows: tuple[Flow, ...] = ()
    labels: dict[str, str] = {}


class Policy(_Thing, frozen=True, kw_only=True):
    """Narrows the tags of the data that has all these labels. `countries` None narrows no country."""

    countries: Countries | None = None
    frameworks: Names = ()
    may_cross_borders: bool = True
    selector: dict[str, str] = {}
    enforced: bool = True


class Workload(_Thing, frozen=True, kw_only=True):
    """Work and where it may be put: on these clusters, else on any of these hubs, else anywhere."""

    reads: Names = ()
    hubs: Names = ()
    clusters: Names = ()
    countries: Countries | None = None


class SpillOver(_Thing, frozen=True, kw_only=True):
    """Work of `source` goes to `target` when `source` is full or, with `only_on_failure`, when it has failed."""

    source: str
    target: str
    only_on_failure: bool = False


class Stage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    clusters: Names = ()  # any, if empty


class Pipeline(_Thing, frozen=True, kw_only=True):
    """Stages in order, each of which hands the stream to the next; the stream carries the meet of all that is read."""

    reads: Names = ()
    stages: tuple[Stage, ...] = ()
    flows: tuple[Flow, ...] = ()


class Export(_Thing, frozen=True, kw_only=True):
    """Telemetry that carries the tags of some data and is shown at `target`; None is outside of every hub."""

    data: Names
    source: str
    target: str | None = None


Resource = Hub | Cluster | Node | Link | Dataset | Policy | Workload | SpillOver | Pipeline | Export
TYPES: dict[Kind, type[Resource]] = {
    Kind.HUB: Hub,
    Kind.CLUSTER: Cluster,
    Kind.NODE: Node,
    Kind.LINK: Link,
    Kind.DATASET: Dataset,
    Kind.POLICY: Policy,
    Kind.WORKLOAD: Workload,
    Kind.SPILL_OVER: SpillOver,
    Kind.PIPELINE: Pipeline,
    Kind.EXPORT: Export,
}


class World(Struct, frozen=True, kw_only=True):
    """Everything as it stands before any pending change. `declassified` holds what a valid declassification permits."""

    resources: dict[Kind, dict[str, Resource]]
    declassified: dict[str, Tag] = {}

    def of(self, kind: Kind) -> dict[str, Resource]:
        return self.resources.get(kind, {})

    @property
    def size(self) -> int:
        return sum(len(found) for found in self.resources.values())


class Change(Struct, frozen=True, kw_only=True):
    """One atomic change. `passes` are the states after `before`, in order; None is absence.

    An update passes through one state, a replacement through two: first the old one is gone, then the new one is there.
    """

    id: str
    kind: Kind
    key: str
    passes: tuple[Resource | None, ...]
    label: str = ""


def world_of(*resources: Resource, declassified: dict[str, Tag] | None = None) -> World:
    """A world of these, each under its id. The last of two with one id stands."""
    found: dict[Kind, dict[str, Resource]] = {kind: {} for kind in Kind}
    for resource in resources:
        found[kind_of(resource)][resource.id] = resource
    return World(resources=found, declassified=declassified or {})


def kind_of(resource: Resource) -> Kind:
    return _KINDS[type(resource)]


def countries_named(world: World, changes: tuple[Change, ...]) -> Names:
    """Every country that somebody names in this world, and one that nobody does."""
    found = {NOT_A_COUNTRY}
    for resource in everything(world, changes):
        match resource:
            case Hub():
                found.update((resource.country,) if resource.country else (), resource.keys_in)
            case Cluster() | Policy() | Workload():
                found.update(resource.countries or ())
            case Link():
                found.update(resource.transit, resource.transit_true or ())
            case Dataset():
                found.update((*resource.tag.transit_in, *resource.tag.key_in) if resource.tag else ())
            case _:
                pass
    return tuple(sorted(found))


def everything(world: World, changes: tuple[Change, ...]) -> Iterator[Resource]:
    for resources in world.resources.values():
        yield from resources.values()
    for change in changes:
        yield from (resource for resource in change.passes if resource is not None)


_KINDS: dict[type[Resource], Kind] = {type_: kind for kind, type_ in TYPES.items()}
