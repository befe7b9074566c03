"""What was requested lately, and what does it teach?

A bounded memory of requests; typical sequences, kinds, model shares and scarce shapes, as arrays.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from harch.placement.policy.shapes import (
    AMOUNT_MAX,
    GIVE_BACK,
    GPU_MILLI,
    Floats,
    Ints,
    NodeArrays,
    ShapeRequest,
    SmallInts,
)

# What does the history teach? Typical sequences, kinds, model shares and scarce shapes, as arrays for the kernels.
#
# Learning is a pure function: it is run aside, and the engine swaps the result in as one value.


SEQUENCES = 64  # fewer are faster and follow chance more; twice as many gained nothing
SEQUENCE_LENGTH = 32
FRAGMENT_WEIGHT_MAX = 0.1
KINDS_MAX = 512  # commonest first; what lies beyond is too rare to weigh
MODEL_SETS_MAX = 64
BLOCK_CLASSES_MAX = 8  # eight bits each in one packed integer of the score cache
SCARCE_BELOW = 0.5  # a shape is scarce when the nodes that hold it have less than this share of its room in the fleet
SHUFFLE_SEED = 1  # fixed once; results vary with it by chance, so it is never tuned

_CPU, _MEMORY, _GPUS, _GPU_MILLI, _MODELS = range(5)

# Fields of a sequence's item. "Ahead" is the least that a GPU item from here on asks for: a rollout stops below it.
ITEM_CPU, ITEM_MEMORY, ITEM_GPUS, ITEM_MILLI, ITEM_DEMAND, ITEM_MILLI_AHEAD, ITEM_CPU_AHEAD = range(7)
ITEM_FIELDS = 7


class Lessons(NamedTuple):
    """Everything the kernels need to know about the mix. Empty arrays mean: nothing learned, plain best fit."""

    items: SmallInts  # [model, position, field * SEQUENCES + sequence]: what a node of this model may get, in order
    fragment_weight: float
    turnover: float  # 0: the fleet fills up, nothing leaves; 1: as much leaves as comes
    kinds: Ints  # [kind, (cpu_milli, gpus, gpu_milli, models)], ordered by gpu_milli
    kind_counts: Ints
    set_models: Ints  # model sets that requests name, without "any"
    set_shares: Floats  # their share of the GPU demand
    block_gpus: Ints
    block_cpu_milli: Ints
    block_memory_mib: Ints
    block_models: Ints
    block_rates: Floats  # requests of this class per milli-GPU of demand


def learn(history: Ints, nodes: NodeArrays, models: int, turnover: float = 0.0) -> Lessons:
    """Builds lessons from rows of canonical requests; the order of rows that are equal does not matter."""
    items = _sequences(history, models)
    kinds, kind_counts = _kinds(history)
    set_models, set_shares = _model_shares(history, models)
    blocks, block_rates = _block_classes(history, nodes)
    return Lessons(
        items=items,
        fragment_weight=_fragment_weight(history, nodes),
        turnover=turnover,
        kinds=kinds,
        kind_counts=kind_counts,
        set_models=set_models,
        set_shares=set_shares,
        block_gpus=np.ascontiguousarray(blocks[:, 0]),
        block_cpu_milli=np.ascontiguousarray(blocks[:, 1]),
        block_memory_mib=np.ascontiguousarray(blocks[:, 2]),
        block_models=np.ascontiguousarray(blocks[:, 3]),
        block_rates=block_rates,
    )


def _fragment_weight(history: Ints, nodes: NodeArrays) -> float:
    """How much the fragment counts beside the rollout value: fully where the mix is short of CPU, hardly elsewhere.

    The fragment guards the CPU that GPUs need. Where the mix asks for less CPU per GPU than the fleet has, the rollouts
    see what matters, and the fragment's steps only blur them.
    """
    demand_gpu_milli = int((history[:, _GPUS] * history[:, _GPU_MILLI]).sum())
    fleet_cpu_milli = int(nodes.cpu_milli.sum())
    if demand_gpu_milli == 0 or fleet_cpu_milli == 0:
        return 0.0
    demand_cpu_milli = int(history[:, _CPU].sum())
    pressure = min(1.0, demand_cpu_milli / demand_gpu_milli * nodes.gpu_milli_total / fleet_cpu_milli)
    return FRAGMENT_WEIGHT_MAX * pressure**4


def common_kinds(history: Ints, coverage: float) -> tuple[Ints, Ints]:
    """Kinds (cpu_milli, gpus, gpu_milli, models), commonest first, until they cover this share of the requests."""
    if len(history) == 0:
        return np.zeros((0, 4), dtype=np.int64), np.zeros(0, dtype=np.int64)
    rows = history[:, [_CPU, _GPUS, _GPU_MILLI, _MODELS]]
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    covered = np.cumsum(counts[order])
    enough = int(np.searchsorted(covered, coverage * len(history))) + 1
    order = order[: min(enough, KINDS_MAX)]
    # Ordered by device share, so that the kernel counts fitting devices once per share and not once per kind.
    order = order[np.argsort(kinds[order, 2], kind="stable")]
    return np.ascontiguousarray(kinds[order]), counts[order].astype(np.int64)


def _kinds(history: Ints) -> tuple[Ints, Ints]:
    return common_kinds(history, coverage=1.0)


def _sequences(history: Ints, models: int) -> SmallInts:
    """Stratified samples of the history, each shuffled, then filtered per model of node.

    Every sequence walks the sorted history in equal steps from its own offset: together they cover the mix evenly,
    and each of them alone is a fair picture of it.
    """
    if len(history) == 0:
        return np.zeros((models, 0, ITEM_FIELDS * SEQUENCES), dtype=np.int32)
    order = np.lexsort(tuple(history[:, column] for column in (_MEMORY, _CPU, _MODELS, _GPU_MILLI, _GPUS)))
    ordered = _single_device_shares(history[order])
    random = _SplitMix(SHUFFLE_SEED)
    offsets = random.permutation(SEQUENCES)
    items = np.zeros((models, SEQUENCE_LENGTH, ITEM_FIELDS, SEQUENCES), dtype=np.int32)
    items[:, :, [ITEM_MILLI_AHEAD, ITEM_CPU_AHEAD]] = AMOUNT_MAX  # behind the end of a sequence nothing more is asked
    steps = np.arange(SEQUENCE_LENGTH)
    for sequence in range(SEQUENCES):
        places = (steps + (offsets[sequence] + 0.5) / SEQUENCES) / SEQUENCE_LENGTH * len(ordered)
        drawn = ordered[places.astype(np.int64)][random.permutation(SEQUENCE_LENGTH)]
        for model in range(models):
            usable = drawn[(drawn[:, _MODELS] >> model) & 1 == 1]
            items[model, : len(usable), :, sequence] = _with_outlook(usable)
    return items.reshape(models, SEQUENCE_LENGTH, -1)


def _with_outlook(drawn: Ints) -> Ints:
    """Rows of a sequence with all their fields."""
    requested = np.where(drawn[:, [_GPUS]] > 0, drawn[:, [_GPU_MILLI, _CPU]], AMOUNT_MAX)
    ahead = np.minimum.accumulate(requested[::-1], axis=0)[::-1]
    demand = drawn[:, [_GPUS]] * drawn[:, [_GPU_MILLI]]
    rows: Ints = np.concatenate([drawn[:, [_CPU, _MEMORY, _GPUS, _GPU_MILLI]], demand, ahead], axis=1)
    return rows


def _single_device_shares(rows: Ints) -> Ints:
    """Several shares at once enter a rollout as one share of one device, with its part of CPU and memory."""
    rows = rows.copy()
    several = (rows[:, _GPUS] > 1) & (rows[:, _GPU_MILLI] < GPU_MILLI)
    for column in (_CPU, _MEMORY):
        rows[several, column] //= rows[several, _GPUS]
    rows[several, _GPUS] = 1
    return rows


def _model_shares(history: Ints, models: int) -> tuple[Ints, Floats]:
    demand = history[:, _GPUS] * history[:, _GPU_MILLI]
    named = history[:, _MODELS] != (1 << models) - 1  # requests without GPUs name no model
    sets, where = np.unique(history[named, _MODELS], return_inverse=True)
    wanted = np.bincount(where, weights=demand[named].astype(np.float64))
    keep = np.sort(np.argsort(-wanted, kind="stable")[:MODEL_SETS_MAX])
    return sets[keep], wanted[keep] / demand.sum()


def _block_classes(history: Ints, nodes: NodeArrays) -> tuple[Ints, Floats]:
    """Multi-GPU shapes that few nodes can hold, each its own class; the others by number of GPUs alone."""
    several = history[history[:, _GPUS] >= 2]
    demand = int((history[:, _GPUS] * history[:, _GPU_MILLI]).sum())
    if len(several) == 0:
        return np.zeros((0, 4), dtype=np.int64), np.zeros(0)
    shapes = np.stack([nodes.cpu_milli, nodes.memory_mib, nodes.gpus, nodes.model], axis=1)
    classes, class_sizes = np.unique(shapes, axis=0, return_counts=True)
    kinds, counts = np.unique(several, axis=0, return_counts=True)
    groups: dict[tuple[int, bytes], list[int]] = {}
    room_of_kind = np.zeros(len(kinds), dtype=np.int64)
    for index, (cpu_milli, memory_mib, gpus, _, mask) in enumerate(kinds):
        holds = (classes[:, 0] >= cpu_milli) & (classes[:, 1] >= memory_mib) & (classes[:, 2] >= gpus)
        holds &= (mask >> classes[:, 3]) & 1 == 1
        room = class_sizes * (classes[:, 2] // gpus)
        room_of_kind[index] = room[holds].sum()
        scarce = room_of_kind[index] < SCARCE_BELOW * room.sum()
        groups.setdefault((int(gpus), holds.tobytes() if scarce else b""), []).append(index)
    found = []
    for (gpus, _), members in groups.items():
        rows = np.repeat(kinds[members], counts[members], axis=0)
        typical_cpu_milli, typical_memory_mib = (max(1, int(np.median(rows[:, c]))) for c in (_CPU, _MEMORY))
        mask = int(np.bitwise_or.reduce(rows[:, _MODELS]))
        pressure = gpus * len(rows) / max(1, int(room_of_kind[members].max()))
        found.append((-pressure, gpus, typical_cpu_milli, typical_memory_mib, mask, len(rows) / demand))
    kept = sorted(found)[:BLOCK_CLASSES_MAX]
    return np.array([row[1:5] for row in kept], dtype=np.int64), np.array([row[5] for row in kept])


class _SplitMix:
    """A small generator of our own: shuffles stay the same whatever release of NumPy is installed."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = (self._state ^ (self._state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        return (mixed ^ (mixed >> 31)) % limit

    def permutation(self, size: int) -> Ints:
        order = np.arange(size, dtype=np.int64)
        for last in range(size - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order


# What has been asked for lately, and when is it time to learn from it again? A bounded memory of requests.


@dataclass(frozen=True, slots=True)
class LearningSchedule:
    """Arrivals after which lessons are built anew: at doubling counts first, then steadily.

    Waiting for the first 200 arrivals cost a full point of allocation on a public trace: plain best fit had spoilt
    nodes that no later lesson could mend. A picture from eight requests is poor, but better than none.
    """

    first_arrivals: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    every_arrivals: int = 2000

    def due(self, arrivals: int, learned_at: int) -> bool:
        """True when a learning point lies in (learned_at, arrivals]."""
        if any(learned_at < point <= arrivals for point in self.first_arrivals):
            return True
        last_early = max(self.first_arrivals, default=0)
        return arrivals > last_early and arrivals - max(learned_at, last_early) >= self.every_arrivals


@dataclass(slots=True)
class RequestHistory:
    """The last `limit` requests, refused ones too: a ring buffer, so a drifting mix replaces the old one."""

    limit: int = 8192
    schedule: LearningSchedule = field(default_factory=LearningSchedule)
    arrivals: int = 0
    learned_at: int = 0
    taken: float = 0.0  # placements, older ones fading
    departed: float = 0.0
    _rows: Ints = field(init=False)

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("history needs room for at least one request")
        self._rows = np.zeros((self.limit, 5), dtype=np.int64)

    def add(self, request: ShapeRequest) -> None:
        self._rows[self.arrivals % self.limit] = request
        self.arrivals += 1

    @property
    def turnover(self) -> float:
        """Departures per placement lately, from 0 (nothing leaves) to 1 (as much leaves as comes, or more)."""
        return min(1.0, self.departed / self.taken) if self.taken > 0 else 0.0

    def moved(self, direction: int) -> None:
        """Work was placed, or it left."""
        if direction == GIVE_BACK:
            self.departed += 1.0
        else:
            self.taken += 1.0

    def learned(self, arrivals: int) -> None:
        """Lessons were built from the first `arrivals`; counts halve, so that turnover follows the present."""
        self.learned_at = arrivals
        self.taken /= 2
        self.departed /= 2

    @property
    def learning_due(self) -> bool:
        return self.schedule.due(self.arrivals, self.learned_at)

    def rows(self) -> Ints:
        """A copy of the remembered requests, oldest first."""
        if self.arrivals <= self.limit:
            return self._rows[: self.arrivals].copy()
        return np.roll(self._rows, -(self.arrivals % self.limit), axis=0)
