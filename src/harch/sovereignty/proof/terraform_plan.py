"""What would this Terraform plan change?

The JSON of `terraform show -json` as a world and its pending changes, by one small reader per type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from harch.base.errors import HarchError, Problems
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.proof.model import (
    CHANGES_MAX,
    ClusterResource,
    Dataset,
    HubResource,
    LinkResource,
    Names,
    NodeResource,
    PendingChange,
    PipelineResource,
    Policy,
    ProofWorld,
    Resource,
    ResourceKind,
    Stage,
    WorkloadResource,
    world_of,
)
from harch.sovereignty.tags import Classification, Tag


class Values(Struct, frozen=True):
    """The attributes of one resource, before or after, and the names of those that are not known yet."""

    address: str
    key: str
    values: dict[str, Any]
    unknown: frozenset[str]

    def strings(self, name: str) -> Names:
        found = self.values.get(name)
        return tuple(word for word in found if isinstance(word, str)) if isinstance(found, list) else ()

    def pairs(self, name: str) -> dict[str, str]:
        found = self.values.get(name)
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def marked(self, **fields: str) -> Names:
        """Which of our fields are unknown, given the attribute that each is read from."""
        return tuple(field for field, name in fields.items() if name in self.unknown)


class PlanReader(Struct, frozen=True):
    """`names` leads from `type:word` to a key, `references` from (address, attribute) to what it refers to."""

    jurisdictions: Jurisdictions
    names: dict[str, str]
    references: dict[tuple[str, str], str]
    hub_countries: dict[str, str]

    def hubs_in(self, region: str) -> Names:
        """The hubs of a region. One without hubs is a place that nobody knows, and is named as such."""
        country = self.jurisdictions.country(region)
        found = tuple(
            sorted(
                hub
                for hub, word in self.hub_countries.items()
                if word in self.jurisdictions.countries and self.jurisdictions.country(word) == country
            )
        )
        return found or (f"region {region}",)

    def key(self, type_: str, word: str) -> str:
        return self.names.get(f"{type_}:{word}", word)

    def hub(self, values: Values, name: str = "hub") -> str | None:
        return self._one(values, name, "hub")

    def _one(self, values: Values, name: str, type_: str) -> str | None:
        """The key that an attribute names; None if it is not known and no single reference tells."""
        word = values.values.get(name)
        if isinstance(word, str):
            return self.key(type_, word)
        target = self.references.get((values.address, name))
        return self.names.get(f"{type_}:{target}") if target is not None else None

    def many(self, values: Values, name: str, type_: str) -> tuple[Names, bool]:
        """The keys that a list names, and whether it is not fully known."""
        if name not in values.unknown:
            return tuple(self.key(type_, word) for word in values.strings(name)), False
        one = self._one(values, name, type_)
        return ((one,), False) if one is not None else ((), True)

    def countries(self, values: Values, name: str = "jurisdictions") -> tuple[str, ...] | None:
        """Country codes; None if the attribute is absent. Raises E0901 for a word that names no place."""
        if not isinstance(values.values.get(name), list):
            return None
        problems = Problems()
        found = self.jurisdictions.expand(values.strings(name), f"{values.address}.{name}", problems)
        if problems:
            raise HarchError("E0901", str(problems), hint="use ISO codes such as `MA`, or groups")
        return found


def _hub(reader: PlanReader, values: Values) -> Resource:
    word = values.values.get("country")
    country = reader.jurisdictions.country(word) if isinstance(word, str) else None
    in_force = reader.jurisdictions.frameworks_in(country) if country else ()
    return HubResource(
        id=values.key,
        country=country,
        frameworks=tuple(sorted({*in_force, *values.strings("frameworks")})),
        unknown=values.marked(country="country"),
    )


def _cluster(reader: PlanReader, values: Values) -> Resource:
    hub = reader.hub(values)
    unknown = [*(("hub",) if hub is None else ()), *values.marked(countries="jurisdictions")]
    return ClusterResource(id=values.key, hub=hub or "", countries=reader.countries(values), unknown=tuple(unknown))


def _node_pool(reader: PlanReader, values: Values) -> Resource:
    clusters, unknown = reader.many(values, "cluster_id", "gpu_cluster")
    word = values.values.get("cluster_id")
    cluster = reader.key("gpu_cluster", word) if isinstance(word, str) else (clusters or ("",))[0]
    return NodeResource(id=values.key, cluster=cluster, unknown=("cluster",) if unknown else ())


def _link(reader: PlanReader, values: Values) -> Resource:
    one, other = reader.hub(values, "hub_a"), reader.hub(values, "hub_b")
    unknown = [*(("ends",) if one is None or other is None else ()), *values.marked(transit="transit_countries")]
    return LinkResource(
        id=values.key,
        ends=(one or "", other or ""),
        transit=reader.countries(values, "transit_countries") or (),
        encrypted=values.values.get("encrypted") is True,
        unknown=tuple(unknown),
    )


def _dataset(reader: PlanReader, values: Values) -> Resource:
    """`may_transit` lets it cross borders, over whichever country; otherwise it stays inside one country's links."""
    countries = reader.countries(values)
    crosses = values.values.get("may_transit") is True
    tag = None
    if countries is not None:
        tag = Tag(
            process_in=countries,
            rest_in=countries,
            transit_in=tuple(reader.jurisdictions.countries) if crosses else countries,
            may_cross_borders=crosses,
            frameworks=(),
            classification=Classification.INTERNAL,
            encrypt_at_rest=False,
            encrypt_in_transit=False,
            key_in=countries,
        )
    region = values.values.get("region")
    hubs = reader.hubs_in(region) if isinstance(region, str) else ()
    at_unknown = "region" in values.unknown
    is_unknown = bool(values.unknown & {"jurisdictions", "may_transit"})
    unknown = [*(("tag",) if is_unknown else ()), *(("hubs",) if at_unknown else ())]
    labels = values.pairs("tags") if "tags" not in values.unknown else {}
    extra = ("labels",) if "tags" in values.unknown else ()
    return Dataset(id=values.key, tag=tag, hubs=hubs, labels=labels, unknown=(*unknown, *extra))


