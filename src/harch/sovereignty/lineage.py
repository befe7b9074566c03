"""Where does this come from, what came of it, and where is it now? Answers over a snapshot of the catalog."""

# harch: pure

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from harch.base.errors import HarchError
from harch.sovereignty.tags import NOWHERE, DataKind, DataObject, Tag, loosens, meet
from harch.wire.data import Copy

Catalog = Mapping[str, DataObject]  # by id


def derive_tag(reads: Iterable[Tag | None], declared: Tag | None = None) -> Tag:
    """What a product carries: the meet of all that was read, tightened by what its maker declares, never loosened.

    Having read something without a tag, it permits nothing. Having read nothing, it needs a declared tag (E0904).
    """
    tags = [NOWHERE if tag is None else tag for tag in reads]
    if declared is not None:
        tags.append(declared)
    if not tags:
        raise HarchError(
            "E0904",
            "work that read no tagged data produces untagged data",
            hint="declare a tag for its output",
        )
    return meet(tags)


def derive_output(
    reads: Iterable[DataObject],
    *,
    id: str,
    kind: DataKind,
    name: str,
    tenant: str,
    hub: str,
    size_bytes: int = 0,
    declared: Tag | None = None,
) -> DataObject:
    """The object that work at `hub` produces from what it read."""
    parents = tuple(reads)
    return DataObject(
        id=id,
        kind=kind,
        name=name,
        tenant=tenant,
        tag=derive_tag((parent.tag for parent in parents), declared),
        hubs=(hub,),
        size_bytes=size_bytes,
        parents=tuple(dict.fromkeys(parent.id for parent in parents)),
    )


def ancestors(catalog: Catalog, object_id: str) -> tuple[str, ...]:
    """Everything it was derived from, nearest first. An ancestor that the catalog has lost is named all the same."""
    return _walk(object_id, lambda id: catalog[id].parents if id in catalog else ())


def descendants(catalog: Catalog, object_id: str) -> tuple[str, ...]:
    """Everything derived from it, nearest first."""
    children: dict[str, list[str]] = {}
    for data in catalog.values():
        for parent in data.parents:
            children.setdefault(parent, []).append(data.id)
    return _walk(object_id, lambda id: children.get(id, ()))


def where_is(catalog: Catalog, object_id: str) -> tuple[Copy, ...]:
    """All copies of it and of what came of it: what an auditor asks for, and what an erasure must reach."""
    if object_id not in catalog:
        raise HarchError("E0906", f"no data object `{object_id[:64]}`", hint="give the id of an object in the catalog")
    return tuple(
        Copy(object_id=id, name=catalog[id].name, kind=catalog[id].kind, hub=hub, is_derived=id != object_id)
        for id in (object_id, *descendants(catalog, object_id))
        for hub in catalog[id].hubs
    )


def too_loose(catalog: Catalog) -> tuple[str, ...]:
    """Objects that permit more than the meet of their parents: each needs a declassification, or is a fault."""
    return tuple(
        data.id
        for data in catalog.values()
        if data.parents and data.tag is not None and loosens(_inherited(catalog, data), data.tag)
    )


def _inherited(catalog: Catalog, data: DataObject) -> Tag:
    return derive_tag(catalog[parent].tag if parent in catalog else None for parent in data.parents)


def _walk(start: str, following: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """Breadth first; what was seen is not entered again, so a catalog with a cycle in it does no harm."""
    seen = {start}
    found: list[str] = []
    waiting = deque([start])
    while waiting:
        for id in following(waiting.popleft()):
            if id not in seen:
                seen.add(id)
                found.append(id)
                waiting.append(id)
    return tuple(found)
