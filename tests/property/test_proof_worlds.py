"""Do enumeration, solver and brute force agree on worlds in which everything that can be said is said?"""

from __future__ import annotations

import random
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import pytest
import z3
from msgspec.structs import replace

from harch.sovereignty.proof.enumerate import enumerate_violations
from harch.sovereignty.proof.formulas import Formulas
from harch.sovereignty.proof.model import (
    ChangeTracks,
    Choice,
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
    kind_of,
    world_of,
)
from harch.sovereignty.proof.prove import prove
from harch.sovereignty.proof.symbolic import SolverQuestions, SolverReply, solve
from harch.sovereignty.tags import Classification, Tag
from proof_oracle import Oracle, absent_now, brute_force, scenarios
from proof_replay import replay

HUBS = {"a": "MA", "b": "MA", "c": "SN", "d": "CI"}
CODES = ("MA", "SN", "CI")
LAWS = ("law-x", "law-y")
KEYS = {
    ResourceKind.CLUSTER: ("k0", "k1", "k2"),
    ResourceKind.NODE: ("n0", "n1"),
    ResourceKind.LINK: ("l0", "l1", "l2", "l3"),
    ResourceKind.DATASET: ("d0", "d1"),
    ResourceKind.POLICY: ("p0", "p1"),
    ResourceKind.WORKLOAD: ("w0",),
    ResourceKind.OVERFLOW: ("s0", "s1", "s2"),
    ResourceKind.PIPELINE: ("q0",),
    ResourceKind.EXPORT: ("e0",),
}


class Draw(random.Random):
    def some(self, words: tuple[str, ...], most: int = 3, least: int = 0) -> tuple[str, ...]:
        return tuple(self.sample(words, self.randint(least, min(most, len(words)))))

    def hub(self) -> str:
        return "nowhere" if self.random() < 0.04 else self.choice(list(HUBS))

    def often(self, share: float = 0.5) -> bool:
        return self.random() < share

    def tag(self) -> Tag | None:
        if self.often(0.04):
            return None
        return Tag(
            process_in=self.some(CODES, least=1),
            rest_in=self.some(CODES, least=1),
            transit_in=self.some((*CODES, "FR"), 2),
            may_cross_borders=self.often(),
            frameworks=self.some(LAWS, 1) if self.often(0.3) else (),
            classification=self.choice(list(Classification)),
            encrypt_at_rest=self.often(0.2),
            encrypt_in_transit=self.often(0.2),
            key_in=self.some(CODES, least=1),
        )

    def flow(self) -> FlowResource:
        return FlowResource(source=self.hub(), target=self.hub(), via=self.some((*KEYS[ResourceKind.LINK], "gone"), 2))

    def resource(self, kind: ResourceKind, key: str) -> Resource:
        clusters, data = KEYS[ResourceKind.CLUSTER], KEYS[ResourceKind.DATASET]
        match kind:
            case ResourceKind.HUB:
                return HubResource(
                    id=key,
                    country=None if self.often(0.03) else HUBS[key] if self.often(0.8) else self.choice(CODES),
                    frameworks=LAWS if self.often(0.7) else self.some(LAWS),
                    encrypts_at_rest=self.often(0.8),
                    keys_in=CODES if self.often(0.7) else self.some(CODES),
                    failed=self.often(0.15),
                )
            case ResourceKind.CLUSTER:
                return ClusterResource(
                    id=key,
                    hub=self.hub(),
                    countries=None if self.often(0.4) else self.some(CODES, 2),
                    frameworks=None if self.often(0.8) else self.some(LAWS),
                )
            case ResourceKind.NODE:
                return NodeResource(id=key, cluster=self.choice(clusters), hub=None if self.often(0.3) else self.hub())
            case ResourceKind.LINK:
                one, other = self.sample(list(HUBS), 2)
                return LinkResource(
                    id=key,
                    ends=(one, other),
                    transit=self.some((*CODES, "FR"), 1),
                    transit_true=None if self.often() else self.some((*CODES, "FR"), 1),
                    encrypted=self.often(0.7),
                )
            case ResourceKind.DATASET:
                return Dataset(
                    id=key,
                    tag=self.tag(),
                    hubs=tuple(self.hub() for _ in range(self.randint(0, 2))),
                    spares=(self.hub(),) if self.often(0.3) else (),
                    flows=(self.flow(),) if self.often(0.2) else (),
                    labels={"class": self.choice("xy"), "more": self.choice("uv")},
                )
            case ResourceKind.POLICY:
                return Policy(
                    id=key,
                    countries=None if self.often(0.2) else self.some(CODES),
                    frameworks=self.some(LAWS, 1) if self.often(0.3) else (),
                    may_cross_borders=self.often(),
                    selector=self.choice([{}, {"class": "x"}, {"class": "y", "more": "u"}]),
                    enforced=self.often(0.8),
                )
            case ResourceKind.WORKLOAD:
                return WorkloadResource(
                    id=key,
                    reads=self.some((*data, "ghost") if self.often(0.1) else data, 2),
                    hubs=self.some(tuple(HUBS), 2),
                    clusters=self.some(clusters, 2) if self.often(0.4) else (),
                    countries=self.some(CODES, 2) if self.often(0.3) else None,
                )
            case ResourceKind.OVERFLOW:
                return Overflow(id=key, source=self.hub(), target=self.hub(), only_on_failure=self.often())
            case ResourceKind.PIPELINE:
                return PipelineResource(
                    id=key,
                    reads=self.some(data, 2, least=0 if self.often(0.1) else 1),
                    stages=tuple(Stage(name="s", clusters=self.some(clusters, 2)) for _ in range(self.randint(0, 3))),
                    flows=(self.flow(),) if self.often() else (),
                )
            case ResourceKind.EXPORT:
                target = None if self.often(0.1) else self.hub()
                return Export(id=key, data=self.some(data, 2, least=1), source=self.hub(), target=target)


