"""What does each Terraform type mean for a proof? One small reader per type that has a say in where data goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from harch.base.errors import HarchError, Problems
from harch.sovereignty.jurisdictions import Jurisdictions
from harch.sovereignty.proof.model import (
    Cluster,
    Dataset,
    Hub,
    Kind,
    Link,
    Names,
    Node,
    Pipeline,
    Policy,
    Resource,
    Stage,
    Workload,
)
from harch.sovereignty.tags import Classification, Tag


class Values(Struct, frozen=True):
    """The attributes of one resource, before or after, and the names of those that are not known yet."""

    address: str
    key: str
    values: dict[str, Any]
    unknown: frozenset[str]

    def texts(self, name: str) -> Names:
        found = self.values.get(name)
        return tuple(word for word in found if isinstance(word, str)) if isinstance(found, list) else ()

    def pairs(self, name: str) -> dict[str, str]:
        found = self.values.get(name)
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def marked(self, **fields: str) -> Names:
        """Which of our fields are unknown, given the attribute that each is read from."""
        return tuple(field for field, name in fields.items() if name in self.unknown)


class Reader(Struct, frozen=True):
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
            return tuple(self.key(type_, word) for word in values.texts(name)), False
        one = self._one(values, name, type_)
        return ((one,), False) if one is not None else ((), True)

    def countries(self, values: Values, name: str = "jurisdictions") -> tuple[str, ...] | None:
        """Country codes; None if the attribute is absent. Raises E0901 for a word that names no place."""
        if not isinstance(values.values.get(name), list):
            return None
        problems = Problems()
        found = self.jurisdictions.expand(values.texts(name), f"{values.address}.{name}", problems)
        if problems:
            raise HarchError("E0901", str(problems), hint="use ISO codes such as `MA`, or groups")
        return found


def _hub(reader: Reader, values: Values) -> Resource:
    word = values.values.get("country")
    country = reader.jurisdictions.country(word) if isinstance(word, str) else None
    in_force = reader.jurisdictions.frameworks_in(country) if country else ()
    return Hub(
        id=values.key,
        country=country,
        frameworks=tuple(sorted({*in_force, *values.texts("frameworks")})),
        unknown=values.marked(country="country"),
    )


def _cluster(reader: Reader, values: Values) -> Resource:
    hub = reader.hub(values)
    unknown = [*(("hub",) if hub is None else ()), *values.marked(countries="jurisdictions")]
    return Cluster(id=values.key, hub=hub or "", countries=reader.countries(values), unknown=tuple(unknown))


def _node_pool(reader: Reader, values: Values) -> Resource:
    clusters, unknown = reader.many(values, "cluster_id", "gpu_cluster")
    word = values.values.get("cluster_id")
    cluster = reader.key("gpu_cluster", word) if isinstance(word, str) else (clusters or ("",))[0]
    return Node(id=values.key, cluster=cluster, unknown=("cluster",) if unknown else ())


def _link(reader: Reader, values: Values) -> Resource:
    one, other = reader.hub(values, "hub_a"), reader.hub(values, "hub_b")
    unknown = [*(("ends",) if one is None or other is None else ()), *values.marked(transit="transit_countries")]
    return Link(
        id=values.key,
        ends=(one or "", other or ""),
        transit=reader.countries(values, "transit_countries") or (),
        encrypted=values.values.get("encrypted") is True,
        unknown=tuple(unknown),
    )


def _dataset(reader: Reader, values: Values) -> Resource:
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


def _policy(reader: Reader, values: Values) -> Resource:
    crosses = values.values.get("may_cross_borders")
    return Policy(
        id=values.key,
        countries=reader.countries(values),
        frameworks=tuple(reader.jurisdictions.framework(word) for word in values.texts("frameworks")),
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


def _workload(reader: Reader, values: Values) -> Resource:
    clusters, where_unknown = reader.many(values, "cluster_id", "gpu_cluster")
    word = values.values.get("cluster_id")
    reads, reads_unknown = reader.many(values, "dataset_ids", "dataset")
    unknown = [*(("clusters",) if where_unknown else ()), *(("reads",) if reads_unknown else ())]
    named = (reader.key("gpu_cluster", word),) if isinstance(word, str) else clusters
    return Workload(id=values.key, reads=reads, clusters=named, unknown=tuple(unknown))


def _pipeline(reader: Reader, values: Values) -> Resource:
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
    return Pipeline(id=values.key, reads=reads, stages=stages, unknown=("reads",) if reads_unknown else ())


READERS: dict[str, tuple[Kind, Callable[[Reader, Values], Resource]]] = {
    "hub": (Kind.HUB, _hub),
    "gpu_cluster": (Kind.CLUSTER, _cluster),
    "node_pool": (Kind.NODE, _node_pool),
    "network_link": (Kind.LINK, _link),
    "dataset": (Kind.DATASET, _dataset),
    "sovereignty_policy": (Kind.POLICY, _policy),
    "workload": (Kind.WORKLOAD, _workload),
    "pipeline": (Kind.PIPELINE, _pipeline),
}
