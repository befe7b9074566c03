"""Is a proof worth its name? Against brute force over all orders, and under tighter rules."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harch.sovereignty.proof.enumerate import enumerate_violations
from harch.sovereignty.proof.model import ChangeTracks, Dataset, Policy, ProofWorld, ResourceKind, WorkloadResource
from harch.sovereignty.proof.prove import ProofStatus, prove
from proof_oracle import brute_force
from proof_random import random_case
from proof_replay import replay

seeds = st.integers(min_value=0, max_value=10**9)


@settings(max_examples=120, deadline=None)
@given(seeds)
def test_enumeration_finds_what_brute_force_finds_over_all_subsets_and_orders(seed: int) -> None:
    world, changes = random_case(seed)
    found = enumerate_violations(ChangeTracks(world, changes))
    assert not found.undecided
    mine = {one.step.breach for one in found.violations}
    assert mine == {
        (kind, data, hub, cluster, link) for kind, _, data, hub, cluster, _, link in brute_force(world, changes)
    }


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_every_story_happens_and_names_no_change_that_it_does_not_need(seed: int) -> None:
    world, changes = random_case(seed)
    for story in prove(world, changes).counterexamples:
        assert replay(world, changes, story) == ""


@settings(max_examples=80, deadline=None)
@given(seeds, st.sampled_from(["less work", "fewer copies", "fewer links", "fewer changes"]))
def test_restrictions_never_make_a_proven_world_violated(seed: int, how: str) -> None:
    world, changes = random_case(seed)
    if prove(world, changes).status is not ProofStatus.PROVEN:
        return
    match how:
        case "less work":
            tighter = _with(world, ResourceKind.WORKLOAD, {})
            changes = tuple(c for c in changes if not any(isinstance(one, WorkloadResource) for one in c.passes))
        case "fewer copies":
            data = {
                key: replace(one, hubs=one.hubs[:1], spares=(), flows=())
                for key, one in world.of(ResourceKind.DATASET).items()
                if isinstance(one, Dataset)
            }
            tighter = _with(world, ResourceKind.DATASET, data)
        case "fewer links":
            tighter = _with(world, ResourceKind.LINK, dict(list(world.of(ResourceKind.LINK).items())[1:]))
        case _:
            if changes and changes[-1].key not in world.of(changes[-1].kind) and None in changes[-1].passes:
                return  # it also told that something is gone: without it that is unknown, which is no restriction
            tighter, changes = world, changes[:-1]
    assert prove(tighter, changes).status is ProofStatus.PROVEN


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_a_policy_that_everything_obeys_already_changes_no_verdict(seed: int) -> None:
    world, changes = random_case(seed)
    idle = Policy(id="idle", countries=("CI", "MA", "SN"))
    more = _with(world, ResourceKind.POLICY, {**world.of(ResourceKind.POLICY), idle.id: idle})
    assert prove(more, changes).status is prove(world, changes).status


def _with(world: ProofWorld, kind: ResourceKind, found: dict) -> ProofWorld:
    return replace(world, resources={**world.resources, kind: found})
