"""What is a proof about?

A world of hubs, links, data and work, and its pending changes, as tracks of states that each resource can be in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from harch.sovereignty.geography import LegalSite
from harch.sovereignty.tags import Countries, Tag

# What is a proof about? A world of hubs, links, data and work, and the changes that are pending in it.
#
# Two readings of the same thing are kept apart everywhere. What a gate *reads* are declarations: the countries that a
# cluster says it stands in, the countries that a link says it crosses. What is *true* is the country of the hub where
# the
# hardware stands and the route that the fibre takes. A violation is something that the first lets through and the
# second
# forbids. `unknown` names fields whose value is not known yet, as in a plan before it is applied.


RESOURCES_MAX = 100_000
CHANGES_MAX = 10_000
NOT_A_COUNTRY = "ZZ"  # never given to a country by ISO 3166: stands for one that nobody named
Names = tuple[str, ...]


class ResourceKind(StrEnum):
    """What a change can be about; also the names of the lists in a state document, in the plural."""

    HUB = "hub"
    CLUSTER = "cluster"
    NODE = "node"
    LINK = "link"
    DATASET = "dataset"
    POLICY = "policy"
    WORKLOAD = "workload"
    OVERFLOW = "spill_over"
    PIPELINE = "pipeline"
    EXPORT = "export"


class _Resource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    unknown: Names = ()


class HubResource(_Resource, frozen=True, kw_only=True):
    """A site. `country` None means that the registry does not know it, so nothing is permitted there."""

    country: Annotated[str, Meta(pattern="^[A-Z]{2}$")] | None
    frameworks: Names = ()
    encrypts_at_rest: bool = False
    keys_in: Countries = ()
    failed: bool = False

    @property
    def site(self) -> LegalSite:
        return LegalSite(
            hub=self.id,
            country=self.country,
            frameworks=self.frameworks,
            encrypts_at_rest=self.encrypts_at_rest,
            keys_in=self.keys_in,
        )


class ClusterResource(_Resource, frozen=True, kw_only=True):
    """GPUs that are admitted to by what they declare. None: nothing of their own, so the hub speaks for them."""

    hub: str
    countries: Countries | None = None
    frameworks: Names | None = None


class NodeResource(_Resource, frozen=True, kw_only=True):
    """A machine of a cluster. `hub` is where it really stands, if that is known to differ from the cluster's."""

    cluster: str
    hub: str | None = None


class LinkResource(_Resource, frozen=True, kw_only=True):
    """A fibre route. `transit` is what it declares to cross besides its ends; `transit_true` what is known to be so."""

    ends: tuple[str, str]
    transit: Countries = ()
    transit_true: Countries | None = None
    encrypted: bool = False


