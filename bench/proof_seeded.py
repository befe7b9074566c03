"""What does a fleet of 2,000 resources look like, and what can be wrong with it? A clean world, and seeded violations.

Every seed is one mistake that people make, hidden among harmless pending changes, with the step that it must lead to.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from harch.sovereignty.proof.model import (
    ClusterResource,
    Dataset,
    Export,
    FlowResource,
    HubResource,
    LinkResource,
    NodeResource,
    Overflow,
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
from harch.sovereignty.proof.steps import ProofStep
from harch.sovereignty.tags import Classification, Tag

HUBS = {"dakhla": "MA", "tangier": "MA", "casablanca": "MA", "dakar": "SN", "abidjan": "CI"}
LINKS = {
    ("tangier", "casablanca"): (),
    ("dakhla", "casablanca"): (),
    ("dakhla", "tangier"): (),
    ("dakhla", "dakar"): ("MR",),
    ("dakar", "abidjan"): (),
    ("casablanca", "dakar"): ("MR",),
    ("tangier", "dakar"): ("MR",),
    ("dakhla", "abidjan"): ("MR", "SN"),
    ("casablanca", "abidjan"): ("MR", "SN"),
    ("tangier", "abidjan"): ("MR", "SN"),
}
RESOURCES = 2_000
COUNTS = {"cluster": 150, "node": 520, "dataset": 400, "policy": 20, "pipeline": 70, "export": 56, "spill": 9}


class Seed(NamedTuple):
    kind: str
    world: ProofWorld
    changes: tuple[PendingChange, ...]
    is_it: Callable[[ProofStep], bool]  # whether a step is what was seeded
    needs: frozenset[str]  # the changes that the story has to name, no more and no less


def clean_world(seed: int = 0, size: int = RESOURCES) -> ProofWorld:
    """Everything stands where it says, and every order that is written down is allowed."""
    draw = random.Random(seed)
    scale = size / RESOURCES
    count = {name: max(10, round(most * scale)) for name, most in COUNTS.items()} | {"policy": COUNTS["policy"]}
    resources: list[Resource] = [
        HubResource(id=hub, country=country, frameworks=("law",), encrypts_at_rest=True, keys_in=("CI", "MA", "SN"))
        for hub, country in HUBS.items()
    ]
    resources += [LinkResource(id="-".join(ends), ends=ends, transit=t, encrypted=True) for ends, t in LINKS.items()]
    hubs = list(HUBS)
    clusters = [
        ClusterResource(id=f"cluster-{n}", hub=hubs[n % 5], countries=(HUBS[hubs[n % 5]],) if n % 3 else None)
        for n in range(count["cluster"])
    ]
    resources += clusters
    resources += [NodeResource(id=f"node-{n}", cluster=f"cluster-{n % len(clusters)}") for n in range(count["node"])]
    datasets = [_dataset(draw, n) for n in range(count["dataset"])]
    resources += datasets
    # Pairs of policies that say the same of the same data: each could go, but not both.
    resources += [
        Policy(id=f"policy-{n}", countries=("MA",), may_cross_borders=False, selector={"group": f"g{n // 2}"})
        for n in range(count["policy"])
    ]
    resources += [
        Overflow(id=f"spill-{n}", source=hubs[n % 5], target=hubs[(n + 1 + n // 5) % 5], only_on_failure=n % 2 == 0)
        for n in range(count["spill"])
    ]
    for n in range(count["pipeline"]):
        source = datasets[(n * 5) % len(datasets)]
        homes = _homes(source)
        mine = [cluster.id for cluster in clusters if cluster.hub in homes][:6]
        stages = (Stage(name="sense", clusters=tuple(mine[:3])), Stage(name="act", clusters=tuple(mine[3:])))
        flows = (
            (FlowResource(source="casablanca", target="dakhla", via=("dakhla-casablanca",)),)
            if homes[0] == "dakhla"
            else ()
        )
        resources.append(PipelineResource(id=f"pipeline-{n}", reads=(source.id,), stages=stages, flows=flows))
    for n in range(count["export"]):
        source = datasets[(n * 7) % len(datasets)]
        home = _homes(source)[0]
        resources.append(Export(id=f"export-{n}", data=(source.id,), source=home, target=home))
    for n in range(size - len(resources)):
        reads = tuple({datasets[(n * 3) % len(datasets)].id, datasets[(n * 3 + 5 * (n % 2)) % len(datasets)].id})
        where = draw.sample(hubs, 2)
        resources.append(WorkloadResource(id=f"work-{n}", reads=reads, hubs=tuple(where)))
    return world_of(*resources)


def harmless_changes(world: ProofWorld, seed: int, most: int = 12) -> list[PendingChange]:
    """Pending changes that break nothing in any combination: more capacity, less, more work, tighter rules."""
    draw = random.Random(f"harmless {seed}")
    changes: list[PendingChange] = []
    for n in range(most):
        match n % 4:
            case 0:
                hub = draw.choice(list(HUBS))
                new = ClusterResource(id=f"new-cluster-{n}", hub=hub, countries=(HUBS[hub],))
                changes.append(_change(f"more-{n}", ResourceKind.CLUSTER, new.id, new))
            case 1:
                changes.append(
                    _change(f"less-{n}", ResourceKind.NODE, draw.choice(list(world.of(ResourceKind.NODE))), None)
                )
            case 2:
                work = WorkloadResource(id=f"new-work-{n}", reads=(draw.choice(list(world.of(ResourceKind.DATASET))),))
                changes.append(_change(f"work-{n}", ResourceKind.WORKLOAD, work.id, work))
            case _:
                rule = Policy(id=f"new-policy-{n}", frameworks=("law",))
                changes.append(_change(f"tighter-{n}", ResourceKind.POLICY, rule.id, rule))
    return changes


def seeded(world: ProofWorld, seed: int) -> Seed:
    """The violation number `seed`; the kinds take turns."""
    kind = list(KINDS)[seed % len(KINDS)]
    draw = random.Random(f"{kind} {seed}")
    found = KINDS[kind](draw, world)
    changes = [*harmless_changes(world, seed, draw.randint(0, 12)), *found.changes]
    draw.shuffle(changes)
    return found._replace(changes=tuple(changes), kind=kind)


def _dataset(draw: random.Random, number: int) -> Dataset:
    country = ("MA", "MA", "SN", "CI", "MA")[number % 5]
    wide = number % 5 == 4  # loose by its own tag, and narrowed to MA by two policies
    tag = Tag(
        process_in=("MA", "SN") if wide else (country,),
        rest_in=("MA", "SN") if wide else (country,),
        transit_in=("MR",) if wide else (),
        may_cross_borders=wide,
        frameworks=("law",),
        classification=Classification.RESTRICTED if number % 2 else Classification.INTERNAL,
        encrypt_at_rest=True,
        encrypt_in_transit=True,
        key_in=(country,),
    )
    homes = [hub for hub, where in HUBS.items() if where == country]
    labels = {"group": f"g{number % 10}"} if wide else {"group": "none"}
    return Dataset(id=f"data-{number}", tag=tag, hubs=tuple(draw.sample(homes, min(len(homes), 2))), labels=labels)


def _homes(dataset: Dataset) -> list[str]:
    country = HUBS[dataset.hubs[0]]
    return [hub for hub, where in HUBS.items() if where == country]


def _change(name: str, kind: ResourceKind, key: str, *passes: Resource | None) -> PendingChange:
    return PendingChange(id=name, kind=kind, key=key, passes=passes, label=f"{name} of {kind} {key}")


def _moroccan(draw: random.Random, world: ProofWorld) -> Dataset:
    """Data of Morocco by its own tag."""
    return draw.choice([d for d in world.of(ResourceKind.DATASET).values() if d.tag.process_in == ("MA",)])


def _reader(draw: random.Random, data: Dataset, **where: tuple[str, ...]) -> tuple[WorkloadResource, PendingChange]:
    work = WorkloadResource(id=f"seeded-work-{draw.randint(0, 10**6)}", reads=(data.id,), **where)
    return work, _change("seeded-work", ResourceKind.WORKLOAD, work.id, work)


def _mistagged_cluster(draw: random.Random, world: ProofWorld) -> Seed:
    old = draw.choice([c for c in world.of(ResourceKind.CLUSTER).values() if c.hub in ("dakar", "abidjan")])
    change = _change("seeded", ResourceKind.CLUSTER, old.id, replace(old, countries=("MA",)))
    _, add = _reader(draw, _moroccan(draw, world), clusters=(old.id,))
    return Seed(
        "", world, (change, add), lambda s: s.kind == "placement" and s.cluster == old.id, frozenset({"seeded"})
    )


def _moved_gpu(draw: random.Random, world: ProofWorld) -> Seed:
    old = draw.choice(
        [
            n
            for n in world.of(ResourceKind.NODE).values()
            if world.of(ResourceKind.CLUSTER)[n.cluster].hub == "casablanca"
        ]
    )
    hub = draw.choice(["dakar", "abidjan"])
    change = _change("seeded", ResourceKind.NODE, old.id, replace(old, hub=hub))
    _, add = _reader(draw, _moroccan(draw, world), clusters=(old.cluster,))

    def is_it(step: ProofStep) -> bool:
        return step.kind == "placement" and step.cluster == old.cluster and step.hub == hub

    return Seed("", world, (change, add), is_it, frozenset({"seeded"}))


def _rerouted_link(draw: random.Random, world: ProofWorld) -> Seed:
    """Either the fibre goes elsewhere and a standing flow stays on it, or it never went where it says it goes."""
    old = world.of(ResourceKind.LINK)["dakhla-casablanca"]
    if draw.random() < 0.5:
        change = _change("seeded", ResourceKind.LINK, old.id, replace(old, transit=("ES",)))
    else:
        change = _change("seeded", ResourceKind.LINK, old.id, replace(old, transit_true=("ES",)))
    return Seed("", world, (change,), lambda s: s.link == old.id, frozenset({"seeded"}))


def _loosened_policy(draw: random.Random, world: ProofWorld) -> Seed:
    """Two policies hold the same data back; each may go alone, both together let it out."""
    pair = draw.choice([8, 18])  # the groups g4 and g9 have data
    names = f"policy-{pair}", f"policy-{pair + 1}"
    fates = [draw.choice([None, "wider", "off"]) for _ in names]
    changes = []
    for number, (name, fate) in enumerate(zip(names, fates, strict=True)):
        old = world.of(ResourceKind.POLICY)[name]
        after = {
            None: None,
            "wider": replace(old, countries=("MA", "SN"), may_cross_borders=True),
            "off": replace(old, enforced=False),
        }[fate]
        changes.append(_change(f"seeded-{number}", ResourceKind.POLICY, name, after))
    group = f"g{pair // 2}"
    held = {d.id for d in world.of(ResourceKind.DATASET).values() if d.labels.get("group") == group}
    return Seed("", world, tuple(changes), lambda s: s.data in held, frozenset({"seeded-0", "seeded-1"}))


def _wrong_replica(draw: random.Random, world: ProofWorld) -> Seed:
    old = _moroccan(draw, world)
    hub = draw.choice(["dakar", "abidjan"])
    change = _change("seeded", ResourceKind.DATASET, old.id, replace(old, hubs=(*old.hubs, hub)))
    return Seed(
        "",
        world,
        (change,),
        lambda s: s.kind == "replica" and s.data == old.id and s.hub == hub,
        frozenset({"seeded"}),
    )


def _export(draw: random.Random, world: ProofWorld) -> Seed:
    data = _moroccan(draw, world)
    target = draw.choice(["dakar", "abidjan", None])
    new = Export(id="seeded-export", data=(data.id,), source=data.hubs[0], target=target)
    change = _change("seeded", ResourceKind.EXPORT, new.id, new)
    return Seed(
        "", world, (change,), lambda s: s.kind == "telemetry_export" and s.actor == new.id, frozenset({"seeded"})
    )


def _pipeline_edge(draw: random.Random, world: ProofWorld) -> Seed:
    data = _moroccan(draw, world)
    target = draw.choice(["dakar", "abidjan"])
    new = PipelineResource(
        id="seeded-pipeline", reads=(data.id,), flows=(FlowResource(source=data.hubs[0], target=target),)
    )
    change = _change("seeded", ResourceKind.PIPELINE, new.id, new)
    return Seed("", world, (change,), lambda s: s.kind == "pipeline_edge" and s.actor == new.id, frozenset({"seeded"}))


def _failure_only(draw: random.Random, world: ProofWorld) -> Seed:
    """Everything is well until a hub fails: then work goes to a cluster that lies, or a copy to where it may not be."""
    if draw.random() < 0.4:
        old = _moroccan(draw, world)
        change = _change("seeded", ResourceKind.DATASET, old.id, replace(old, spares=("dakar",)))
        return Seed(
            "",
            world,
            (change,),
            lambda s: s.kind == "replica" and s.hub == "dakar" and bool(s.failed),
            frozenset({"seeded"}),
        )
    # Nobody is sent to this cluster but those who flee from Tangier.
    liar = ClusterResource(id="seeded-cluster", hub="lome", countries=("MA",))
    hub = HubResource(id="lome", country="TG", frameworks=("law",), encrypts_at_rest=True, keys_in=("MA",))
    spill = Overflow(id="seeded-spill", source="tangier", target="lome", only_on_failure=True)
    resources = [one for found in world.resources.values() for one in found.values()]
    changes = (_change("seeded", ResourceKind.OVERFLOW, spill.id, spill),)

    def is_it(step: ProofStep) -> bool:
        return step.kind == "spill_over" and step.hub == "lome" and step.failed == ("tangier",)

    return Seed("", world_of(*resources, hub, liar), changes, is_it, frozenset({"seeded"}))


KINDS: dict[str, Callable[[random.Random, ProofWorld], Seed]] = {
    "mis-tagged cluster": _mistagged_cluster,
    "moved GPU": _moved_gpu,
    "link re-routed": _rerouted_link,
    "policy loosened in two steps": _loosened_policy,
    "replica in a wrong country": _wrong_replica,
    "telemetry export": _export,
    "pipeline edge": _pipeline_edge,
    "only under a failure": _failure_only,
}