def _policy(reader: PlanReader, values: Values) -> Resource:
    crosses = values.values.get("may_cross_borders")
    return Policy(
        id=values.key,
        countries=reader.countries(values),
        frameworks=tuple(reader.jurisdictions.framework(word) for word in values.strings("frameworks")),
        may_cross_borders=crosses is not False,
        selector=values.pairs("selector"),
        enforced=values.values.get("mode") in (None, "enforce"),
        unknown=values.marked(
            countries="jurisdictions",
            may_cross_borders="may_cross_borders",
            selector="selector",
            enforced="mode",
            frameworks="frameworks",
        ),
    )


def _workload(reader: PlanReader, values: Values) -> Resource:
    clusters, where_unknown = reader.many(values, "cluster_id", "gpu_cluster")
    word = values.values.get("cluster_id")
    reads, reads_unknown = reader.many(values, "dataset_ids", "dataset")
    unknown = [*(("clusters",) if where_unknown else ()), *(("reads",) if reads_unknown else ())]
    named = (reader.key("gpu_cluster", word),) if isinstance(word, str) else clusters
    return WorkloadResource(id=values.key, reads=reads, clusters=named, unknown=tuple(unknown))


def _pipeline(reader: PlanReader, values: Values) -> Resource:
    reads, reads_unknown = reader.many(values, "dataset_ids", "dataset")
    listed = values.values.get("stages")
    stages = tuple(
        Stage(
            name=str(stage.get("name", "")),
            clusters=tuple(reader.key("gpu_cluster", str(word)) for word in stage.get("cluster_ids") or ()),
        )
        for stage in (listed if isinstance(listed, list) else ())
        if isinstance(stage, dict)
    )
    if "stages" in values.unknown:
        stages = tuple(Stage(name=stage.name) for stage in stages) or (Stage(name="?"), Stage(name="?"))
    return PipelineResource(id=values.key, reads=reads, stages=stages, unknown=("reads",) if reads_unknown else ())


