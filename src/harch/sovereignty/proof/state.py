"""What does a state document say? Plain JSON in and out: the world as it stands, and the changes pending in it.

The lists are named after the kinds (`hubs`, `clusters`, …) and hold the structs of `model`. `docs/guides/proof.md`
describes them. A document is refused as a whole if anything in it is not understood: what is unknown is no proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.fleet.model import Fleet
from harch.sovereignty.geography import Safeguards, terrain_of
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.proof.model import (
    CHANGES_MAX,
    RESOURCES_MAX,
    TYPES,
    ClusterResource,
    Dataset,
    HubResource,
    LinkResource,
    PendingChange,
    ProofWorld,
    Resource,
    ResourceKind,
    WorkloadResource,
    world_of,
)
from harch.sovereignty.tags import DataObject, Tag

VERSION = 1
LISTS: dict[ResourceKind, str] = {
    kind: "policies" if kind is ResourceKind.POLICY else f"{kind}s" for kind in ResourceKind
}
_HINT = "docs/guides/proof.md describes the document"


class WorkloadNeeds(Struct, frozen=True, kw_only=True):
    """What a proof has to know of a workload: what it reads, and where it may be put."""

    id: str
    reads: tuple[str, ...] = ()
    hubs: tuple[str, ...] = ()
    countries: tuple[str, ...] | None = None


def read_state(raw: object, jurisdictions: Jurisdictions) -> tuple[ProofWorld, tuple[PendingChange, ...]]:
    """A parsed document as a world and its pending changes. Raises E0201 with the place of the first mistake."""
    if not isinstance(raw, Mapping) or raw.get("version") != VERSION:
        raise HarchError("E0201", f"a state document is a JSON object with `version: {VERSION}`", hint=_HINT)
    known = {"version", "declassified", "changes", *LISTS.values()}
    for name in raw:
        if name not in known:
            raise HarchError("E0201", f"`{str(name)[:64]}` is not part of a state document", hint=_HINT)
    resources = [
        _resource(kind, one, f"{name}[{index}]", jurisdictions)
        for kind, name in LISTS.items()
        for index, one in enumerate(_list(raw, name, RESOURCES_MAX))
    ]
    declassified = _convert(raw.get("declassified", {}), dict[str, Tag], "declassified")
    world = world_of(*resources, declassified=declassified)
    if world.size != len(resources):
        raise HarchError("E0201", "two resources of one kind have the same id", hint=_HINT)
    changes = [
        _change(one, f"changes[{index}]", jurisdictions) for index, one in enumerate(_list(raw, "changes", CHANGES_MAX))
    ]
    if len({change.id for change in changes}) != len(changes):
        raise HarchError("E0201", "two changes have the same id", hint=_HINT)
    return world, tuple(changes)


def write_state(world: ProofWorld, changes: Iterable[PendingChange] = ()) -> dict[str, object]:
    """The document of a world; `read_state` reads it back."""
    document: dict[str, object] = {"version": VERSION}
    for kind, name in LISTS.items():
        document[name] = [msgspec.to_builtins(one) for one in world.of(kind).values()]
    document["declassified"] = msgspec.to_builtins(world.declassified)
    document["changes"] = [
        {
            "id": change.id,
            "kind": change.kind.value,
            "key": change.key,
            "passes": [None if one is None else msgspec.to_builtins(one) for one in change.passes],
            "label": change.label,
        }
        for change in changes
    ]
    return document


def state_of(
    fleet: Fleet,
    jurisdictions: Jurisdictions,
    *,
    safeguards: Safeguards | None = None,
    data: Iterable[DataObject] = (),
    workloads: Iterable[WorkloadNeeds] = (),
    failed: Iterable[str] = (),
) -> ProofWorld:
    """The world of a running fleet: its terrain, a snapshot of its catalog, and its work. One cluster per hub."""
    down = set(failed)
    terrain = terrain_of(fleet, jurisdictions, safeguards)
    resources: list[Resource] = [
        HubResource(
            id=site.hub,
            country=site.country,
            frameworks=site.frameworks,
            encrypts_at_rest=site.encrypts_at_rest,
            keys_in=site.keys_in,
            failed=site.hub in down,
        )
        for site in terrain.sites
    ]
    resources += (ClusterResource(id=f"{site.hub}-gpus", hub=site.hub) for site in terrain.sites)
    for passage in terrain.passages:
        ends = [site.country for site in terrain.sites if site.hub in passage.ends]
        resources.append(
            LinkResource(
                id="-".join(passage.ends),
                ends=passage.ends,
                transit=tuple(code for code in passage.countries_crossed if code not in ends),
                encrypted=passage.encrypted,
                # A passage without countries crosses one that the registry does not know: nobody may take it.
                unknown=() if passage.countries_crossed else ("transit",),
            )
        )
    resources += (Dataset(id=one.id, tag=one.tag, hubs=one.hubs, labels={"tenant": one.tenant}) for one in data)
    resources += (WorkloadResource(id=w.id, reads=w.reads, hubs=w.hubs, countries=w.countries) for w in workloads)
    return world_of(*resources)


def _list(raw: Mapping[Any, object], name: str, most: int) -> list[object]:
    found = raw.get(name, [])
    if not isinstance(found, list) or len(found) > most:
        raise HarchError("E0201", f"`{name}` must be a list of at most {most}", hint=_HINT)
    return found


def _resource(kind: ResourceKind, raw: object, where: str, jurisdictions: Jurisdictions) -> Resource:
    resource: Resource = _convert(raw, TYPES[kind], where)
    if isinstance(resource, HubResource) and resource.country not in jurisdictions.countries:
        return replace(resource, country=None)  # a country that the registry does not know permits nothing
    return resource


def _change(raw: object, where: str, jurisdictions: Jurisdictions) -> PendingChange:
    head = _convert(raw, _RawChange, where)
    passes = tuple(
        None if one is None else _resource(head.kind, one, f"{where}.passes[{index}]", jurisdictions)
        for index, one in enumerate(head.passes)
    )
    for one in passes:
        if one is not None and one.id != head.key:
            raise HarchError("E0201", f"{where}: the resource is called `{one.id}`, the key `{head.key}`", hint=_HINT)
    return PendingChange(id=head.id, kind=head.kind, key=head.key, passes=passes, label=head.label)


class _RawChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    kind: ResourceKind
    key: str
    passes: list[Any]
    label: str = ""


def _convert(raw: object, type_: Any, where: str) -> Any:
    try:
        return msgspec.convert(raw, type_)
    except msgspec.ValidationError as error:
        raise HarchError("E0201", f"{where}: {error}", hint=_HINT, field=where) from error