class FlowResource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A standing transfer. `via` are the links that it was set up on, in order; it stays on them while they exist."""

    source: str
    target: str
    via: Names = ()


class Dataset(_Resource, frozen=True, kw_only=True):
    """A data object of any kind. `hubs` hold a copy; `spares` get one when a hub that holds one fails."""

    tag: Tag | None
    hubs: Names = ()
    spares: Names = ()
    flows: tuple[FlowResource, ...] = ()
    labels: dict[str, str] = {}


class Policy(_Resource, frozen=True, kw_only=True):
    """Narrows the tags of the data that has all these labels. `countries` None narrows no country."""

    countries: Countries | None = None
    frameworks: Names = ()
    may_cross_borders: bool = True
    selector: dict[str, str] = {}
    enforced: bool = True


class WorkloadResource(_Resource, frozen=True, kw_only=True):
    """Work and where it may be put: on these clusters, else on any of these hubs, else anywhere."""

    reads: Names = ()
    hubs: Names = ()
    clusters: Names = ()
    countries: Countries | None = None


class Overflow(_Resource, frozen=True, kw_only=True):
    """Work of `source` goes to `target` when `source` is full or, with `only_on_failure`, when it has failed."""

    source: str
    target: str
    only_on_failure: bool = False


class Stage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    clusters: Names = ()  # any, if empty


class PipelineResource(_Resource, frozen=True, kw_only=True):
    """Stages in order, each of which hands the stream to the next; the stream carries the meet of all that is read."""

    reads: Names = ()
    stages: tuple[Stage, ...] = ()
    flows: tuple[FlowResource, ...] = ()


class Export(_Resource, frozen=True, kw_only=True):
    """Telemetry that carries the tags of some data and is shown at `target`; None is outside of every hub."""

    data: Names
    source: str
    target: str | None = None


Resource = (
    HubResource
    | ClusterResource
    | NodeResource
    | LinkResource
    | Dataset
    | Policy
    | WorkloadResource
    | Overflow
    | PipelineResource
    | Export
)
TYPES: dict[ResourceKind, type[Resource]] = {
    ResourceKind.HUB: HubResource,
    ResourceKind.CLUSTER: ClusterResource,
    ResourceKind.NODE: NodeResource,
    ResourceKind.LINK: LinkResource,
    ResourceKind.DATASET: Dataset,
    ResourceKind.POLICY: Policy,
    ResourceKind.WORKLOAD: WorkloadResource,
    ResourceKind.OVERFLOW: Overflow,
    ResourceKind.PIPELINE: PipelineResource,
    ResourceKind.EXPORT: Export,
}


class ProofWorld(Struct, frozen=True, kw_only=True):
    """Everything as it stands before any pending change. `declassified` holds what a valid declassification permits."""

    resources: dict[ResourceKind, dict[str, Resource]]
    declassified: dict[str, Tag] = {}

    def of(self, kind: ResourceKind) -> dict[str, Resource]:
        return self.resources.get(kind, {})

    @property
    def size(self) -> int:
        return sum(len(found) for found in self.resources.values())


class PendingChange(Struct, frozen=True, kw_only=True):
    """One atomic change. `passes` are the states after `before`, in order; None is absence.

    An update passes through one state, a replacement through two: first the old one is gone, then the new one is there.
    """

    id: str
    kind: ResourceKind
    key: str
    passes: tuple[Resource | None, ...]
    label: str = ""


def world_of(*resources: Resource, declassified: dict[str, Tag] | None = None) -> ProofWorld:
    """A world of these, each under its id. The last of two with one id stands."""
    found: dict[ResourceKind, dict[str, Resource]] = {kind: {} for kind in ResourceKind}
    for resource in resources:
        found[kind_of(resource)][resource.id] = resource
    return ProofWorld(resources=found, declassified=declassified or {})


def kind_of(resource: Resource) -> ResourceKind:
    return _KINDS[type(resource)]


def countries_named(world: ProofWorld, changes: tuple[PendingChange, ...]) -> Names:
    """Every country that somebody names in this world, and one that nobody does."""
    found = {NOT_A_COUNTRY}
    for resource in everything(world, changes):
        match resource:
            case HubResource():
                found.update((resource.country,) if resource.country else (), resource.keys_in)
            case ClusterResource() | Policy() | WorkloadResource():
                found.update(resource.countries or ())
            case LinkResource():
                found.update(resource.transit, resource.transit_true or ())
            case Dataset():
                found.update((*resource.tag.transit_in, *resource.tag.key_in) if resource.tag else ())
            case _:
                pass
    return tuple(sorted(found))


def everything(world: ProofWorld, changes: tuple[PendingChange, ...]) -> Iterator[Resource]:
    for resources in world.resources.values():
        yield from resources.values()
    for change in changes:
        yield from (resource for resource in change.passes if resource is not None)


_KINDS: dict[type[Resource], ResourceKind] = {type_: kind for kind, type_ in TYPES.items()}


# Which states can each resource be in? The world and its pending changes, as tracks that are walked independently.
#
# Changes of one resource keep their order and form one track; tracks are independent, so every order in which changes
# can be applied passes only through choices of one stage per track, and every such choice is passed by some order.


Key = tuple[ResourceKind, str]
Choice = Mapping[int, int]  # track number to stage; a track that is not named is at its first stage
Box = Mapping[int, tuple[int, ...]]  # the same with several stages: all choices that take one of each


class Track(Struct, frozen=True):
    """One resource over time: what it is now, and after each pass of its changes. `steps[i]` led to `stages[i + 1]`."""

    key: Key
    stages: tuple[Resource | None, ...]
    steps: tuple[PendingChange, ...]


class ChangeTracks:
    """A world with its tracks, indexed. Nothing in it changes."""

    def __init__(self, world: ProofWorld, changes: tuple[PendingChange, ...] = ()) -> None:
        self.world = world
        self.changes = changes
        self.tracks = _tracks(world, changes)
        self.track_of = {track.key: number for number, track in enumerate(self.tracks)}
        self.universe = countries_named(world, changes)
        self.has_unknowns = any(resource.unknown for resource in everything(world, changes))
        self.hubs_known = self.everything(ResourceKind.HUB)
        self.data_known = self.everything(ResourceKind.DATASET)
        self.now: dict[ResourceKind, dict[str, tuple[Resource, ...]]] = {
            kind: {key: (resource,) for key, resource in world.of(kind).items()} for kind in ResourceKind
        }

    def box_of_all(self) -> Box:
        return {number: tuple(range(len(track.stages))) for number, track in enumerate(self.tracks)}

    def everything(self, kind: ResourceKind) -> set[str]:
        """The ids of all that is there or may come to be."""
        return {*self.world.of(kind), *(key for of, key in self.track_of if of is kind)}

    def tracks_among(self, keys: Iterable[Key], kinds: Iterable[ResourceKind]) -> tuple[int, ...]:
        """The tracks of these resources, and all tracks of these kinds."""
        found = {self.track_of[key] for key in keys if key in self.track_of}
        wanted = set(kinds)
        found.update(number for number, track in enumerate(self.tracks) if track.key[0] in wanted)
        return tuple(sorted(found))

    def applied(self, choice: Choice) -> tuple[tuple[PendingChange, int], ...]:
        """The changes that a choice stands for, in the order of the plan, each with how many passes were made."""
        made: dict[str, int] = {}
        for number, stage in choice.items():
            for change in self.tracks[number].steps[:stage]:
                made[change.id] = made.get(change.id, 0) + 1
        return tuple((change, made[change.id]) for change in self.changes if change.id in made)


def _tracks(world: ProofWorld, changes: tuple[PendingChange, ...]) -> tuple[Track, ...]:
    stages: dict[Key, list[Resource | None]] = {}
    steps: dict[Key, list[PendingChange]] = {}
    for change in changes:
        key = (change.kind, change.key)
        passed = stages.setdefault(key, [world.of(change.kind).get(change.key)])
        passed.extend(change.passes)
        steps.setdefault(key, []).extend(change for _ in change.passes)
    return tuple(Track(key, tuple(passed), tuple(steps[key])) for key, passed in stages.items())
