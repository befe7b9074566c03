"""Does a story happen as it is told? Its changes are applied to the plain world, and the oracle is asked."""

from __future__ import annotations

from harch.sovereignty.proof.model import PendingChange, ProofWorld, ResourceKind
from harch.sovereignty.proof.prove import Counterexample
from proof_oracle import Oracle, absent_now, apply, scenarios


def replay(world: ProofWorld, changes: tuple[PendingChange, ...], story: Counterexample) -> str:
    """Empty if the story is right; else what is wrong with it."""
    done = {change.id: change.passes for change in story.changes}
    if not _happens(world, changes, story, done):
        return "the oracle does not see it happen"
    # Changes of one resource keep their order, so only the last one of each can be left out.
    last = {(change.kind, change.key): change.id for change in changes if change.id in done}
    for left_out in last.values():
        rest = {name: passes for name, passes in done.items() if name != left_out}
        if _happens(world, changes, story, rest):
            return f"it happens without {left_out} too"
    if story.step.failed and _happens(world, changes, story, done, failed=()):
        return "it happens without the failure too"
    if not story.fix or not story.explanation or not story.rule:
        return "it does not say what to do"
    return ""


def _happens(
    world: ProofWorld,
    changes: tuple[PendingChange, ...],
    story: Counterexample,
    done: dict[str, int],
    failed: tuple[str, ...] | None = None,
) -> bool:
    taken = [(change, index) for change in changes for index in range(done.get(change.id, 0))]
    now = apply(world, taken)
    step = story.step
    down = frozenset(step.failed if failed is None else failed)
    if down not in scenarios(now):
        return False
    for kind in (ResourceKind.WORKLOAD, ResourceKind.PIPELINE, ResourceKind.EXPORT):  # the others have no part in it
        now[kind] = {key: one for key, one in now[kind].items() if (kind, key) == (step.actor_kind, step.actor)}
    absent = absent_now(world, changes, now)
    oracle = Oracle(world, now, down, absent)
    if step.actor_kind is ResourceKind.DATASET:
        now[ResourceKind.DATASET] = {key: one for key, one in now[ResourceKind.DATASET].items() if key == step.actor}
    what = {
        ResourceKind.WORKLOAD: oracle.work,
        ResourceKind.PIPELINE: oracle.pipelines,
        ResourceKind.DATASET: oracle.copies,
        ResourceKind.EXPORT: oracle.exports,
    }[step.actor_kind]
    told = (step.kind.value, step.actor, step.data, step.hub, step.cluster, step.source, step.link)
    return told in set(what())
