"""Does any combination of the pending changes, under any single hub failure, break a tag? By hulls that are split.

The hull of all choices is judged first: if it is clean, every combination in every order is. Each finding of the hull
is then followed alone, over the changes that have a part in it: if the finding vanishes from the hull of a box of
choices, no choice of that box has it; else the box is split at one change. A box of one choice is a real world, so what
is found there is real. The number of boxes per finding is limited; beyond the limit nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from msgspec import Struct

from harch.sovereignty.proof.model import (
    Box,
    ChangeTracks,
    Choice,
    Dataset,
    NodeResource,
    PipelineResource,
    Policy,
    ResourceKind,
    WorkloadResource,
)
from harch.sovereignty.proof.steps import ProofStep, ProofStepKind, StepChecker
from harch.sovereignty.proof.view import Stance, WorldView, may_select

BOXES_MAX = 20_000
FOUND_MAX = 100  # violations that are followed to the end; more of them would tell nobody more
ACTORS = (ResourceKind.DATASET, ResourceKind.WORKLOAD, ResourceKind.PIPELINE, ResourceKind.EXPORT)
# In this order a box is split: what decides most comes first, so that boxes are discarded early.
_ORDER = (
    ResourceKind.DATASET,
    ResourceKind.POLICY,
    ResourceKind.WORKLOAD,
    ResourceKind.PIPELINE,
    ResourceKind.EXPORT,
    ResourceKind.CLUSTER,
    ResourceKind.NODE,
    ResourceKind.LINK,
    ResourceKind.OVERFLOW,
    ResourceKind.HUB,
)
Progress = Callable[[str, int, int], None]


class FoundViolation(Struct, frozen=True):
    """A violation, and the choice of stages under which it happens."""

    step: ProofStep
    choice: Choice


class Findings(Struct, frozen=True, kw_only=True):
    """`depends`: happen for some values that are not known; `undecided`: too many combinations to tell."""

    violations: tuple[FoundViolation, ...]
    depends: tuple[FoundViolation, ...]
    undecided: tuple[ProofStep, ...]
    suspects: int  # breaches in the hull
    boxes: int
    is_complete: bool  # false: more violations were left unfollowed


def no_progress(_what: str, _done: int, _total: int) -> None:
    """For callers that do not want to know."""


def enumerate_violations(book: ChangeTracks, progress: Progress = no_progress) -> Findings:
    """All breaches, each with its first witness. Deterministic: equal books give equal findings."""
    suspects = _suspects(book, progress)
    violations: list[FoundViolation] = []
    depends: list[FoundViolation] = []
    undecided: list[ProofStep] = []
    boxes = 0
    is_complete = True
    for number, steps in enumerate(suspects.values()):
        if len(violations) >= FOUND_MAX:
            is_complete = False
            break
        progress("following", number, len(suspects))
        search = _Search(book)
        found = search.first(steps)
        boxes += search.boxes
        if found is not None:
            (violations if search.is_certain else depends).append(found)
        elif search.is_exhausted:
            undecided.append(steps[0])
    return Findings(
        violations=tuple(violations),
        depends=tuple(depends),
        undecided=tuple(undecided),
        suspects=len(suspects),
        boxes=boxes,
        is_complete=is_complete,
    )


def combinations(book: ChangeTracks) -> int:
    """How many different states the pending changes can leave the world in."""
    return prod(len(track.stages) for track in book.tracks)


def _suspects(book: ChangeTracks, progress: Progress) -> dict[tuple[str, ...], list[ProofStep]]:
    """What the hull of everything can do wrong, by breach."""
    view = WorldView(book, book.box_of_all())
    judge = StepChecker(view)
    actors = [(kind, key) for kind in ACTORS for key in view.all(kind)]
    found: dict[tuple[str, ...], dict[ProofStep, None]] = {}
    for number, (kind, key) in enumerate(actors):
        if number % 64 == 0:
            progress("judging", number, len(actors))
        for step in judge.of(kind, key):
            found.setdefault(step.breach, {})[step] = None
    return {breach: list(steps) for breach, steps in found.items()}


class _Search:
    """Looks for one choice under which one of some steps happens."""

    def __init__(self, book: ChangeTracks) -> None:
        self._book = book
        self.boxes = 0
        self.is_certain = True  # whatever the values are that are not known
        self.is_exhausted = False

    def first(self, steps: list[ProofStep]) -> FoundViolation | None:
        stances = (Stance.FAVOURABLE, Stance.ADVERSE) if self._book.has_unknowns else (Stance.ADVERSE,)
        for stance in stances:
            self.is_certain = stance is stances[0]
            for step in steps:
                tracks = support(self._book, step)
                box = {number: tuple(range(len(self._book.tracks[number].stages))) for number in tracks}
                choice = self._split(step, box, list(tracks), stance)
                if choice is not None:
                    return FoundViolation(step, self._shrink(step, choice, stance))
        return None

    def _split(self, step: ProofStep, box: Box, free: list[int], stance: Stance) -> Choice | None:
        if self.boxes >= BOXES_MAX:
            self.is_exhausted = True
            return None
        self.boxes += 1
        if not happens(self._book, box, step, stance):
            return None
        if not free:
            return {number: stages[0] for number, stages in box.items()}
        first, *rest = free
        for stage in box[first]:
            choice = self._split(step, {**box, first: (stage,)}, rest, stance)
            if choice is not None:
                return choice
        return None

    def _shrink(self, step: ProofStep, choice: Choice, stance: Stance) -> Choice:
        """Takes back every change that the step does not need, so that the story names no bystanders."""
        kept = {number: stage for number, stage in choice.items() if stage}
        for number in list(kept):
            for earlier in range(kept[number]):
                tried = {**kept, number: earlier}
                if happens(self._book, {n: (stage,) for n, stage in tried.items()}, step, stance):
                    kept = tried
                    break
        return {number: stage for number, stage in kept.items() if stage}


def happens(book: ChangeTracks, box: Box, step: ProofStep, stance: Stance = Stance.ADVERSE) -> bool:
    """Whether this very step is found in a box of choices."""
    judge = StepChecker(WorldView(book, box, stance), only=step)
    return any(found == step for found in judge.of(step.actor_kind, step.actor))


def support(book: ChangeTracks, step: ProofStep) -> tuple[int, ...]:
    """The tracks that can make a difference to a step, those that decide most first; all others may stand anywhere."""
    data, clusters = _touched(book, step)
    keys = {(step.actor_kind, step.actor), (ResourceKind.HUB, step.hub)}
    keys.update((ResourceKind.DATASET, key) for key in data)
    keys.update((ResourceKind.CLUSTER, key) for key in clusters)
    keys.update((ResourceKind.NODE, key) for key in _nodes_of(book, clusters))
    keys.update((ResourceKind.POLICY, key) for key in _policies_of(book, data))
    kinds: set[ResourceKind] = set()
    if step.cluster or step.link or step.failed:
        kinds.add(ResourceKind.HUB)  # a hub speaks for its clusters, stands at the ends of links, and can fail
    if step.link:
        kinds.add(ResourceKind.LINK)
    if step.actor_kind is ResourceKind.WORKLOAD:
        kinds.add(ResourceKind.OVERFLOW)
    return tuple(sorted(book.tracks_among(keys, kinds), key=lambda n: (_ORDER.index(book.tracks[n].key[0]), n)))


def _touched(book: ChangeTracks, step: ProofStep) -> tuple[set[str], set[str]]:
    """The data and the clusters that the step's actor can have to do with."""
    data = {step.data} - {""}
    clusters = {step.cluster} - {""}
    for actor in _stages(book, step.actor_kind, step.actor):
        if isinstance(actor, WorkloadResource | PipelineResource):
            data.update(book.everything(ResourceKind.DATASET) if "reads" in actor.unknown else actor.reads)
        if isinstance(actor, WorkloadResource):
            clusters.update(actor.clusters)
        elif isinstance(actor, PipelineResource) and step.kind is ProofStepKind.EDGE:
            for stage in actor.stages:
                clusters.update(stage.clusters or book.everything(ResourceKind.CLUSTER))
    return data, clusters


def _policies_of(book: ChangeTracks, data: set[str]) -> set[str]:
    """The changing policies that select any of the data at any of its stages."""
    datasets = [one for key in data for one in _stages(book, ResourceKind.DATASET, key) if isinstance(one, Dataset)]
    found = set()
    for kind, key in book.track_of:
        policies = (one for one in _stages(book, kind, key) if isinstance(one, Policy))
        if kind is ResourceKind.POLICY and any(may_select(policy, one) for policy in policies for one in datasets):
            found.add(key)
    return found


def _nodes_of(book: ChangeTracks, clusters: set[str]) -> set[str]:
    return {
        key
        for kind, key in book.track_of
        if kind is ResourceKind.NODE
        and any(isinstance(node, NodeResource) and node.cluster in clusters for node in _stages(book, kind, key))
    }


def _stages(book: ChangeTracks, kind: ResourceKind, key: str) -> Iterator[object]:
    track = book.track_of.get((kind, key))
    yield from book.tracks[track].stages if track is not None else (book.world.of(kind).get(key),)