def rich_case(seed: int, changes_max: int = 2) -> tuple[ProofWorld, tuple[PendingChange, ...]]:
    """About a kind or two of actors at a time, so that one mistake is not hidden behind another."""
    draw = Draw(seed)
    actors = draw.sample([ResourceKind.WORKLOAD, ResourceKind.PIPELINE, ResourceKind.EXPORT], draw.randint(0, 2))
    kinds = [kind for kind in KEYS if kind not in _ACTORS or kind in actors]
    keys = [(kind, key) for kind in kinds for key in KEYS[kind]]
    resources = [draw.resource(ResourceKind.HUB, hub) for hub in HUBS if not draw.often(0.05)]
    resources += [draw.resource(kind, key) for kind, key in keys if draw.often(0.75)]
    if actors:  # copies would be wrong more often than not
        resources = [
            replace(one, hubs=one.hubs[:1], spares=(), flows=()) if isinstance(one, Dataset) else one
            for one in resources
        ]
    declassified = {"d0": tag} if draw.often(0.2) and (tag := draw.tag()) is not None else {}
    changes = []
    for number in range(draw.randint(0, changes_max)):
        kind, key = draw.choice([*keys, *((ResourceKind.HUB, hub) for hub in HUBS)])
        after = draw.resource(kind, key)
        passes = draw.choice([(after,), (after,), (None, after), (None,)])
        changes.append(PendingChange(id=f"change-{number}", kind=kind, key=key, passes=passes))
    return world_of(*resources, declassified=declassified), tuple(changes)


_ACTORS = (ResourceKind.WORKLOAD, ResourceKind.PIPELINE, ResourceKind.EXPORT)


@pytest.mark.parametrize("part", range(8))
def test_enumeration_finds_what_brute_force_finds(part: int) -> None:
    for seed in range(60 * part, 60 * part + 60):
        world, changes = rich_case(seed)
        mine = {one.step.breach for one in enumerate_violations(ChangeTracks(world, changes)).violations}
        theirs = {
            (kind, data, hub, cluster, link) for kind, _, data, hub, cluster, _, link in brute_force(world, changes)
        }
        assert mine == theirs, seed


@pytest.mark.parametrize("part", range(2))
def test_every_counterexample_happens_and_needs_all_that_it_names(part: int) -> None:
    for seed in range(1000 + 60 * part, 1060 + 60 * part):
        world, changes = rich_case(seed)
        for found in prove(world, changes).counterexamples:
            assert replay(world, changes, found) == "", seed


@pytest.mark.parametrize("part", range(5))
def test_the_solver_finds_what_brute_force_finds_one_by_one(part: int) -> None:
    for seed in range(2000 + 8 * part, 2008 + 8 * part):
        world, changes = rich_case(seed)
        assert possible(world, changes) == {
            ("placement" if kind == "spill_over" else kind, *rest) for kind, *rest in brute_force(world, changes)
        }, seed


