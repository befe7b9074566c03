"""Is that really a violation? The definitions once more, plainly: one world, every step, every simple path.

Shares nothing with the proof but the types: no hulls, no masks, no blocks of graphs, no rules of `harch.sovereignty`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, permutations

from harch.sovereignty.proof.model import PendingChange, ProofWorld, Resource, ResourceKind

Happening = tuple[str, str, str, str, str, str, str]  # kind, actor, data, hub, cluster, source, link
Resources = dict[ResourceKind, dict[str, Resource]]


def every_state(world: ProofWorld, changes: tuple[PendingChange, ...]) -> Iterator[Resources]:
    """The world after every prefix of every order of the changes, stage by stage. For a handful of changes only."""
    passes = [(change, index) for change in changes for index in range(len(change.passes))]
    seen = set()
    for order in permutations(range(len(passes))):
        taken = [passes[number] for number in order]
        if any(
            taken.index((change, index)) < taken.index(earlier)
            for change, index in passes
            for earlier in passes[: passes.index((change, index))]
            if (earlier[0].kind, earlier[0].key) == (change.kind, change.key)
        ):
            continue  # changes of one resource keep their order
        for length in range(len(order) + 1):
            prefix = frozenset(order[:length])
            if prefix not in seen:
                seen.add(prefix)
                yield apply(world, [passes[number] for number in sorted(prefix)])


def apply(world: ProofWorld, taken: list[tuple[PendingChange, int]]) -> Resources:
    now = {kind: dict(world.of(kind)) for kind in ResourceKind}
    for change, index in taken:
        after = change.passes[index]
        if after is None:
            now[change.kind].pop(change.key, None)
        else:
            now[change.kind][change.key] = after
    return now


def scenarios(now: Resources) -> list[frozenset[str]]:
    down = frozenset(hub.id for hub in now[ResourceKind.HUB].values() if hub.failed)
    bases = {frozenset(), down}
    return sorted(
        {base | more for base in bases for more in [frozenset(), *(frozenset({h}) for h in now[ResourceKind.HUB])]},
        key=sorted,
    )


class Oracle:
    def __init__(self, world: ProofWorld, now: Resources, failed: frozenset[str], absent: frozenset[str]) -> None:
        self.world, self.now, self.failed, self.absent = world, now, failed, absent
        self.hubs = now[ResourceKind.HUB]

    def happenings(self) -> set[Happening]:
        return {*self.work(), *self.pipelines(), *self.copies(), *self.exports()}

    # what binds data

    def bound(self, data: str, resources: Resources) -> dict[str, object] | None:
        dataset = resources[ResourceKind.DATASET].get(data)
        if dataset is None or dataset.tag is None:
            return None
        tag = dataset.tag
        rule: dict[str, object] = {
            "process": set(tag.process_in),
            "rest": set(tag.rest_in),
            "transit": set(tag.transit_in),
            "cross": tag.may_cross_borders,
            "laws": set(tag.frameworks),
            "restricted": tag.classification == "restricted",
            "lock": tag.encrypt_at_rest,
            "wire": tag.encrypt_in_transit,
            "keys": set(tag.key_in),
        }
        for policy in resources[ResourceKind.POLICY].values():
            if policy.enforced and set(policy.selector.items()) <= set(dataset.labels.items()):
                if policy.countries is not None:
                    rule["process"] &= set(policy.countries)
                    rule["rest"] &= set(policy.countries)
                    if not policy.may_cross_borders:
                        rule["transit"] &= set(policy.countries)
                rule["cross"] = rule["cross"] and policy.may_cross_borders
                rule["laws"] |= set(policy.frameworks)
        return rule

    def read(self, data: str) -> dict[str, object] | None:
        return self.bound(data, self.now)

    def true(self, data: str) -> dict[str, object] | None:
        now = self.read(data)
        if now is None:
            return None
        if data in self.world.declassified:
            tag = self.world.declassified[data]
            floor = Oracle(
                self.world,
                {
                    **{kind: {} for kind in ResourceKind},
                    ResourceKind.DATASET: {data: type(self.now[ResourceKind.DATASET][data])(id=data, tag=tag)},
                },
                frozenset(),
                frozenset(),
            ).read(data)
        else:
            floor = self.bound(data, self.world.resources)
        return now if floor is None else both(now, floor)

    # places

    def at(self, rule: dict[str, object] | None, field: tuple[str, ...], place: dict[str, object] | None) -> bool:
        if rule is None or place is None:
            return False
        if place["country"] not in set().union(*(rule[name] for name in field)):
            return False
        if not rule["laws"] <= place["laws"]:
            return False
        return not rule["lock"] or (place["locks"] and bool(rule["keys"] & place["keys"]))

    def forbids(self, rule: dict[str, object] | None, field: tuple[str, ...], hub: str) -> bool:
        return hub not in self.absent and not self.at(rule, field, self.hub(hub))

    def hub(self, key: str) -> dict[str, object] | None:
        hub = self.hubs.get(key)
        if hub is None:
            return None
        return {
            "country": hub.country,
            "laws": set(hub.frameworks),
            "locks": hub.encrypts_at_rest,
            "keys": set(hub.keys_in),
        }

    def declared(self, cluster: Resource) -> list[dict[str, object]]:
        hub = self.hub(cluster.hub)
        if hub is None:
            if cluster.hub in self.absent or cluster.countries is None:
                return []
            hub = {"country": None, "laws": set(), "locks": False, "keys": set()}  # believed, though nobody knows it
        laws = hub["laws"] if cluster.frameworks is None else set(cluster.frameworks)
        countries = [hub["country"]] if cluster.countries is None else cluster.countries
        return [{**hub, "laws": laws, "country": country} for country in countries]

    def places(self, cluster: Resource) -> set[str]:
        moved = {n.hub for n in self.now[ResourceKind.NODE].values() if n.cluster == cluster.id and n.hub is not None}
        return {cluster.hub, *moved}

    def admits(self, reads: tuple[str, ...], cluster: Resource) -> bool:
        declared = self.declared(cluster)
        return bool(declared) and all(
            any(self.at(self.read(data), ("process",), place) for place in declared) for data in reads
        )

    # ways

    def crossed(self, link: Resource, transit: tuple[str, ...]) -> set[str]:
        ends = [self.hubs[end].country if end in self.hubs else None for end in link.ends]
        return set() if None in ends else {*ends, *transit}

    def takes(self, rule: dict[str, object] | None, link: Resource, *, truly: bool) -> bool:
        if rule is None:
            return False
        transit = link.transit_true if truly and link.transit_true is not None else link.transit
        crossed = self.crossed(link, transit)
        return (
            bool(crossed)
            and crossed <= rule["transit"]
            and (rule["cross"] or len(crossed) == 1)
            and (link.encrypted or not rule["wire"])
        )

    def ways(self, rule: dict[str, object] | None, source: str, target: str) -> Iterator[list[Resource]]:
        def go(here: str, seen: set[str], way: list[Resource]) -> Iterator[list[Resource]]:
            if here == target:
                yield list(way)
                return
            for link in self.now[ResourceKind.LINK].values():
                if here in link.ends and not set(link.ends) & self.failed and self.takes(rule, link, truly=False):
                    there = link.ends[1] if link.ends[0] == here else link.ends[0]
                    if there not in seen:
                        yield from go(there, {*seen, there}, [*way, link])

        if source != target:
            yield from go(source, {source}, [])

    def wrong(
        self, read: dict[str, object] | None, true: dict[str, object] | None, source: str, target: str
    ) -> set[str]:
        return {
            link.id for way in self.ways(read, source, target) for link in way if not self.takes(true, link, truly=True)
        }

    def pinned(self, true: dict[str, object] | None, via: tuple[str, ...]) -> set[str]:
        links = self.now[ResourceKind.LINK]
        if any(key not in links for key in via):
            return set()
        return {
            key
            for key in via
            if not set(links[key].ends) & self.absent and not self.takes(true, links[key], truly=True)
        }

    # what can happen

    def work(self) -> Iterator[Happening]:
        clusters = self.now[ResourceKind.CLUSTER]
        for work in self.now[ResourceKind.WORKLOAD].values():
            if work.clusters:
                start = {clusters[key].hub for key in work.clusters if key in clusters}
            else:
                start = set(work.hubs) or set(self.hubs)
            spilled: set[str] = set()
            for _ in range(len(self.now[ResourceKind.OVERFLOW]) + 1):
                for spill in self.now[ResourceKind.OVERFLOW].values():
                    is_active = (spill.source in self.failed) == spill.only_on_failure
                    if spill.source in start | spilled and is_active and spill.target not in self.failed:
                        spilled.add(spill.target)
            for cluster in clusters.values():
                lost = not work.hubs and cluster.hub not in self.hubs and cluster.hub not in self.absent
                direct = cluster.id in work.clusters if work.clusters else cluster.hub in start or lost
                if not direct and cluster.hub not in spilled:
                    continue
                declared = self.declared(cluster)
                if work.countries is not None and not any(p["country"] in work.countries for p in declared):
                    continue
                if not self.admits(work.reads, cluster):
                    continue
                kind = "placement" if direct else "spill_over"
                for hub in self.places(cluster) - self.failed - self.absent:
                    place = self.hub(hub)
                    if work.countries is not None and (place is None or place["country"] not in work.countries):
                        yield kind, work.id, "", hub, cluster.id, "", ""
                    for data in work.reads:
                        if self.forbids(self.true(data), ("process",), hub):
                            yield kind, work.id, data, hub, cluster.id, "", ""
                        dataset = self.now[ResourceKind.DATASET].get(data)
                        for source in set(dataset.hubs if dataset else ()) - self.failed - {hub}:
                            for link in self.wrong(self.read(data), self.true(data), source, hub):
                                yield "route", work.id, data, hub, cluster.id, source, link

    def pipelines(self) -> Iterator[Happening]:
        for pipe in self.now[ResourceKind.PIPELINE].values():
            if not pipe.reads or set(pipe.reads) & self.absent:
                continue
            read = join_all([self.read(data) for data in pipe.reads])
            true = join_all([self.true(data) for data in pipe.reads])
            first = pipe.reads[0]
            hubs = []
            for stage in pipe.stages:
                at = set()
                for cluster in self.now[ResourceKind.CLUSTER].values():
                    if (not stage.clusters or cluster.id in stage.clusters) and self.admits(pipe.reads, cluster):
                        at |= self.places(cluster)
                        for hub in self.places(cluster):
                            for data in pipe.reads:
                                if self.forbids(self.true(data), ("process",), hub):
                                    yield "placement", pipe.id, data, hub, cluster.id, "", ""
                hubs.append(at)
            moves = [(a, b) for left, right in pairwise(hubs) for a in left for b in right]
            for source, target in [*moves, *((flow.source, flow.target) for flow in pipe.flows)]:
                for link in self.wrong(read, true, source, target):
                    yield "pipeline_edge", pipe.id, first, target, "", source, link
            for flow in pipe.flows:
                for link in self.pinned(true, flow.via):
                    yield "pipeline_edge", pipe.id, first, flow.target, "", flow.source, link
                if self.forbids(true, ("process", "rest"), flow.target):
                    yield "pipeline_edge", pipe.id, first, flow.target, "", flow.source, ""

    def copies(self) -> Iterator[Happening]:
        for dataset in self.now[ResourceKind.DATASET].values():
            key, read, true = dataset.id, self.read(dataset.id), self.true(dataset.id)
            for hub in dataset.hubs:
                if self.forbids(true, ("rest",), hub):
                    yield "replica", key, key, hub, "", "", ""
            moves = [(flow.source, flow.target) for flow in dataset.flows]
            moves += [(dataset.hubs[0], hub) for hub in dataset.hubs[1:]]
            for source, target in moves:
                for link in self.wrong(read, true, source, target):
                    yield "route", key, key, target, "", source, link
            for flow in dataset.flows:
                for link in self.pinned(true, flow.via):
                    yield "route", key, key, flow.target, "", flow.source, link
                if flow.target not in dataset.hubs and self.forbids(true, ("process", "rest"), flow.target):
                    yield "replica", key, key, flow.target, "", flow.source, ""
            if self.failed & set(dataset.hubs):
                for spare in set(dataset.spares) - self.failed:
                    if self.forbids(true, ("rest",), spare):
                        yield "replica", key, key, spare, "", "", ""
                    for source in set(dataset.hubs) - self.failed - {spare}:
                        for link in self.wrong(read, true, source, spare):
                            yield "route", key, key, spare, "", source, link

    def exports(self) -> Iterator[Happening]:
        for export in self.now[ResourceKind.EXPORT].values():
            for data in set(export.data) - self.absent:
                true = self.true(data)
                if export.target is None:
                    yield "telemetry_export", export.id, data, "", "", export.source, ""
                    continue
                place = self.hub(export.target)
                seen = export.target in self.absent or (
                    true is not None
                    and place is not None
                    and place["country"] in true["process"]
                    and true["laws"] <= place["laws"]
                    and not (true["restricted"] and export.source != export.target)
                )
                if not seen:
                    yield "telemetry_export", export.id, data, export.target, "", export.source, ""
                for link in self.wrong(self.read(data), true, export.source, export.target):
                    yield "route", export.id, data, export.target, "", export.source, link


def both(one: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    """What both permit."""
    shared = {name: one[name] & other[name] for name in ("process", "rest", "transit", "keys")}
    either = {name: one[name] or other[name] for name in ("restricted", "lock", "wire")}
    return {**shared, **either, "cross": one["cross"] and other["cross"], "laws": one["laws"] | other["laws"]}


def join_all(rules: list[dict[str, object] | None]) -> dict[str, object] | None:
    found = rules[0]
    for rule in rules[1:]:
        found = None if found is None or rule is None else both(found, rule)
    return found


def brute_force(world: ProofWorld, changes: tuple[PendingChange, ...]) -> set[Happening]:
    """Every happening in any state that any order of the changes passes through, under any failure."""
    return {
        happening
        for now in every_state(world, changes)
        for failed in scenarios(now)
        for happening in Oracle(world, now, failed, absent_now(world, changes, now)).happenings()
    }


def absent_now(world: ProofWorld, changes: tuple[PendingChange, ...], now: Resources) -> frozenset[str]:
    """Hubs and data that are known and not there at this moment: nothing happens at or with them."""
    kinds = (ResourceKind.HUB, ResourceKind.DATASET)
    known = {(kind, key) for kind in kinds for key in world.of(kind)}
    known |= {(change.kind, change.key) for change in changes if change.kind in kinds}
    return frozenset(key for kind, key in known if key not in now[kind])
