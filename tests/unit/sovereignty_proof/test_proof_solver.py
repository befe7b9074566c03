"""Does the solver say what enumeration says?"""

from __future__ import annotations

from itertools import combinations

import pytest
import z3

from harch.sovereignty.proof.enumerate import enumerate_violations
from harch.sovereignty.proof.model import (
    ChangeTracks,
    ClusterResource,
    HubResource,
    LinkResource,
    PendingChange,
    Policy,
    ProofWorld,
    Resource,
    WorkloadResource,
    kind_of,
    world_of,
)
from harch.sovereignty.proof.prove import NO_SOLVER, ProofStatus, prove
from harch.sovereignty.proof.steps import lines_between
from harch.sovereignty.proof.symbolic import SolverReply, load_solver, solve
from proof_random import HUBS, random_case


def test_solver_and_enumeration_agree_on_random_worlds() -> None:
    for seed in range(25):
        book = ChangeTracks(*random_case(10_000 + seed))
        found = bool(enumerate_violations(book).violations)
        assert solve(book, z3).reply is (SolverReply.POSSIBLE if found else SolverReply.NEVER), seed


def test_without_the_solver_what_depends_on_unknown_values_is_not_proven() -> None:
    world = world_of(
        HubResource(id="a", country="MA"),
        ClusterResource(id="k", hub="a", unknown=("countries",)),
        WorkloadResource(id="w", countries=("SN",)),
    )
    assert prove(world, solver=load_solver()).status is ProofStatus.UNKNOWN
    without = prove(world)
    assert (without.status, without.reasons) == (ProofStatus.UNKNOWN, (NO_SOLVER,))


def test_a_field_that_nothing_can_be_said_about_is_no_proof() -> None:
    world = world_of(HubResource(id="a", country="MA"), Policy(id="p", unknown=("frameworks",)))
    assert prove(world, solver=load_solver()).reasons == ("policy.frameworks of p is unknown",)


SETS = [tuple(found) for size in range(4) for found in combinations(("CI", "MA", "SN"), size)]
UNKNOWNS: dict[str, tuple[Resource, list[Resource]]] = {
    "countries of a cluster": (
        ClusterResource(id="k0", hub="c", unknown=("countries",)),
        [ClusterResource(id="k0", hub="c", countries=found) for found in SETS],
    ),
    "hub of a cluster": (
        ClusterResource(id="k0", hub="", countries=("MA",), unknown=("hub",)),
        [ClusterResource(id="k0", hub=hub, countries=("MA",)) for hub in HUBS],
    ),
    "country of a hub": (
        HubResource(id="b", country=None, frameworks=("law-x",), unknown=("country",)),
        [HubResource(id="b", country=country, frameworks=("law-x",)) for country in ("MA", "SN", "CI", "FR")],
    ),
    "route of a link": (
        LinkResource(id="l0", ends=("a", "b"), encrypted=True, unknown=("transit",)),
        [
            LinkResource(id="l0", ends=("a", "b"), encrypted=True, transit=(*found, *far))
            for found in SETS
            for far in ((), ("FR",))
        ],
    ),
    "countries of a policy": (
        Policy(id="p9", may_cross_borders=False, unknown=("countries",)),
        [Policy(id="p9", may_cross_borders=False, countries=found) for found in SETS],
    ),
}


@pytest.mark.parametrize("what", UNKNOWNS)
def test_the_solver_finds_a_violation_exactly_if_some_value_leads_to_one(what: str) -> None:
    blank, options = UNKNOWNS[what]
    for seed in range(8):
        world, changes = random_case(30_000 + seed, changes_max=1)

        def book(
            after: Resource, world: ProofWorld = world, changes: tuple[PendingChange, ...] = changes
        ) -> ChangeTracks:
            update = PendingChange(id="update", kind=kind_of(after), key=after.id, passes=(after,))
            return ChangeTracks(world, (*changes, update))

        expected = any(enumerate_violations(book(option)).violations for option in options)
        assert solve(book(blank), z3).reply is (SolverReply.POSSIBLE if expected else SolverReply.NEVER), seed
        proof = prove(world, book(blank).changes, solver=load_solver())
        if not any("not defined" in reason for reason in proof.reasons):
            assert (proof.status is ProofStatus.PROVEN) == (not expected), seed
        if proof.status is ProofStatus.VIOLATED:  # then it is so for every value
            assert all(enumerate_violations(book(option)).violations for option in options), seed


def test_links_between_two_hubs_are_those_on_simple_paths() -> None:
    lines = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e")]
    assert lines_between(lines, "a", "b") == {0, 1, 2}
    assert lines_between(lines, "a", "d") == {0, 1, 2, 3}
    assert lines_between(lines, "d", "e") == {4}
    assert lines_between(lines, "a", "a") == set()
    assert lines_between(lines, "a", "nowhere") == set()
