"""Is each kind of violation told as it happens, with the nearest fix, and is the verdict what follows from it?"""

from __future__ import annotations

import pytest
import z3
from msgspec.structs import replace

from harch.sovereignty.proof.formulas import Formulas
from harch.sovereignty.proof.model import (
    ChangeTracks,
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
from harch.sovereignty.proof.prove import (
    NO_SOLVER,
    AppliedChange,
    ProofStatus,
    build_counterexample,
    needs_solver,
    prove,
)
from harch.sovereignty.proof.steps import ProofStep, ProofStepKind
from harch.sovereignty.proof.symbolic import SolverReply, solve
from harch.sovereignty.tags import Classification, Tag


def tag(*countries: str, **changes: object) -> Tag:
    plain = Tag(
        process_in=countries,
        rest_in=countries,
        transit_in=(),
        may_cross_borders=False,
        frameworks=(),
        classification=Classification.INTERNAL,
        encrypt_at_rest=False,
        encrypt_in_transit=False,
        key_in=countries,
    )
    return replace(plain, **changes)


def change(
    id: str, *passes: Resource | None, of: tuple[ResourceKind, str] | None = None, label: str = ""
) -> PendingChange:
    made = next((one for one in passes if one is not None), None)
    kind, key = of or (kind_of(made), made.id)  # type: ignore[arg-type, union-attr]
    return PendingChange(id=id, kind=kind, key=key, passes=passes, label=label)


CASA, TANGER = HubResource(id="casa", country="MA"), HubResource(id="tanger", country="MA")
DAKAR = HubResource(id="dakar", country="SN")
DATA = Dataset(id="d", tag=tag("MA"), hubs=("casa",))
WIDE = Dataset(id="d", tag=tag("MA", "SN"), hubs=("casa",))
WORK = WorkloadResource(id="w", reads=("d",))
LIAR = ClusterResource(id="k", hub="dakar", countries=("MA",))
HOME = ClusterResource(id="k", hub="casa")
SPANISH = LinkResource(id="l", ends=("casa", "tanger"), transit=("ES",))
LYING = LinkResource(id="l", ends=("casa", "tanger"), transit_true=("ES",))
OUT = FlowResource(source="casa", target="dakar")
ALONG = FlowResource(source="casa", target="tanger", via=("l",))
STRICT = Policy(id="p", countries=("MA",))


def world(*resources: Resource) -> ProofWorld:
    return world_of(CASA, TANGER, DAKAR, *resources)


BROKEN = "That breaks `process_in` of d: dakar is in SN; allowed: MA."
KEPT = "That breaks `rest_in` of d: dakar is in SN; allowed: MA."
ARRIVED = "That breaks `arrive_in` of d: dakar is in SN; allowed: MA."
CROSSED = "That breaks `transit_in` of d: crosses ES, MA; may cross MA."
DECLARED = "It is admitted because the cluster declares MA."
AT_DAKAR = "It is at dakar (SN)."
DONE = "d is processed there."
EXPLAINED: dict[str, tuple[tuple[Resource, ...], tuple[PendingChange, ...], list[str], str]] = {
    "a cluster that lies": (
        (DATA, WORK, LIAR),
        (),
        ["workload w is placed on cluster k.", DECLARED, AT_DAKAR, DONE, BROKEN],
        "let cluster k declare SN, its location",
    ),
    "a cluster that says too much": (
        (DATA, WORK, replace(LIAR, countries=("MA", "SN"))),
        (),
        [
            "workload w is placed on cluster k.",
            "It is admitted because the cluster declares MA, SN.",
            AT_DAKAR,
            DONE,
            BROKEN,
        ],
        "choose a hub in MA",
    ),
    "nodes that stand elsewhere": (
        (
            *(DATA, WORK, HOME, NodeResource(id="other", cluster="x", hub="dakar")),
            *(NodeResource(id=f"n{n}", cluster="k", hub="dakar") for n in range(4)),
            NodeResource(id="n4", cluster="k", hub="tanger"),
        ),
        (),
        [
            "workload w is placed on cluster k.",
            "It is admitted because the cluster is assumed by its hub to be in MA.",
            "Its node n0, n1, n2 is at dakar (SN).",
            DONE,
            BROKEN,
        ],
        "give the node at dakar to a cluster of that hub, or move it back to casa",
    ),
    "a spill-over": (
        (DATA, replace(WORK, hubs=("casa",)), LIAR, Overflow(id="o", source="casa", target="dakar")),
        (),
        ["workload w is lent to cluster k.", DECLARED, AT_DAKAR, DONE, BROKEN],
        "let cluster k declare SN, its location",
    ),
    "a fail-over": (
        (
            *(DATA, replace(WORK, hubs=("casa",)), LIAR),
            Overflow(id="o", source="casa", target="dakar", only_on_failure=True),
        ),
        (),
        ["Hub casa fails.", "workload w is lent to cluster k.", DECLARED, AT_DAKAR, DONE, BROKEN],
        "let cluster k declare SN, its location",
    ),
    "the work's own countries": (
        (WorkloadResource(id="w", countries=("CI", "SN")), replace(HOME, countries=("SN",))),
        (),
        [
            "workload w is placed on cluster k.",
            "It is admitted because the cluster declares SN.",
            "It is at casa (MA).",
            "The work is processed there.",
            "That breaks `countries_allowed` of w: casa is in MA; the work may only run in CI, SN.",
        ],
        "let cluster k declare MA, its location",
    ),
    "the work's own countries on a node elsewhere": (
        (
            WorkloadResource(id="w", countries=("MA",)),
            HOME,
            NodeResource(id="n", cluster="k", hub="dakar"),
        ),
        (),
        [
            "workload w is placed on cluster k.",
            "It is admitted because the cluster is assumed by its hub to be in MA.",
            "Its node n is at dakar (SN).",
            "The work is processed there.",
            "That breaks `countries_allowed` of w: dakar is in SN; the work may only run in MA.",
        ],
        "give the node at dakar to a cluster of that hub, or move it back to casa",
    ),
    "a copy": (
        (replace(DATA, hubs=("casa", "dakar")),),
        (),
        ["A copy of d is stored at dakar (SN).", KEPT],
        "choose a hub in MA",
    ),
    "a copy in a country that nobody knows": (
        (HubResource(id="lost", country=None), replace(DATA, hubs=("lost",))),
        (),
        [
            "A copy of d is stored at lost (an unknown country).",
            "That breaks `rest_in` of d: lost is in an unknown country; allowed: MA.",
        ],
        "choose a hub in MA",
    ),
    "a copy that is restored": (
        (replace(DATA, spares=("dakar",)),),
        (),
        ["Hub casa fails.", "The lost copy of d is restored at dakar (SN).", KEPT],
        "choose a hub in MA",
    ),
    "a flow": (
        (replace(DATA, flows=(OUT,)),),
        (),
        ["A continuous flow copies d from casa to dakar (SN).", ARRIVED],
        "choose a hub in MA",
    ),
    "a flow on a link that goes abroad": (
        (replace(DATA, flows=(ALONG,)), SPANISH),
        (),
        ["dataset d needs d at tanger (MA): transferred from casa over link l (crosses MA, ES).", CROSSED],
        "needs a route without ES",
    ),
    "a link that lies": (
        (DATA, replace(WORK, hubs=("tanger",)), replace(HOME, hub="tanger"), LYING),
        (),
        ["workload w needs d at tanger (MA): transferred from casa over link l (crosses MA, ES).", CROSSED],
        "let link l declare what it crosses: ES",
    ),
    "a stream": (
        (DATA, PipelineResource(id="q", reads=("d",), flows=(OUT,))),
        (),
        ["Pipeline q sends the stream of d from casa to dakar (SN).", ARRIVED],
        "choose a hub in MA",
    ),
    "a stream that its second source forbids": (
        (replace(WIDE, id="e"), DATA, PipelineResource(id="q", reads=("e", "d"), flows=(OUT,))),
        (),
        ["Pipeline q sends the stream of d from casa to dakar (SN).", ARRIVED],
        "choose a hub in MA",
    ),
    "a stream on a link that goes abroad": (
        (DATA, PipelineResource(id="q", reads=("d",), flows=(ALONG,)), SPANISH),
        (),
        ["pipeline q needs d at tanger (MA): transferred from casa over link l (crosses MA, ES).", CROSSED],
        "needs a route without ES",
    ),
    "a stage of a pipeline": (
        (DATA, PipelineResource(id="q", reads=("d",), stages=(Stage(name="s", clusters=("k",)),)), LIAR),
        (),
        ["pipeline q is placed on cluster k.", DECLARED, AT_DAKAR, DONE, BROKEN],
        "let cluster k declare SN, its location",
    ),
    "telemetry that leaves": (
        (DATA, Export(id="x", data=("d",), source="casa")),
        (),
        [
            "Export x shows telemetry of d from casa at a place outside the fleet.",
            "That breaks `perimeter` of d: telemetry would leave the fleet, which is never allowed.",
        ],
        "view it at a hub, e.g. with SENTINEL",
    ),
    "telemetry abroad": (
        (DATA, Export(id="x", data=("d",), source="casa", target="dakar")),
        (),
        ["Export x shows telemetry of d from casa at dakar (SN).", BROKEN],
        "choose a hub in MA",
    ),
    "restricted telemetry at another hub": (
        (
            replace(DATA, tag=tag("MA", classification=Classification.RESTRICTED)),
            Export(id="x", data=("d",), source="casa", target="tanger"),
        ),
        (),
        [
            "Export x shows telemetry of d from casa at tanger (MA).",
            "That breaks `classification` of d: is restricted and would be seen at another hub.",
        ],
        "view it at the hub where it is",
    ),
    "telemetry over a link that lies": (
        (DATA, Export(id="x", data=("d",), source="casa", target="tanger"), LYING),
        (),
        ["export x needs d at tanger (MA): transferred from casa over link l (crosses MA, ES).", CROSSED],
        "let link l declare what it crosses: ES",
    ),
    "a change": (
        (DATA,),
        (change("c1", replace(DATA, hubs=("casa", "dakar")), label="copy to Dakar"),),
        ["Change 1: copy to Dakar.", "A copy of d is stored at dakar (SN).", KEPT],
        "leave out c1, or: choose a hub in MA",
    ),
    "a rule that is gone for a moment": (
        (WIDE, WORK, replace(LIAR, countries=None), STRICT),
        (change("c1", None, replace(STRICT, selector={"x": "y"})),),
        [
            "Change 1: c1, half applied: old one deleted.",
            "workload w is placed on cluster k.",
            "It is admitted because the cluster is assumed by its hub to be in SN.",
            AT_DAKAR,
            DONE,
            BROKEN,
        ],
        "leave out one of c1, or have d declassified first",
    ),
    "two rules that are loosened": (
        (WIDE, WORK, replace(LIAR, countries=None), STRICT, replace(STRICT, id="p2")),
        (
            change("c1", None, of=(ResourceKind.POLICY, "p")),
            change("idle", Overflow(id="o", source="casa", target="tanger")),
            change("c2", Policy(id="p2", countries=("MA",), enforced=False), label="switch p2 off"),
        ),
        [
            "Change 1: c1.",
            "Change 2: switch p2 off.",
            "workload w is placed on cluster k.",
            "It is admitted because the cluster is assumed by its hub to be in SN.",
            AT_DAKAR,
            DONE,
            BROKEN,
        ],
        "leave out one of c1, c2, or have d declassified first",
    ),
}


@pytest.mark.parametrize("what", EXPLAINED)
def test_a_violation_is_explained_step_by_step_with_its_fix(what: str) -> None:
    resources, changes, lines, fix = EXPLAINED[what]
    proof = prove(world(*resources), changes)
    (found,) = proof.counterexamples
    assert (proof.status, proof.reasons, proof.solver_calls) == (ProofStatus.VIOLATED, (), 0)
    assert list(found.explanation) == lines
    assert found.fix == fix
    assert found.supposing == ()
    assert f"`{found.rule}`" in lines[-1]
    assert found.data == ("" if "own countries" in what else "d")


def test_what_was_applied_is_reported_with_how_far_it_got() -> None:
    resources, changes, *_ = EXPLAINED["a rule that is gone for a moment"]
    (found,) = prove(world(*resources), changes).counterexamples
    assert found.changes == (AppliedChange("c1", 1, 2),)
    assert found.changes[0].is_half_done
    resources, changes, *_ = EXPLAINED["a change"]
    (found,) = prove(world(*resources), changes).counterexamples
    assert found.changes == (AppliedChange("c1", 1, 1),)
    assert not found.changes[0].is_half_done


def test_hubs_that_are_down_together_and_values_that_are_supposed_are_reported() -> None:
    step = ProofStep(
        kind=ProofStepKind.REPLICA,
        actor_kind=ResourceKind.DATASET,
        actor="d",
        data="d",
        hub="dakar",
        failed=("casa", "tanger"),
    )
    book = ChangeTracks(world(replace(DATA, spares=("dakar",))))
    reported = build_counterexample(book, step, {}, supposing=("country of x=MA",))
    assert reported.explanation[:2] == ("Suppose that country of x is MA.", "Hub casa and hub tanger are down.")
    assert reported.supposing == ("country of x=MA",)


def test_a_proof_says_what_it_covers() -> None:
    resources, changes, *_ = EXPLAINED["two rules that are loosened"]
    proof = prove(world(*resources), changes)
    assert (proof.resources, proof.changes, proof.combinations, proof.failures) == (8, 3, "8", 3)
    assert (proof.is_complete, proof.suspects) == (True, 1)
    calm = prove(world(DATA, WORK, HOME))
    assert (calm.status, calm.suspects, calm.boxes, calm.combinations) == (ProofStatus.PROVEN, 0, 0, "1")


# The verdict


def test_a_hub_that_no_one_knows_is_no_violation_and_no_proof_and_a_real_one_beside_it_is_a_violation() -> None:
    ghost = replace(DATA, hubs=("ghost",))
    proof = prove(world(ghost))
    assert (proof.status, proof.reasons) == (ProofStatus.UNKNOWN, ())
    assert [(one.rule, one.fix) for one in proof.counterexamples] == [("site", "choose a hub of the fleet")]
    both = prove(world(ghost, replace(DATA, id="e", hubs=("dakar",))))
    assert both.status is ProofStatus.VIOLATED
    assert [one.rule for one in both.counterexamples] == ["site", "rest_in"]


def test_data_that_no_one_describes_is_named_by_everyone_who_uses_it() -> None:
    proof = prove(
        world(
            DATA,
            WorkloadResource(id="w", reads=("d", "ghost")),
            PipelineResource(id="q", reads=("phantom",)),
        ),
        (change("c", WorkloadResource(id="w2", reads=("spectre",))),),
    )
    assert proof.status is ProofStatus.UNKNOWN
    assert proof.reasons == (
        "workload w names data `ghost`, which is not defined",
        "pipeline q names data `phantom`, which is not defined",
        "workload w2 names data `spectre`, which is not defined",
    )
    view = prove(world(Export(id="x", data=("ghost",), source="casa", target="casa")))
    assert view.reasons == ("export x names data `ghost`, which is not defined",)


def test_data_that_a_change_brings_is_defined() -> None:
    assert prove(world(WORK), (change("c", DATA),)).reasons == ()


@pytest.mark.parametrize("count", [19, 20, 21, 30])
def test_twenty_reasons_are_enough(count: int) -> None:
    reads = tuple(f"ghost-{n}" for n in range(count))
    assert len(prove(world(WorkloadResource(id="w", reads=reads))).reasons) == min(count, 20)
    twice = prove(world(WorkloadResource(id="w", reads=("ghost", "ghost"))))
    assert len(twice.reasons) == 1


def test_a_rule_that_changes_and_was_not_known_before_is_no_proof() -> None:
    blank = Policy(id="p", unknown=("countries",))
    before = world(DATA, blank)
    assert prove(before, (change("c", STRICT),), solver=z3).reasons == ("policy p before the change is unknown",)
    assert prove(before, (change("c", Policy(id="p2")),), solver=z3).reasons == ()
    data = world(Dataset(id="d", tag=None, unknown=("tag",)))
    assert prove(data, (change("c", DATA),), solver=z3).reasons == ("dataset d before the change is unknown",)
    assert prove(world(DATA, replace(WORK, unknown=("reads",))), (change("c", WORK),), solver=z3).reasons == ()


# Values that are not known


BLANK = replace(LIAR, countries=None, unknown=("countries",))


def test_what_an_unknown_value_might_do_is_reported_with_the_value_and_is_no_violation() -> None:
    seen: list[tuple[str, int, int]] = []
    proof = prove(
        world(DATA, WORK, replace(WORK, id="w2"), BLANK), solver=z3, progress=lambda *report: seen.append(report)
    )
    assert (proof.status, proof.reasons, proof.solver_calls) == (ProofStatus.UNKNOWN, (), 1)
    (found,) = proof.counterexamples
    assert found.supposing == ("countries of k=MA",)
    assert "Suppose that countries of k is MA." in found.explanation
    assert found.step.actor == "w"
    assert [report for report in seen if report[0] == "solving"] == [("solving", 0, 1)]
    assert {report[0] for report in seen} == {"judging", "following", "solving"}


def test_every_actor_that_something_unknown_might_lead_astray_is_solved_for() -> None:
    seen: list[tuple[str, int, int]] = []
    other = replace(DATA, id="e")
    proof = prove(
        world(DATA, other, WORK, WorkloadResource(id="w2", reads=("e",)), BLANK),
        solver=z3,
        progress=lambda *report: seen.append(report),
    )
    assert (proof.status, proof.solver_calls) == (ProofStatus.UNKNOWN, 2)
    assert sorted(one.step.actor for one in proof.counterexamples) == ["w", "w2"]
    assert [report for report in seen if report[0] == "solving"] == [("solving", 0, 2), ("solving", 1, 2)]


def test_an_unknown_value_that_a_change_brings_is_solved_for_with_the_change() -> None:
    proof = prove(world(DATA, WORK), (change("c", BLANK), change("idle", replace(WORK, id="idle"))), solver=z3)
    assert proof.status is ProofStatus.UNKNOWN
    (found,) = proof.counterexamples
    assert [one.id for one in found.changes] == ["c"]
    later = prove(
        world(DATA, BLANK),
        (change("c", WORK), change("x", Export(id="x", data=("d",), source="casa", target="casa"))),
        solver=z3,
    )
    assert [one.step.actor for one in later.counterexamples] == ["w"]


def test_the_solver_is_not_called_where_something_is_wrong_for_every_value() -> None:
    proof = prove(world(replace(DATA, hubs=("dakar",)), WORK, BLANK), solver=z3)
    assert (proof.status, proof.solver_calls, len(proof.counterexamples)) == (ProofStatus.VIOLATED, 0, 1)
    assert proof.counterexamples[0].supposing == ()


def test_without_a_solver_what_depends_on_a_value_has_no_counterexample() -> None:
    proof = prove(world(DATA, WORK, BLANK))
    assert (proof.status, proof.reasons, proof.counterexamples) == (ProofStatus.UNKNOWN, (NO_SOLVER,), ())
    assert proof.solver_calls == 0


def test_the_solver_is_needed_only_where_something_is_unknown() -> None:
    assert needs_solver(world(BLANK), ())
    assert needs_solver(world(), (change("c", BLANK),))
    assert needs_solver(world(), (change("c", None, BLANK),))
    assert not needs_solver(world(DATA, WORK, LIAR), (change("c", None, of=(ResourceKind.CLUSTER, "k")),))
    assert not needs_solver(world(), ())


# What must not be called proven, because with some value it is a violation


def status(*resources: Resource, changes: tuple[PendingChange, ...] = ()) -> ProofStatus:
    return prove(world(*resources), changes, solver=z3).status


def test_a_tag_that_is_not_known_is_no_proof_while_a_rule_of_the_data_changes() -> None:
    known, blank = replace(WIDE, hubs=()), Dataset(id="d", tag=None, unknown=("tag",))
    away = (change("c", None, of=(ResourceKind.POLICY, "p")),)
    rest = (WORK, replace(LIAR, countries=None), STRICT)
    assert status(known, *rest, changes=away) is ProofStatus.VIOLATED
    proof = prove(world(blank, *rest), away, solver=z3)
    assert (proof.status, proof.reasons) == (ProofStatus.UNKNOWN, ("dataset d before the change is unknown",))
    assert status(blank, *rest) is ProofStatus.PROVEN  # nothing changes
    other = (change("c", None, of=(ResourceKind.POLICY, "other")),)
    assert status(blank, *rest, Policy(id="other", selector={"x": "y"}), changes=other) is ProofStatus.PROVEN
    signed = replace(world(blank, *rest), declassified={"d": tag("MA", "SN")})
    assert prove(signed, away, solver=z3).reasons == ()


def test_a_rule_that_is_not_known_is_no_proof_while_its_data_changes() -> None:
    data = replace(WIDE, hubs=(), labels={"class": "x"})
    freed = (change("c", replace(data, labels={"class": "y"})),)
    rest = (data, WORK, replace(LIAR, countries=None))
    strict = Policy(id="p", selector={"class": "x"}, countries=("MA",))
    blank = Policy(id="p", selector={"class": "x"}, unknown=("countries",))
    assert status(*rest, strict, changes=freed) is ProofStatus.VIOLATED
    proof = prove(world(*rest, blank), freed, solver=z3)
    assert (proof.status, proof.reasons) == (ProofStatus.UNKNOWN, ("policy p before the change is unknown",))
    assert status(*rest, replace(blank, selector={"class": "z"}), changes=freed) is ProofStatus.PROVEN
    two = (data, replace(data, id="e", labels={}), WORK, replace(LIAR, countries=None), blank)
    assert status(*two, changes=(change("c", replace(data, id="e", labels={"n": "m"})),)) is ProofStatus.PROVEN


def test_work_that_may_be_anywhere_may_be_at_a_hub_that_no_one_knows() -> None:
    lost = ClusterResource(id="k", hub="elsewhere", countries=("MA",))
    for work in (
        WORK,
        replace(WORK, clusters=("k",)),
        replace(WORK, hubs=("elsewhere",)),
        replace(WORK, unknown=("clusters",)),
        replace(WORK, unknown=("hubs",)),
    ):
        proof = prove(world(DATA, work, lost), solver=z3)
        assert proof.status is ProofStatus.UNKNOWN, work
        assert [one.rule for one in proof.counterexamples] == ["site"], work
    assert status(DATA, replace(WORK, hubs=("casa",)), lost) is ProofStatus.PROVEN
    assert status(DATA, replace(WORK, clusters=("other",)), lost) is ProofStatus.PROVEN


def test_a_country_that_only_a_rule_names_may_be_the_country_of_a_hub() -> None:
    data = replace(DATA, hubs=())
    loosened = (change("c", replace(data, tag=tag("FR", "MA"))),)
    blank = HubResource(id="x", country=None, unknown=("country",))
    rest = (data, WORK, ClusterResource(id="k", hub="x"))
    assert status(*rest, replace(blank, country="FR", unknown=()), changes=loosened) is ProofStatus.VIOLATED
    proof = prove(world(*rest, blank), loosened, solver=z3)
    assert proof.status is ProofStatus.UNKNOWN
    assert [one.supposing for one in proof.counterexamples] == [("country of x:0=FR",)]


def test_two_countries_that_only_a_rule_names_may_be_the_two_ends_of_a_link() -> None:
    data = replace(DATA, tag=tag("DE", "FR"), hubs=())
    piped = replace(data, flows=(FlowResource(source="x", target="y", via=("l",)),))
    blank = [HubResource(id=id, country=None, unknown=("country",)) for id in ("x", "y")]
    link = LinkResource(id="l", ends=("x", "y"))
    answers = solve(ChangeTracks(world(piped, link, *blank)), z3)
    assert answers.reply is SolverReply.POSSIBLE
    inside = Formulas(ChangeTracks(world(piped, link, *blank)), z3)
    assert inside.countries == ("DE", "FR", "MA", "SN", "ZZ")
    assert Formulas(ChangeTracks(world(data)), z3).countries == ("MA", "SN", "ZZ")
    many = replace(data, tag=tag("BE", "DE", "ES", "FR"))
    assert Formulas(ChangeTracks(world(many, *blank)), z3).countries == ("BE", "DE", "MA", "SN", "ZZ")
    by_itself = Policy(id="p", countries=("ES",))
    assert Formulas(ChangeTracks(world(many, by_itself, *blank)), z3).countries == ("BE", "DE", "ES", "MA", "SN", "ZZ")
    signed = replace(world(many, *blank), declassified={"d": tag("FR")})
    assert Formulas(ChangeTracks(signed), z3).countries == ("BE", "DE", "FR", "MA", "SN", "ZZ")


def test_copies_of_which_no_one_knows_where_they_are_may_come_from_any_of_them() -> None:
    hubs = (HubResource(id="a", country="MA"), HubResource(id="b", country="MA"), HubResource(id="c", country="MA"))
    lying = LinkResource(id="l", ends=("b", "c"), transit_true=("ES",))
    data = Dataset(id="d", tag=tag("MA"), hubs=("b", "c"))
    assert prove(world_of(*hubs, lying, data), solver=z3).status is ProofStatus.VIOLATED
    assert prove(world_of(*hubs, lying, replace(data, hubs=("a", "b", "c"))), solver=z3).status is ProofStatus.PROVEN
    blank = replace(data, hubs=(), unknown=("hubs",))
    proof = prove(world_of(*hubs, lying, blank), solver=z3)
    assert proof.status is ProofStatus.UNKNOWN
    assert [(one.step.link, one.step.source, one.step.hub) for one in proof.counterexamples] == [("l", "b", "c")]