READERS: dict[str, tuple[ResourceKind, Callable[[PlanReader, Values], Resource]]] = {
    "hub": (ResourceKind.HUB, _hub),
    "gpu_cluster": (ResourceKind.CLUSTER, _cluster),
    "node_pool": (ResourceKind.NODE, _node_pool),
    "network_link": (ResourceKind.LINK, _link),
    "dataset": (ResourceKind.DATASET, _dataset),
    "sovereignty_policy": (ResourceKind.POLICY, _policy),
    "workload": (ResourceKind.WORKLOAD, _workload),
    "pipeline": (ResourceKind.PIPELINE, _pipeline),
}


# What would this Terraform plan change? The JSON of `terraform show -json` as a world and its pending changes.
#
# Major version 1 is read and unknown keys are ignored, as Terraform asks of its readers. Types that have no say in
# where
# data goes are passed over. What `after_unknown` marks stays unknown, unless the configuration refers to one resource.


FORMAT_MAJOR = "1"
PROVIDER_PREFIX = "harchos_"
_HINT = "write it with `terraform show -json plan.tfplan > plan.json`"


def read_plan(
    raw: object, jurisdictions: Jurisdictions, around: ProofWorld | None = None
) -> tuple[ProofWorld, tuple[PendingChange, ...]]:
    """The plan's world, inside of the world `around` it if that is known, and the changes to it. Raises E0201."""
    if not isinstance(raw, Mapping):
        raise HarchError("E0201", "a plan is a JSON object", hint=_HINT)
    version = str(raw.get("format_version", ""))
    if version.split(".")[0] != FORMAT_MAJOR:
        raise HarchError("E0201", f"the plan has format `{version[:16]}`; major version 1 is understood", hint=_HINT)
    listed = raw.get("resource_changes", [])
    if not isinstance(listed, list) or len(listed) > CHANGES_MAX:
        raise HarchError("E0201", f"`resource_changes` must be a list of at most {CHANGES_MAX}", hint=_HINT)
    entries = [entry for entry in listed if _is_ours(entry)]
    reader = PlanReader(
        jurisdictions, _names(entries), _references(raw.get("configuration")), _hub_countries(entries, around)
    )
    before: list[Resource] = [one for found in around.resources.values() for one in found.values()] if around else []
    changes: list[PendingChange] = []
    for entry in entries:
        change = entry.get("change") or {}
        actions = tuple(change.get("actions") or ())
        old = _read(reader, entry, change.get("before"), {})
        if old is not None:
            before.append(old[1])
        if not set(actions) & {"create", "update", "delete", "forget"}:
            continue
        new = _read(reader, entry, change.get("after"), change.get("after_unknown"))
        found = _change(entry["address"], actions, old, new)
        if found is not None:
            changes.append(found)
    return world_of(*before, declassified=around.declassified if around else None), tuple(changes)


def _is_ours(entry: object) -> bool:
    return (
        isinstance(entry, Mapping)
        and entry.get("mode", "managed") == "managed"
        and isinstance(entry.get("address"), str)
        and str(entry.get("type", "")).removeprefix(PROVIDER_PREFIX) in READERS
    )


def _change(
    address: str,
    actions: tuple[str, ...],
    old: tuple[ResourceKind, Resource] | None,
    new: tuple[ResourceKind, Resource] | None,
) -> PendingChange | None:
    kind, after = new or (None, None)
    if kind is None:
        if old is None:
            return None
        kind = old[0]
    key = after.id if after is not None else old[1].id if old is not None else address
    is_replaced = "delete" in actions and "create" in actions
    if old is not None and old[1] == after and not is_replaced:
        return None  # what changes has no say in where data goes
    # Which of the two comes first is Terraform's business; being gone in between is the case that must be looked at.
    passes: tuple[Resource | None, ...] = (None, after) if is_replaced else (after,)
    return PendingChange(id=address, kind=kind, key=key, passes=passes, label=f"{' and '.join(actions)} {address}")


