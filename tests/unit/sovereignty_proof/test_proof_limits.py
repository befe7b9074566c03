"""Where does a proof stop, and does it say so? Limits of documents, of the search and of the solver."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import z3
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.fleet.file import shipped_fleet
from harch.sovereignty.geography import Safeguards, SiteSafeguards
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.proof import enumerate as search
from harch.sovereignty.proof import state, symbolic
from harch.sovereignty.proof.enumerate import combinations, enumerate_violations, support
from harch.sovereignty.proof.model import (
    ChangeTracks,
    ClusterResource,
    Dataset,
    Export,
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
    Track,
    WorkloadResource,
    countries_named,
    kind_of,
    world_of,
)
from harch.sovereignty.proof.prove import ProofStatus, prove
from harch.sovereignty.proof.state import WorkloadNeeds, read_state, state_of, write_state
from harch.sovereignty.proof.steps import ProofStep, ProofStepKind, StepChecker
from harch.sovereignty.proof.symbolic import SolverAnswer, SolverReply, load_solver, solve
from harch.sovereignty.proof.view import WorldView
from harch.sovereignty.tags import Classification, DataKind, DataObject, Tag

REGISTRY = shipped_jurisdictions()
HINT = "docs/guides/proof.md describes the document"


def tag(*countries: str, transit: tuple[str, ...] = (), keys: tuple[str, ...] = ()) -> Tag:
    return Tag(
        process_in=countries,
        rest_in=countries,
        transit_in=transit,
        may_cross_borders=False,
        frameworks=(),
        classification=Classification.INTERNAL,
        encrypt_at_rest=False,
        encrypt_in_transit=False,
        key_in=keys,
    )


def change(id: str, *passes: Resource | None, of: tuple[ResourceKind, str] | None = None) -> PendingChange:
    made = next((one for one in passes if one is not None), None)
    kind, key = of or (kind_of(made), made.id)  # type: ignore[arg-type, union-attr]
    return PendingChange(id=id, kind=kind, key=key, passes=passes)


CASA, DAKAR = HubResource(id="casa", country="MA"), HubResource(id="dakar", country="SN")
DATA = Dataset(id="d", tag=tag("MA"))
WORK = WorkloadResource(id="w", reads=("d",))
LIAR = ClusterResource(id="k", hub="dakar", countries=("MA",))


# Documents


def refusal(document: object) -> tuple[str, str]:
    with pytest.raises(HarchError) as caught:
        read_state(document, REGISTRY)
    assert caught.value.code == "E0201"
    assert caught.value.hint == HINT
    return caught.value.message, caught.value.field or ""


HUB = {"id": "a", "country": "MA"}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (None, "a state document is a JSON object with `version: 1`"),
        ([], "a state document is a JSON object with `version: 1`"),
        ({"version": 2}, "a state document is a JSON object with `version: 1`"),
        ({"version": 1, "hobs": []}, "`hobs` is not part of a state document"),
        ({"version": 1, "hubs": {}}, "`hubs` must be a list of at most 100000"),
        ({"version": 1, "changes": "x"}, "`changes` must be a list of at most 10000"),
        ({"version": 1, "hubs": [HUB, HUB]}, "two resources of one kind have the same id"),
        (
            {"version": 1, "changes": [{"id": "c", "kind": "hub", "key": "a", "passes": [None]}] * 2},
            "two changes have the same id",
        ),
        (
            {"version": 1, "changes": [{"id": "c", "kind": "hub", "key": "b", "passes": [None, HUB]}]},
            "changes[0]: the resource is called `a`, the key `b`",
        ),
    ],
)
def test_a_document_that_is_not_understood_says_so(document: object, sentence: str) -> None:
    assert refusal(document) == (sentence, "")


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"version": 1, "hubs": [HUB, {"id": "b"}]}, "hubs[1]"),
        ({"version": 1, "policies": [{"id": "p", "countries": 1}]}, "policies[0]"),
        ({"version": 1, "changes": [{"id": "c"}]}, "changes[0]"),
        ({"version": 1, "declassified": []}, "declassified"),
        (
            {"version": 1, "changes": [{"id": "c", "kind": "hub", "key": "a", "passes": [HUB, {"id": "a"}]}]},
            "changes[0].passes[1]",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_place(document: object, where: str) -> None:
    message, field = refusal(document)
    assert (message.split(":")[0], field) == (where, where)


def test_a_document_is_read_as_it_stands() -> None:
    document = {
        "version": 1,
        "hubs": [HUB, {"id": "b", "country": "QQ", "failed": True}],
        "clusters": [{"id": "a", "hub": "a", "countries": ["SN"]}],
        "declassified": write_state(world_of(declassified={"d": tag("MA")}))["declassified"],
        "changes": [
            {"id": "c1", "kind": "hub", "key": "b", "passes": [None, {"id": "b", "country": "QQ"}], "label": "move b"},
            {"id": "c2", "kind": "spill_over", "key": "s", "passes": [{"id": "s", "source": "a", "target": "b"}]},
        ],
    }
    world, changes = read_state(document, REGISTRY)
    assert world == world_of(
        HubResource(id="a", country="MA"),
        HubResource(id="b", country=None, failed=True),
        ClusterResource(id="a", hub="a", countries=("SN",)),
        declassified={"d": tag("MA")},
    )
    assert changes == (
        PendingChange(
            id="c1",
            kind=ResourceKind.HUB,
            key="b",
            passes=(None, HubResource(id="b", country=None)),
            label="move b",
        ),
        PendingChange(id="c2", kind=ResourceKind.OVERFLOW, key="s", passes=(Overflow(id="s", source="a", target="b"),)),
    )
    assert read_state(write_state(world, changes), REGISTRY) == (world, changes)


def test_lists_may_be_as_long_as_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "RESOURCES_MAX", 2)
    monkeypatch.setattr(state, "CHANGES_MAX", 1)
    hubs = [{"id": id, "country": "MA"} for id in "abc"]
    changes = [{"id": id, "kind": "hub", "key": "x", "passes": [None]} for id in "ab"]
    world, found = read_state({"version": 1, "hubs": hubs[:2], "changes": changes[:1]}, REGISTRY)
    assert (world.size, len(found)) == (2, 1)
    assert refusal({"version": 1, "hubs": hubs})[0] == "`hubs` must be a list of at most 2"
    assert refusal({"version": 1, "changes": changes})[0] == "`changes` must be a list of at most 1"


def test_a_running_fleet_becomes_a_world_with_one_cluster_per_hub() -> None:
    fleet = shipped_fleet("five-hubs")
    data = DataObject(id="d", kind=DataKind.DATASET, name="n", tenant="t", tag=tag("MA"), hubs=("dakhla",))
    needs = WorkloadNeeds(id="w", reads=("d",), hubs=("dakar",), countries=("SN",))
    one = fleet.links[0].ends
    safe = Safeguards(sites={"dakar": SiteSafeguards(encrypts_at_rest=True, keys_in=("SN",))}, links_encrypted=(one,))
    world = state_of(fleet, REGISTRY, safeguards=safe, data=[data], workloads=[needs], failed=["dakar"])
    hubs, links = world.of(ResourceKind.HUB), world.of(ResourceKind.LINK)
    assert list(hubs) == [hub.id for hub in fleet.hubs]
    assert hubs["dakar"] == HubResource(
        id="dakar",
        country="SN",
        frameworks=REGISTRY.frameworks_in("SN"),
        encrypts_at_rest=True,
        keys_in=("SN",),
        failed=True,
    )
    assert [key for key, hub in hubs.items() if isinstance(hub, HubResource) and hub.failed] == ["dakar"]
    assert world.of(ResourceKind.CLUSTER) == {
        f"{hub.id}-gpus": ClusterResource(id=f"{hub.id}-gpus", hub=hub.id) for hub in fleet.hubs
    }
    countries = {hub.id: hub.country for hub in fleet.hubs}
    for link in fleet.links:
        ends = {countries[end] for end in link.ends}
        assert links["-".join(link.ends)] == LinkResource(
            id="-".join(link.ends),
            ends=link.ends,
            transit=tuple(code for code in link.countries_crossed if code not in ends),
            encrypted=link.ends == one,
        )
    assert any(isinstance(link, LinkResource) and link.transit for link in links.values())
    assert world.of(ResourceKind.DATASET) == {
        "d": Dataset(id="d", tag=tag("MA"), hubs=("dakhla",), labels={"tenant": "t"})
    }
    assert world.of(ResourceKind.WORKLOAD) == {
        "w": WorkloadResource(id="w", reads=("d",), hubs=("dakar",), countries=("SN",))
    }


def test_a_link_over_a_country_that_the_registry_does_not_know_has_an_unknown_route() -> None:
    fleet = shipped_fleet("five-hubs")
    less = replace(REGISTRY, countries={code: name for code, name in REGISTRY.countries.items() if code != "MR"})
    for link in fleet.links:
        found = state_of(fleet, less).of(ResourceKind.LINK)["-".join(link.ends)]
        assert found.unknown == (("transit",) if "MR" in link.countries_crossed else ())


# The world and its tracks


BOOK = ChangeTracks(
    world_of(
        CASA,
        HubResource(id="far", country="FR", keys_in=("DE",)),
        DATA,
        Policy(id="p", countries=("IT",)),
        LinkResource(id="l", ends=("casa", "far"), transit=("ES",), transit_true=("PT",)),
        ClusterResource(id="k", hub="casa", countries=("NL",)),
    ),
    (
        change("c1", None, Policy(id="p")),
        change("c2", WorkloadResource(id="w", countries=("GR",))),
        change("c3", Policy(id="p", enforced=False)),
        change("c4", Dataset(id="e", tag=tag("BE", transit=("LU",), keys=("CH",)))),
    ),
)


def test_changes_of_one_resource_are_one_track_in_their_order() -> None:
    policy = Policy(id="p", countries=("IT",))
    c1, c2, c3, c4 = BOOK.changes
    assert BOOK.tracks == (
        Track((ResourceKind.POLICY, "p"), (policy, None, Policy(id="p"), Policy(id="p", enforced=False)), (c1, c1, c3)),
        Track((ResourceKind.WORKLOAD, "w"), (None, *c2.passes), (c2,)),
        Track((ResourceKind.DATASET, "e"), (None, *c4.passes), (c4,)),
    )
    assert BOOK.box_of_all() == {0: (0, 1, 2, 3), 1: (0, 1), 2: (0, 1)}
    assert combinations(BOOK) == 16
    assert combinations(ChangeTracks(world_of())) == 1
    assert BOOK.applied({1: 1, 0: 3}) == ((c1, 2), (c2, 1), (c3, 1))
    assert BOOK.applied({0: 1}) == ((c1, 1),)
    assert BOOK.applied({0: 0}) == ()


def test_what_is_there_or_may_come_to_be_is_known() -> None:
    assert BOOK.everything(ResourceKind.DATASET) == BOOK.data_known == {"d", "e"}
    assert BOOK.hubs_known == {"casa", "far"}
    assert BOOK.everything(ResourceKind.WORKLOAD) == {"w"}
    assert BOOK.tracks_among([(ResourceKind.DATASET, "e"), (ResourceKind.DATASET, "d")], ()) == (2,)
    assert BOOK.tracks_among([], [ResourceKind.WORKLOAD, ResourceKind.POLICY]) == (0, 1)
    assert not BOOK.has_unknowns
    assert ChangeTracks(world_of(), (change("c", replace(LIAR, unknown=("hub",))),)).has_unknowns
    assert BOOK.world.size == 6


def test_every_country_that_somebody_names_is_in_the_universe() -> None:
    named = "BE CH DE ES FR GR IT LU MA NL PT ZZ"
    assert BOOK.universe == countries_named(BOOK.world, BOOK.changes) == tuple(named.split())
    assert countries_named(world_of(HubResource(id="x", country=None), Dataset(id="d", tag=None)), ()) == ("ZZ",)


# The search


def scattered(count: int) -> ProofWorld:
    """As many copies where they must not be."""
    return world_of(CASA, DAKAR, *(replace(DATA, id=f"d{n}", hubs=("dakar",)) for n in range(count)))


def test_violations_are_followed_up_to_a_limit_and_more_are_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FOUND_MAX", 2)
    for count, found, is_complete in ((1, 1, True), (2, 2, True), (3, 2, False)):
        findings = enumerate_violations(ChangeTracks(scattered(count)))
        assert (len(findings.violations), findings.suspects, findings.is_complete) == (found, count, is_complete)
        assert prove(scattered(count)).is_complete is is_complete


def test_too_many_combinations_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [Policy(id=f"p{n}", countries=("MA",)) for n in range(3)]
    wide = replace(DATA, tag=tag("MA", "SN"))
    world = world_of(CASA, DAKAR, wide, WORK, replace(LIAR, countries=None), *rules)
    gone = tuple(change(rule.id, None, of=(ResourceKind.POLICY, rule.id)) for rule in rules)
    whole = prove(world, gone)
    assert (whole.status, whole.boxes) == (ProofStatus.VIOLATED, 7)
    monkeypatch.setattr(search, "BOXES_MAX", 7)
    assert prove(world, gone).status is ProofStatus.VIOLATED
    monkeypatch.setattr(search, "BOXES_MAX", 6)
    proof = prove(world, gone)
    assert (proof.status, proof.counterexamples, proof.boxes) == (ProofStatus.UNKNOWN, (), 6)
    assert proof.reasons == ("too many combinations around workload w",)


@pytest.mark.parametrize("count", [1, 64, 65, 129])
def test_progress_is_reported_every_64_actors(count: int) -> None:
    reported: list[tuple[str, int, int]] = []
    world = world_of(CASA, *(replace(DATA, id=f"d{n}", hubs=("casa",)) for n in range(count)))
    prove(world, progress=lambda *report: reported.append(report))
    assert reported == [("judging", number, count) for number in range(0, count, 64)]


def test_each_suspect_is_reported_as_it_is_followed() -> None:
    reported: list[tuple[str, int, int]] = []
    prove(scattered(3), progress=lambda *report: reported.append(report))
    assert reported == [("judging", 0, 3), *(("following", number, 3) for number in range(3))]


def step(kind: ProofStepKind, actor_kind: ResourceKind, actor: str, **more: Any) -> ProofStep:
    return ProofStep(kind=kind, actor_kind=actor_kind, actor=actor, **{"data": "d", "hub": "dakar", **more})


def test_only_changes_that_have_a_part_in_a_step_are_tried() -> None:
    unlabelled, labelled = Dataset(id="d", tag=tag("MA")), Dataset(id="e", tag=tag("MA"), labels={"x": "y"})
    changes = {
        "hub": change("hub", replace(DAKAR, failed=True)),
        "other hub": change("other hub", replace(CASA, failed=True)),
        "cluster": change("cluster", LIAR),
        "other cluster": change("other cluster", replace(LIAR, id="k2")),
        "node": change("node", NodeResource(id="n", cluster="k", hub="casa")),
        "other node": change("other node", NodeResource(id="n2", cluster="k2", hub="casa")),
        "link": change("link", LinkResource(id="l", ends=("casa", "dakar"))),
        "data": change("data", unlabelled),
        "other data": change("other data", labelled),
        "policy": change("policy", Policy(id="p", countries=("MA",))),
        "other policy": change("other policy", Policy(id="p2", selector={"x": "y"})),
        "work": change("work", WORK),
        "overflow": change("overflow", Overflow(id="o", source="casa", target="dakar")),
        "pipeline": change(
            "pipeline", PipelineResource(id="q", reads=("d",), stages=(Stage(name="s", clusters=("k",)),))
        ),
        "wide": change("wide", PipelineResource(id="q2", reads=("d",), stages=(Stage(name="s"),))),
        "export": change("export", Export(id="x", data=("d",), source="casa", target="dakar")),
    }
    book = ChangeTracks(world_of(CASA, DAKAR), tuple(changes.values()))

    def tried(of: ProofStep) -> list[str]:
        return [book.tracks[number].steps[0].id for number in support(book, of)]

    assert tried(step(ProofStepKind.REPLICA, ResourceKind.DATASET, "d")) == ["data", "policy", "hub"]
    assert tried(step(ProofStepKind.REPLICA, ResourceKind.DATASET, "d", failed=("casa",))) == [
        *("data", "policy", "hub", "other hub"),
    ]
    assert tried(step(ProofStepKind.ROUTE, ResourceKind.DATASET, "d", link="l")) == [
        *("data", "policy", "link", "hub", "other hub"),
    ]
    assert tried(step(ProofStepKind.PLACEMENT, ResourceKind.WORKLOAD, "w", cluster="k")) == [
        *("data", "policy", "work", "cluster", "node", "overflow", "hub", "other hub"),
    ]
    assert tried(step(ProofStepKind.EDGE, ResourceKind.PIPELINE, "q")) == [
        *("data", "policy", "pipeline", "cluster", "node", "hub"),
    ]
    assert tried(step(ProofStepKind.EDGE, ResourceKind.PIPELINE, "q2")) == [
        *("data", "policy", "wide", "cluster", "other cluster", "node", "other node", "hub"),
    ]
    assert tried(step(ProofStepKind.PLACEMENT, ResourceKind.PIPELINE, "q2", cluster="k")) == [
        *("data", "policy", "wide", "cluster", "node", "hub", "other hub"),
    ]
    assert tried(step(ProofStepKind.EXPORT, ResourceKind.EXPORT, "x", data="e")) == [
        *("other data", "policy", "other policy", "export", "hub"),
    ]


def test_failures_are_those_that_are_and_one_more() -> None:
    tanger = HubResource(id="tanger", country="MA")

    def scenarios(*hubs: HubResource) -> list[tuple[str, ...]]:
        book = ChangeTracks(world_of(*hubs))
        return StepChecker(WorldView(book, book.box_of_all())).scenarios()

    assert scenarios(CASA, DAKAR) == [("casa",), ("dakar",)]
    assert scenarios(CASA, DAKAR, replace(tanger, failed=True)) == [
        *(("casa",), ("dakar",), ("tanger",), ("casa", "tanger"), ("dakar", "tanger")),
    ]
    assert scenarios() == []


# The solver


MANY = world_of(
    *(HubResource(id=id, country="MA") for id in "abc"),
    LinkResource(id="ab", ends=("a", "b"), unknown=("transit",)),
    LinkResource(id="bc", ends=("b", "c")),
    LinkResource(id="ca", ends=("c", "a")),
    Dataset(id="d", tag=tag("MA"), hubs=("a",)),
    WorkloadResource(id="w", reads=("d",), hubs=("b",)),
    ClusterResource(id="k", hub="b"),
)


def test_more_ways_than_are_listed_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "WAYS_MAX", 2)
    assert solve(ChangeTracks(MANY), z3).reply is SolverReply.NEVER
    assert prove(MANY, solver=z3).status is ProofStatus.PROVEN
    monkeypatch.setattr(symbolic, "WAYS_MAX", 1)
    reason = "more than 1 routes between two hubs"
    assert solve(ChangeTracks(MANY), z3) == SolverAnswer(SolverReply.UNKNOWN, reason=reason)
    proof = prove(MANY, solver=z3)
    assert (proof.status, proof.reasons, proof.solver_calls) == (ProofStatus.UNKNOWN, (f"workload w: {reason}",), 1)


class _Weary:
    """A solver that never comes to an end."""

    def set(self, *_: object) -> None: ...

    def add(self, *_: object) -> None: ...

    def check(self) -> object:
        return z3.unknown

    def reason_unknown(self) -> str:
        return "timeout"


def test_a_solver_that_gives_up_has_proven_nothing() -> None:
    weary = SimpleNamespace(**{**vars(z3), "SolverFor": lambda _: _Weary()})
    answer = solve(ChangeTracks(MANY), weary)
    assert answer == SolverAnswer(SolverReply.UNKNOWN, reason="the solver gave up: timeout")
    proof = prove(MANY, solver=weary)  # type: ignore[arg-type]
    assert (proof.status, proof.reasons) == (ProofStatus.UNKNOWN, ("workload w: the solver gave up: timeout",))


def test_the_solver_is_used_for_one_actor_if_one_is_named() -> None:
    blank = replace(LIAR, countries=None, unknown=("countries",))
    book = ChangeTracks(world_of(CASA, DAKAR, DATA, WORK, WorkloadResource(id="idle"), blank))
    assert solve(book, z3, (ResourceKind.WORKLOAD, "w")) == SolverAnswer(
        SolverReply.POSSIBLE, ("placement", "w", "d", "dakar", "k"), {}, ("countries of k=MA",)
    )
    assert solve(book, z3, (ResourceKind.WORKLOAD, "idle")) == SolverAnswer(SolverReply.NEVER)
    assert solve(book, z3, (ResourceKind.PIPELINE, "w")) == SolverAnswer(SolverReply.NEVER)


def test_the_choice_of_the_solver_names_the_changes_that_it_makes() -> None:
    book = ChangeTracks(world_of(CASA, DAKAR, DATA, WORK), (change("idle", Policy(id="p")), change("c", None, LIAR)))
    answer = solve(book, z3, (ResourceKind.WORKLOAD, "w"))
    assert (answer.reply, answer.choice.get(1)) == (SolverReply.POSSIBLE, 2)
    assert 0 not in answer.choice.values()


@pytest.mark.parametrize("target", [None, "casa"])
def test_a_target_that_is_not_known_may_be_outside(target: str | None) -> None:
    export = Export(id="x", data=("d", "gone"), source="casa", target=target, unknown=("target",))
    book = ChangeTracks(world_of(CASA, DATA, export), (change("c", replace(DATA, id="gone")),))
    answer = solve(book, z3)
    assert answer.reply is SolverReply.POSSIBLE
    assert answer.event[:3] == ("telemetry_export", "x", "d")


def test_the_solver_is_there_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_solver() is z3
    monkeypatch.setitem(sys.modules, "z3", None)
    assert load_solver() is None
