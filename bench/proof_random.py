"""What do small worlds look like that go wrong about as often as not? For comparing provers with each other."""

from __future__ import annotations

import random

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
from harch.sovereignty.tags import Classification, Tag

COUNTRIES = ("MA", "SN", "CI")
HUBS = {"a": "MA", "b": "MA", "c": "SN", "d": "CI"}


def random_tag(draw: random.Random) -> Tag:
    home = draw.sample(COUNTRIES, draw.choice([1, 1, 2, 3]))
    return Tag(
        process_in=tuple(home),
        rest_in=tuple(home if draw.random() < 0.8 else home[:1]),
        transit_in=tuple(draw.sample(COUNTRIES, 2)) if draw.random() < 0.4 else (),
        may_cross_borders=draw.random() < 0.5,
        frameworks=("law-x",) if draw.random() < 0.15 else (),
        classification=draw.choice([Classification.INTERNAL, Classification.RESTRICTED]),
        encrypt_at_rest=draw.random() < 0.1,
        encrypt_in_transit=draw.random() < 0.1,
        key_in=tuple(home),
    )


def random_resource(draw: random.Random, kind: ResourceKind, key: str) -> Resource:
    """Likely to be harmless, so that whole worlds are proven now and then."""
    hub = draw.choice(list(HUBS))
    safe = draw.random() < 0.8
    match kind:
        case ResourceKind.HUB:
            return HubResource(
                id=key,
                country=HUBS[key] if safe else draw.choice(COUNTRIES),
                frameworks=("law-x",),
                encrypts_at_rest=draw.random() < 0.8,
                keys_in=COUNTRIES,
                failed=draw.random() < 0.1,
            )
        case ResourceKind.CLUSTER:
            honest = None if draw.random() < 0.5 else (HUBS[hub],)
            hub = "nowhere" if draw.random() < 0.03 else hub
            return ClusterResource(id=key, hub=hub, countries=honest if safe else (draw.choice(COUNTRIES),))
        case ResourceKind.NODE:
            return NodeResource(id=key, cluster="k0", hub=None if safe else hub)
        case ResourceKind.LINK:
            ends = tuple(draw.sample(list(HUBS), 2))
            true = None if safe else (draw.choice(COUNTRIES),)
            transit = (draw.choice(COUNTRIES),) if draw.random() < 0.2 else ()
            return LinkResource(
                id=key, ends=(ends[0], ends[1]), transit=transit, transit_true=true, encrypted=draw.random() < 0.8
            )
        case ResourceKind.DATASET:
            tag = random_tag(draw)
            home = [hub for hub, country in HUBS.items() if country in tag.rest_in] if safe else [hub]
            flows = (FlowResource(source="a", target="b", via=("l0",)),) if draw.random() < 0.1 else ()
            return Dataset(
                id=key,
                tag=tag if draw.random() < 0.97 else None,
                hubs=tuple(home[: draw.choice([0, 1, 1, 2])]),
                spares=(draw.choice(home),) if draw.random() < 0.2 else (),
                flows=flows,
                labels={"class": draw.choice(["x", "y"])},
            )
        case ResourceKind.POLICY:
            countries = tuple(draw.sample(COUNTRIES, draw.choice([1, 2])))
            return Policy(
                id=key,
                countries=None if draw.random() < 0.1 else countries,
                may_cross_borders=draw.random() < 0.5,
                selector=draw.choice([{}, {"class": "x"}, {"class": "y"}]),
                enforced=draw.random() < 0.9,
            )
        case ResourceKind.WORKLOAD:
            reads = tuple(draw.sample(["d0", "d1"], draw.choice([0, 1, 1, 2])))
            where = draw.random()
            return WorkloadResource(
                id=key,
                reads=reads,
                hubs=(hub,) if where < 0.7 else (),
                clusters=("k0",) if where > 0.9 else (),
                countries=(draw.choice(COUNTRIES),) if draw.random() < 0.2 else None,
            )
        case ResourceKind.OVERFLOW:
            source, target = draw.sample(list(HUBS), 2)
            return Overflow(id=key, source=source, target=target, only_on_failure=draw.random() < 0.5)
        case ResourceKind.PIPELINE:
            flows = (FlowResource(source=hub, target=draw.choice("ab"), via=("l1",)),) if draw.random() < 0.3 else ()
            return PipelineResource(
                id=key,
                reads=tuple(draw.sample(["d0", "d1"], draw.choice([1, 2]))),
                stages=(Stage(name="sense", clusters=("k0",)), Stage(name="think", clusters=("k0", "k1"))),
                flows=flows,
            )
        case ResourceKind.EXPORT:
            at = draw.choice("ab") if safe else hub
            return Export(id=key, data=("d0",), source=draw.choice("ab"), target=at if draw.random() < 0.9 else None)


_LETTERS = {
    ResourceKind.CLUSTER: ("k", 2),
    ResourceKind.NODE: ("n", 1),
    ResourceKind.LINK: ("l", 5),
    ResourceKind.DATASET: ("d", 2),
    ResourceKind.POLICY: ("p", 2),
    ResourceKind.WORKLOAD: ("w", 2),
    ResourceKind.OVERFLOW: ("s", 2),
    ResourceKind.PIPELINE: ("q", 1),
    ResourceKind.EXPORT: ("e", 1),
}


def random_case(seed: int, changes_max: int = 3) -> tuple[ProofWorld, tuple[PendingChange, ...]]:
    draw = random.Random(seed)
    resources = [random_resource(draw, ResourceKind.HUB, key) for key in HUBS]
    keys = [(kind, f"{letter}{n}") for kind, (letter, count) in _LETTERS.items() for n in range(count)]
    missing = set()
    for kind, key in keys:
        rare = kind in (ResourceKind.EXPORT, ResourceKind.PIPELINE, ResourceKind.NODE, ResourceKind.OVERFLOW)
        if draw.random() < (0.35 if rare else 0.85):
            resources.append(random_resource(draw, kind, key))
        else:
            missing.add((kind, key))
    world = world_of(*resources)
    changes = []
    for number in range(draw.randint(0, changes_max)):
        kind, key = draw.choice([*keys, *((ResourceKind.HUB, hub) for hub in HUBS)])
        after = random_resource(draw, kind, key)
        fate = draw.random()
        passes: tuple[Resource | None, ...] = (after,) if fate < 0.6 else (None, after) if fate < 0.8 else (None,)
        changes.append(PendingChange(id=f"change-{number}", kind=kind, key=key, passes=passes))
    return world, tuple(changes)