def possible(world: ProofWorld, changes: tuple[PendingChange, ...]) -> set[tuple[str, ...]]:
    """Every event that the solver holds possible, one by one."""
    formulas = Formulas(ChangeTracks(world, changes), z3)
    cases: dict[tuple[str, ...], list[Any]] = {}
    for when, event in SolverQuestions(formulas, None).cases():
        cases.setdefault((*event, "", "", "")[:7], []).append(when)
    solver = z3.SolverFor("QF_FD")
    solver.add(formulas.constraints)
    return {event for event, whens in cases.items() if solver.check(z3.Or(whens)) == z3.sat}


def test_the_solver_names_what_happens_under_the_choice_that_it_names() -> None:
    replies = []
    for seed in range(3000, 3030):
        world, changes = rich_case(seed)
        book = ChangeTracks(world, changes)
        answer = solve(book, z3)
        replies.append(answer.reply)
        assert (answer.reply is SolverReply.POSSIBLE) == bool(brute_force(world, changes)), seed
        if answer.reply is SolverReply.POSSIBLE:
            kind, *rest = (*answer.event, "", "", "")[:7]
            kinds = {"placement", "spill_over"} if kind == "placement" else {kind}
            assert {(kind, *rest) for kind in kinds} & events_under(book, answer.choice), seed
    assert set(replies) == {SolverReply.POSSIBLE, SolverReply.NEVER}


def events_under(book: ChangeTracks, choice: Choice) -> set[tuple[str, ...]]:
    now = {kind: dict(book.world.of(kind)) for kind in ResourceKind}
    for number, stage in choice.items():
        assert stage > 0
        track = book.tracks[number]
        (kind, key), after = track.key, track.stages[stage]
        now[kind].pop(key, None)
        if after is not None:
            now[kind][key] = after
    absent = absent_now(book.world, book.changes, now)
    return {one for failed in scenarios(now) for one in Oracle(book.world, now, failed, absent).happenings()}


# Values that are not known


