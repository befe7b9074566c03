"""Does the solver say what enumeration says?"""

from __future__ import annotations

from itertools import combinations

import pytest
import z3

from harch.sovereignty.proof.book import Book
from harch.sovereignty.proof.enumerate import enumerate_violations
from harch.sovereignty.proof.model import (
    Change,
    Cluster,
    Hub,
    Link,
    Policy,
    Resource,
    Workload,
    World,
    kind_of,
    world_of,
)
from harch.sovereignty.proof.paths import lines_between
from harch.sovereignty.proof.prove import NO_SOLVER, Status, prove
from harch.sovereignty.proof.symbolic import Reply, load_solver, solve
from proof_random import HUBS, random_case


def test_solver_and_enumeration_agree_on_random_worlds() -> None:
    for seed in range(25):
        book = Book(*random_case(10_000 + seed))
        found = bool(enumerate_violations(book).violations)
        assert solve(book, z3).reply is (Reply.POSSIBLE if found else Reply.NEVER), seed


def test_without_the_solver_what_depends_on_unknown_values_is_not_proven() -> None:
    world = world_of(
        Hub(id="a", country="MA"),
        Cluster(id="k", hub="a", unknown=("countries",)),
        Workload(id="w", countries=("SN",)),
    )
    assert prove(world, solver=load_solver()).status is Status.UNKNOWN
    without = prove(world)
    assert (without.status, without.reasons) == (Status.UNKNOWN, (NO_SOLVER,))


def test_a_field_that_nothing_can_be_said_about_is_no_proof() -> None:
    world = world_of(Hub(id="a", country="MA"), Policy(id="p", unknown=("frameworks",)))
    assert prove(world, solver=load_solver()).reasons == ("policy.frameworks of p is not known",)


SETS = [tuple(found) for size in range(4) for found in combinations(("CI", "MA", "SN"), size)]
UNKNOWNS: dict[str, tuple[Resource, list[Resource]]] = {
    "countries of a cluster": (
        Cluster(id="k0", hub="c", unknown=("countries",)),
        [Cluster(id="k0", hub="c", countries=found) for found in SETS],
    ),
    "hub of a cluster": (
        Cluster(id="k0", hub="", countries=("MA",), unknown=("hub",)),
        [Cluster(id="k0", hub=hub, countries=("MA",)) for hub in HUBS],
    ),
    "country of a hub": (
        Hub(id="b", country=None, frameworks=("law-x",), unknown=("country",)),
        [Hub(id="b", country=country, frameworks=("law-x",)) for country in ("MA", "SN", "CI", "FR")],
    ),
    "route of a link": (
        Link(id="l0", ends=("a", "b"), encrypted=True, unknown=("transit",)),
        [
            Link(id="l0", ends=("a", "b"), encrypted=True, transit=(*found, *far))
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

        def book(after: Resource, world: World = world, changes: tuple[Change, ...] = changes) -> Book:
            update = Change(id="update", kind=kind_of(after), key=after.id, passes=(after,))
            return Book(world, (*changes, update))

        expected = any(enumerate_violations(book(option)).violations for option in options)
        assert solve(book(blank), z3).reply is (Reply.POSSIBLE if expected else Reply.NEVER), seed
        proof = prove(world, book(blank).changes, solver=load_solver())
        if not any("not described" in reason for reason in proof.reasons):
            assert (proof.status is Status.PROVEN) == (not expected), seed
        if proof.status is Status.VIOLATED:  # then it is so for every value
            assert all(enumerate_violations(book(option)).violations for option in options), seed


def test_links_between_two_hubs_are_those_on_simple_paths() -> None:
    lines = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e")]
    assert lines_between(lines, "a", "b") == {0, 1, 2}
    assert lines_between(lines, "a", "d") == {0, 1, 2, 3}
    assert lines_between(lines, "d", "e") == {4}
    assert lines_between(lines, "a", "a") == set()
    assert lines_between(lines, "a", "nowhere") == set()