def _read(reader: PlanReader, entry: Any, values: object, unknown: object) -> tuple[ResourceKind, Resource] | None:
    if not isinstance(values, Mapping):
        return None
    kind, read = READERS[str(entry["type"]).removeprefix(PROVIDER_PREFIX)]
    marked = {str(name) for name, mark in unknown.items() if _has_true(mark)} if isinstance(unknown, Mapping) else set()
    return kind, read(reader, Values(str(entry["address"]), _key(entry), dict(values), frozenset(marked)))


def _key(entry: Mapping[str, Any]) -> str:
    """The id that the provider gave it, so that it is the same resource as in a state document; else its address."""
    change = entry.get("change") or {}
    for values in (change.get("before"), change.get("after")):
        if isinstance(values, Mapping) and isinstance(values.get("id"), str):
            return str(values["id"])
    return str(entry["address"])


def _hub_countries(entries: Sequence[Mapping[str, Any]], around: ProofWorld | None) -> dict[str, str]:
    """Hubs and the country words that they have or will have."""
    found = {
        key: hub.country
        for key, hub in (around.of(ResourceKind.HUB).items() if around else ())
        if isinstance(hub, HubResource) and hub.country is not None
    }
    for entry in entries:
        change = entry.get("change") or {}
        for values in (change.get("before"), change.get("after")):
            if entry["type"] == f"{PROVIDER_PREFIX}hub" and isinstance(values, Mapping):
                found[_key(entry)] = str(values.get("country"))
    return found


def _has_true(mark: object) -> bool:
    """Marks are nested like the value; one true inside makes the whole attribute unknown to us."""
    if isinstance(mark, Mapping):
        return any(_has_true(inner) for inner in mark.values())
    if isinstance(mark, list):
        return any(_has_true(inner) for inner in mark)
    return mark is True


def _names(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Every word by which a resource may be referred to (id, name, address), to the key that it has here.

    A word that two resources of one type share names neither, because guessing would prove something else.
    """
    found: dict[str, str] = {}
    twice: set[str] = set()
    for entry in entries:
        change = entry.get("change") or {}
        address, key = str(entry["address"]), _key(entry)
        type_ = str(entry["type"]).removeprefix(PROVIDER_PREFIX)
        for values in (change.get("before"), change.get("after")):
            if isinstance(values, Mapping):
                words = {word for word in (values.get("id"), values.get("name"), address) if isinstance(word, str)}
                twice.update(f"{type_}:{word}" for word in words if found.setdefault(f"{type_}:{word}", key) != key)
    return {word: key for word, key in found.items() if word not in twice}


def _references(configuration: object) -> dict[tuple[str, str], str]:
    """(address, attribute) to the one resource that its expression refers to. Only the root module is read."""
    root = configuration.get("root_module") if isinstance(configuration, Mapping) else None
    listed = root.get("resources") if isinstance(root, Mapping) else None
    found: dict[tuple[str, str], str] = {}
    for resource in listed if isinstance(listed, list) else ():
        if isinstance(resource, Mapping) and isinstance(resource.get("expressions"), Mapping):
            for name, expression in resource["expressions"].items():
                targets = set(_resources_in(expression))
                if len(targets) == 1:
                    found[str(resource.get("address")), str(name)] = targets.pop()
    return found


def _resources_in(expression: object) -> Iterator[str]:
    """The shortest form of each reference: Terraform lists `type.name.id` and `type.name`."""
    references = expression.get("references") if isinstance(expression, Mapping) else None
    for word in references if isinstance(references, list) else ():
        parts = str(word).split(".")
        if parts[0].startswith(PROVIDER_PREFIX):
            yield ".".join(parts[:2])
        elif parts[0] not in ("path", "terraform"):
            yield str(word)  # a variable or `each.key`: together with a resource it does not name one