def subsets(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [found for size in range(len(words) + 1) for found in combinations(words, size)]


HUB = HubResource(id="b", country="MA", frameworks=LAWS, encrypts_at_rest=True, keys_in=CODES)
CLUSTER = ClusterResource(id="k0", hub="c", countries=("MA",))
LINK = LinkResource(id="l0", ends=("a", "b"), encrypted=True)
POLICY = Policy(id="p0", countries=("MA", "CI"), may_cross_borders=False)
WORK = WorkloadResource(id="w0", reads=("d0",))
PIPELINE = PipelineResource(
    id="q0", reads=("d0",), stages=(Stage(name="s"),), flows=(FlowResource(source="a", target="c", via=("l0",)),)
)
BLANKS: dict[str, tuple[Resource, str, list[Resource]]] = {
    "countries of a cluster": (
        CLUSTER,
        "countries",
        [replace(CLUSTER, countries=found) for found in subsets((*CODES, "FR"))],
    ),
    "hub of a cluster": (CLUSTER, "hub", [replace(CLUSTER, hub=hub) for hub in HUBS]),
    "country of a hub": (HUB, "country", [replace(HUB, country=code) for code in (*CODES, "FR", "ES")]),
    "route of a link": (LINK, "transit", [replace(LINK, transit=found) for found in subsets((*CODES, "FR", "ES"))]),
    "countries of a policy": (
        POLICY,
        "countries",
        [replace(POLICY, countries=found) for found in subsets((*CODES, "FR"))],
    ),
    "borders of a policy": (POLICY, "may_cross_borders", [replace(POLICY, may_cross_borders=x) for x in (False, True)]),
    "mode of a policy": (POLICY, "enforced", [replace(POLICY, enforced=x) for x in (False, True)]),
    "selector of a policy": (
        POLICY,
        "selector",
        [replace(POLICY, selector=found) for found in ({}, {"id": "d0"}, {"id": "d1"}, {"id": ""})],
    ),
    "data of a workload": (WORK, "reads", [replace(WORK, reads=(data,)) for data in KEYS[ResourceKind.DATASET]]),
    "clusters of a workload": (
        WORK,
        "clusters",
        [WORK, *(replace(WORK, clusters=(key,)) for key in KEYS[ResourceKind.CLUSTER])],
    ),
    "hubs of a workload": (WORK, "hubs", [WORK, *(replace(WORK, hubs=(hub,)) for hub in HUBS)]),
    "data of a pipeline": (
        PIPELINE,
        "reads",
        [replace(PIPELINE, reads=(data,)) for data in KEYS[ResourceKind.DATASET]],
    ),
}


@pytest.mark.parametrize("what", BLANKS)
def test_what_may_happen_with_a_value_that_is_not_known_is_what_happens_with_some_value(what: str) -> None:
    like, name, options = BLANKS[what]
    for seed in range(4000, 4006):
        world, changes = labelled_case(seed)
        expected = {
            ("placement" if kind == "spill_over" else kind, *rest)
            for option in options
            for kind, *rest in brute_force(world, (*changes, to(option)))
        }
        assert possible(world, (*changes, to(replace(like, unknown=(name,))))) == expected, seed


def labelled_case(seed: int) -> tuple[ProofWorld, tuple[PendingChange, ...]]:
    """All data is there, and a label tells each from the others."""
    world, changes = rich_case(seed, changes_max=1)
    found = {key: world.of(ResourceKind.DATASET).get(key) or Dataset(id=key, tag=None) for key in ("d0", "d1")}
    data = {key: replace(one, labels={**one.labels, "id": key}) for key, one in found.items()}
    return replace(world, resources={**world.resources, ResourceKind.DATASET: data}), changes


def to(after: Resource) -> PendingChange:
    return PendingChange(id="update", kind=kind_of(after), key=after.id, passes=(after,))


def test_with_a_tag_that_is_not_known_everything_may_happen_that_happens_with_some_tag_and_nothing_else() -> None:
    for seed in range(5000, 5010):
        world, changes = rich_case(seed, changes_max=1)
        rest = {key: one for key, one in world.of(ResourceKind.DATASET).items() if key != "d0"}
        world = replace(world, resources={**world.resources, ResourceKind.DATASET: rest}, declassified={})
        changes = tuple(change for change in changes if change.key != "d0")
        blank = Dataset(id="d0", tag=None, hubs=("a", "c"), labels={"class": "x"}, unknown=("tag",))
        formulas = Formulas(ChangeTracks(world, (*changes, to(blank))), z3)
        solver = z3.SolverFor("QF_FD")
        solver.add(formulas.constraints)
        events = {}
        for when, event in SolverQuestions(formulas, None).cases():
            if solver.check(when) == z3.sat:
                model = solver.model()
                values = {name for name, value in formulas.unknowns.items() if z3.is_true(model.eval(value))}
                events[(*event, "", "", "")[:7]] = tag_of(values)
        draw = Draw(seed)
        for tag in [*(draw.tag() for _ in range(6)), None]:
            assert events_with(world, changes, replace(blank, tag=tag, unknown=())) <= set(events), seed
        for event, tag in list(events.items())[::5]:
            assert event in events_with(world, changes, replace(blank, tag=tag, unknown=())), seed


def events_with(world: ProofWorld, changes: tuple[PendingChange, ...], after: Resource) -> set[tuple[str, ...]]:
    found = brute_force(world, (*changes, to(after)))
    return {("placement" if kind == "spill_over" else kind, *rest) for kind, *rest in found}


def tag_of(values: set[str]) -> Tag | None:
    """The tag that the solver supposes: values as `process of d0=MA`."""

    def listed(name: str) -> tuple[str, ...]:
        return tuple(value.partition("=")[2] for value in values if value.startswith(f"{name} of d0="))

    if not listed("tagged"):
        return None
    return Tag(
        process_in=listed("process"),
        rest_in=listed("rest"),
        transit_in=listed("transit"),
        may_cross_borders=bool(listed("cross")),
        frameworks=listed("frameworks"),
        classification=Classification.RESTRICTED if listed("restricted") else Classification.INTERNAL,
        encrypt_at_rest=bool(listed("lock")),
        encrypt_in_transit=bool(listed("wire")),
        key_in=listed("keys"),
    )


def test_with_places_that_are_not_known_everything_may_happen_that_happens_with_some_places() -> None:
    for seed in range(6000, 6006):
        world, changes = labelled_case(seed)
        data = world.of(ResourceKind.DATASET)["d0"]
        assert isinstance(data, Dataset)
        maybe = possible(world, (*changes, to(replace(data, hubs=(), unknown=("hubs",)))))
        known = ChangeTracks(world, changes).hubs_known
        for hubs in [found for found in subsets(tuple(sorted(known))) if len(found) <= 2]:
            assert events_with(world, changes, replace(data, hubs=hubs)) <= maybe, (seed, hubs)
