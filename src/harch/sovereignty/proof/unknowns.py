"""What if a value is not known? Either the worst is assumed of it, or nothing bad at all; the truth lies between.

Assuming the worst and finding nothing is a proof. Assuming the best and finding something is a violation for sure.
Anything else depends on the value, and that is for the solver, or for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec.structs import replace

from harch.sovereignty.proof.model import (
    NOT_A_COUNTRY,
    Cluster,
    Dataset,
    Export,
    Hub,
    Kind,
    Link,
    Names,
    Pipeline,
    Policy,
    Resource,
    Workload,
)
from harch.sovereignty.tags import Classification, Tag


class Stance(StrEnum):
    ADVERSE = "adverse"
    FAVOURABLE = "favourable"


# Fields that may be unknown and still be reasoned about. Anything else that is unknown cannot be proven anything of.
UNDERSTOOD: dict[Kind, frozenset[str]] = {
    Kind.HUB: frozenset({"country"}),
    Kind.CLUSTER: frozenset({"hub", "countries"}),
    Kind.LINK: frozenset({"transit"}),
    Kind.DATASET: frozenset({"tag", "hubs"}),
    Kind.POLICY: frozenset({"countries", "may_cross_borders", "selector", "enforced"}),
    Kind.WORKLOAD: frozenset({"reads", "hubs", "clusters"}),
    Kind.PIPELINE: frozenset({"reads"}),
    Kind.EXPORT: frozenset({"target"}),
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
        case Hub():
            countries = [code for code in universe if code != NOT_A_COUNTRY]
            return tuple(replace(resource, country=country) for country in (*countries, None))
        case Cluster():
            declared = universe if "countries" in unknown else resource.countries
            places = tuple(hubs) if "hub" in unknown else (resource.hub,)
            return tuple(replace(resource, hub=hub, countries=declared) for hub in places)
        case Link():
            return replace(resource, transit=()), replace(resource, transit_true=(NOT_A_COUNTRY,))
        case Dataset():
            return (replace(resource, hubs=tuple(hubs)) if "hubs" in unknown else resource,)
        case Workload():
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
        case Pipeline():
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


def not_understood(resources: Iterable[tuple[Kind, Resource]]) -> list[str]:
    """The unknown fields that nothing can be said about, as `kind.field of id`."""
    return sorted(
        {
            f"{kind}.{name} of {resource.id}"
            for kind, resource in resources
            for name in resource.unknown
            if name not in UNDERSTOOD.get(kind, frozenset())
        }
    )
