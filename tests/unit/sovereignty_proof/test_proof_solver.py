"""Does the solver say what enumeration says?"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.sovereignty.proof.book import Book
from harch.sovereignty.proof.enumerate import enumerate_violations
from harch.sovereignty.proof.model import Cluster, Hub, Kind, Policy, Workload, world_of
from harch.sovereignty.proof.paths import lines_between
from harch.sovereignty.proof.prove import NO_SOLVER, Status, prove
from harch.sovereignty.proof.symbolic import Reply, load_solver, solve
from proof_random import random_case

z3 = pytest.importorskip("z3")


def test_solver_and_enumeration_agree_on_random_worlds() -> None:
    for seed in range(40):
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


def test_unknown_values_are_never_better_than_any_value_they_could_have() -> None:
    for seed in range(30):
        world, changes = random_case(20_000 + seed, changes_max=1)
        clusters = world.of(Kind.CLUSTER)
        if "k0" not in clusters:
            continue
        blank = replace(clusters["k0"], unknown=("countries",))
        hazy = replace(world, resources={**world.resources, Kind.CLUSTER: {**clusters, "k0": blank}})
        if prove(hazy, changes, solver=load_solver()).status is Status.PROVEN:
            assert prove(world, changes).status is Status.PROVEN, seed


def test_links_between_two_hubs_are_those_on_simple_paths() -> None:
    lines = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e")]
    assert lines_between(lines, "a", "b") == {0, 1, 2}
    assert lines_between(lines, "a", "d") == {0, 1, 2, 3}
    assert lines_between(lines, "d", "e") == {4}
    assert lines_between(lines, "a", "a") == set()
    assert lines_between(lines, "a", "nowhere") == set()
