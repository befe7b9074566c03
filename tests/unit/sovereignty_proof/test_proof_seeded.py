"""Is every kind of mistake found, and told as it happens?"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.sovereignty.proof.model import PendingChange, Policy, ResourceKind
from harch.sovereignty.proof.prove import ProofStatus, prove
from proof_replay import replay
from proof_seeded import KINDS, clean_world, harmless_changes, seeded

WORLD = clean_world(size=300)


def test_a_clean_fleet_is_proven_with_harmless_changes_pending() -> None:
    assert prove(WORLD).status is ProofStatus.PROVEN
    for seed in range(3):
        proof = prove(WORLD, tuple(harmless_changes(WORLD, seed)))
        assert (proof.status, proof.counterexamples, proof.reasons) == (ProofStatus.PROVEN, (), ())


@pytest.mark.parametrize("number", range(3 * len(KINDS)))
def test_a_seeded_violation_is_found_with_a_story_that_the_oracle_replays(number: int) -> None:
    seed = seeded(WORLD, number)
    proof = prove(seed.world, seed.changes)
    assert proof.status is ProofStatus.VIOLATED
    hits = [story for story in proof.counterexamples if seed.is_it(story.step)]
    assert any({change.id for change in story.changes} >= seed.needs for story in hits), seed.kind
    for story in [*hits[:5], *proof.counterexamples[:5]]:
        assert replay(seed.world, seed.changes, story) == ""


def test_each_step_of_a_loosening_in_two_steps_is_harmless_alone() -> None:
    seed = seeded(WORLD, list(KINDS).index("policy loosened in two steps"))
    for left_out in seed.needs:
        rest = tuple(change for change in seed.changes if change.id != left_out)
        assert prove(seed.world, rest).status is ProofStatus.PROVEN


def test_many_changes_that_concern_other_data_do_not_stand_in_the_way() -> None:
    policies = [policy for policy in WORLD.of(ResourceKind.POLICY).values() if isinstance(policy, Policy)]
    tighter = tuple(
        PendingChange(
            id=f"tighter {policy.id}",
            kind=ResourceKind.POLICY,
            key=policy.id,
            passes=(replace(policy, frameworks=("law",), countries=("MA",)),),
        )
        for policy in policies
    )
    renamed = tuple(
        PendingChange(
            id=f"new {n}",
            kind=ResourceKind.POLICY,
            key=f"new {n}",
            passes=(Policy(id=f"new {n}", selector={"x": str(n)}),),
        )
        for n in range(40)
    )
    proof = prove(WORLD, (*tighter, *renamed))
    assert (proof.status, proof.reasons) == (ProofStatus.PROVEN, ())


def test_equal_inputs_give_equal_proofs() -> None:
    seed = seeded(WORLD, 3)
    assert prove(seed.world, seed.changes) == prove(seed.world, seed.changes)
