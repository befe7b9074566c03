"""Where does this request go?

The policy as one stateful value: arrays in, decisions out, no I/O and no clock; kernels by flat arrays, new lessons
swapped in as one value.
"""

# harch: pure

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy, deepcopy
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from harch.base.errors import InvariantBroken
from harch.placement.policy import node_values, scan
from harch.placement.policy.compiled import KernelState, borrowed, kernel, short_kernel
from harch.placement.policy.lessons import Lessons, RequestHistory, learn
from harch.placement.policy.node_values import (
    REFRESH_EVENTS,
    KernelScratch,
    NodeValues,
    Prices,
    ScoreCache,
    change_node,
    new_scratch,
    new_values,
    no_prices,
    refresh,
    revalue_all,
)
from harch.placement.policy.scan import BY_RULE, NOWHERE, best_node
from harch.placement.policy.shapes import (
    GIVE_BACK,
    LOOK,
    TAKE,
    Bools,
    Floats,
    Ints,
    NodeArrays,
    NodeShape,
    ShapeRequest,
    SmallInts,
    canonical,
    copied,
    empty_nodes,
)
from harch.placement.policy.value import ValueMemo, choose_devices, new_memo

# How does Python reach the kernels quickly? With all arrays behind one reference.
#
# Numba looks at every argument of a call: with dozens of arrays that takes longer than a decision does.


class KernelDecision(NamedTuple):
    """What `decide` found; the devices stand in the scratch's `chosen`."""

    node: int  # `NOWHERE` when no allowed node has room
    score: float
    score_before_prices: float
    cpu_milli_left: int
    gpu_milli_left: int
    model_price: float  # per milli-GPU
    balanced: bool  # False: what was decided could not be taken, and was not


@kernel
def new_state(
    nodes: NodeArrays,
    values: NodeValues,
    lessons: Lessons,
    memo: ValueMemo,
    scratch: KernelScratch,
    cache: ScoreCache,
    prices: Prices,
) -> KernelState:
    """Everything a decision reads and writes."""
    return KernelState(nodes, values, lessons, memo, scratch, cache, prices)  # type: ignore[no-untyped-call]


@short_kernel
def decide(
    direction: int,
    slot: int,
    cpu_milli: int,
    memory_mib: int,
    gpus: int,
    gpu_milli: int,
    models: int,
    allowed: Bools,
    state: KernelState,
) -> KernelDecision:
    """The best node and its devices; takes them at once if asked to (`TAKE`, not `LOOK`)."""
    nodes, values, lessons = borrowed(state.nodes), borrowed(state.values), borrowed(state.lessons)
    memo, scratch = borrowed(state.memo), borrowed(state.scratch)
    cache, prices = borrowed(state.cache), borrowed(state.prices)
    node, score = best_node(
        slot,
        cpu_milli,
        memory_mib,
        gpus,
        gpu_milli,
        models,
        allowed,
        nodes,
        values,
        cache,
        prices,
        lessons,
        memo,
        scratch,
    )
    if node == NOWHERE:
        return KernelDecision(node, score, 0.0, 0, 0, 0.0, True)
    device = cache.device[slot, node]
    if device != BY_RULE:
        scratch.chosen[0] = device
    elif gpus > 0:
        choose_devices(nodes, node, gpus, gpu_milli, scratch.chosen)
    before_prices = cache.score[slot, node]
    cpu_left = nodes.cpu_milli_free[node] - cpu_milli
    gpu_left = nodes.gpu_milli_free_sum[node] - gpus * gpu_milli
    balanced = True
    if direction == TAKE:
        devices = scratch.chosen[:gpus]
        balanced = change_node(
            node, cpu_milli, memory_mib, gpu_milli, devices, direction, nodes, values, lessons, memo, scratch
        )
    return KernelDecision(node, score, before_prices, cpu_left, gpu_left, prices.model[nodes.model[node]], balanced)


@short_kernel
def occupy(
    node: int, cpu_milli: int, memory_mib: int, gpu_milli: int, devices: Ints, direction: int, state: KernelState
) -> bool:
    """`change_node` for the arrays of an engine."""
    nodes, values, lessons = borrowed(state.nodes), borrowed(state.values), borrowed(state.lessons)
    memo, scratch = borrowed(state.memo), borrowed(state.scratch)
    return change_node(
        node, cpu_milli, memory_mib, gpu_milli, devices, direction, nodes, values, lessons, memo, scratch
    )


# How do new lessons reach a running engine? They are built aside, from a copy, and swapped in as one value.


class EngineSnapshot(NamedTuple):
    """What learning needs, copied: later changes of the engine do not reach it."""

    nodes: NodeArrays
    versions: SmallInts
    history: Ints
    models: int
    arrivals: int
    turnover: float


class PreparedLessons(NamedTuple):
    """New lessons and what they make of the snapshot's nodes, ready to be adopted."""

    lessons: Lessons
    values: NodeValues
    memo: ValueMemo
    versions: SmallInts
    arrivals: int


def prepare(snapshot: EngineSnapshot) -> PreparedLessons:
    """Learns from a snapshot. Pure and slow (tens of milliseconds): safe to run in a thread."""
    lessons = learn(snapshot.history, snapshot.nodes, snapshot.models, snapshot.turnover)
    values = new_values(snapshot.nodes.size)
    memo = new_memo(snapshot.nodes.size)
    revalue_all(snapshot.nodes, values, lessons, memo, new_scratch(snapshot.nodes))
    return PreparedLessons(lessons, values, memo, snapshot.versions, snapshot.arrivals)


# Where does this request go? The policy as one stateful value: arrays in, decisions out, no I/O and no clock.
#
# The engine follows every change of the fleet (`take`, `release`, `set_node_available`) and remembers what was asked
# for.
# It learns on demand: `relearn()` does it at once; a hub calls `prepare()` on a snapshot in a thread and then
# `adopt()`.


KIND_SLOTS_MAX = 512  # kinds with cached scores; the one not asked for longest makes room (21 bytes per slot and node)
_KIND_SLOTS_FIRST = 32
_DEVICE_SETS_MAX = 4096  # kept as arrays; a node of 8 has 256


class ScoreParts(NamedTuple):
    """Why this node: the score is the sum, higher is better."""

    value: float  # what the learned work loses less by: rollout value and fragment, before minus after
    cpu_left: float  # best fit: CPU that stays free
    gpu_left: float  # best fit: GPU that stays free
    model_price: float  # the model is scarce
    block_price: float  # room for scarce multi-GPU shapes is lost


class PlacementDecision(NamedTuple):
    """One node, the devices on it, and the reasons."""

    node: int
    devices: tuple[int, ...]
    score: float
    parts: ScoreParts


class PlacementEngine:
    """Decides, and keeps account of the nodes it decides about. One owner, one thread."""

    def __init__(
        self,
        shapes: Sequence[NodeShape],
        *,
        models: int,
        history: RequestHistory | None = None,
        kind_slots_max: int = KIND_SLOTS_MAX,
    ) -> None:
        self.nodes = empty_nodes(shapes)
        if int(self.nodes.model.max()) >= models:
            raise ValueError(f"a node's model is not one of the fleet's {models}")
        if kind_slots_max < 1:
            raise ValueError("the engine needs at least one kind slot")
        self.models = models
        self.history = history if history is not None else RequestHistory()
        self._kind_slots_max = kind_slots_max
        self._slot_of_kind: OrderedDict[ShapeRequest, int] = OrderedDict()
        self._refused_slots: set[int] = set()
        self._everywhere = np.ones(self.nodes.size, dtype=np.bool_)
        self._scratch = node_values.new_scratch(self.nodes)
        self._cache = node_values.new_cache(min(_KIND_SLOTS_FIRST, kind_slots_max), self.nodes.size)
        self._values = node_values.new_values(self.nodes.size)
        self._lessons: Lessons
        self._memo: ValueMemo
        self._prices: Prices
        self._state: KernelState
        self._events_since_refresh = 0
        self.relearn()

    def __deepcopy__(self, memo: dict[int, object]) -> PlacementEngine:
        """Decides alike and is apart from then on. Lessons never change, and what the memo holds is true of both."""
        memo[id(self)] = twin = copy(self)
        twin.nodes = copied(self.nodes)
        twin.history = deepcopy(self.history, memo)
        twin._slot_of_kind, twin._refused_slots = self._slot_of_kind.copy(), self._refused_slots.copy()
        twin._scratch = node_values.new_scratch(twin.nodes)
        twin._cache = node_values.ScoreCache._make(array.copy() for array in self._cache)
        twin._values = node_values.NodeValues._make(array.copy() for array in self._values)
        twin._prices = Prices._make(array.copy() for array in self._prices)
        twin._gather()
        return twin

    # Deciding

    def place(self, request: ShapeRequest, allowed: Bools | None = None) -> PlacementDecision | None:
        """Remembers the request, decides, and takes what was decided; None when no allowed node has room."""
        request = canonical(request, self.models)
        self._observe(request)
        decided = self._decide(TAKE, request, allowed)
        if decided is None:
            return None
        if not decided.balanced:
            raise InvariantBroken("nothing is given twice or given back twice", request, decided.node)
        self.history.moved(TAKE)
        return self._decision(request, decided)

    def observe(self, request: ShapeRequest) -> None:
        """Counts one arrival for learning and prices. A retry of the same request is no new arrival."""
        self._observe(canonical(request, self.models))

    def choose(self, request: ShapeRequest, allowed: Bools | None = None) -> PlacementDecision | None:
        """The best node with room among those that the hard checks allow; takes nothing."""
        request = canonical(request, self.models)
        decided = self._decide(LOOK, request, allowed)
        return None if decided is None else self._decision(request, decided)

    def top_candidates(self, request: ShapeRequest, k: int, allowed: Bools | None = None) -> list[PlacementDecision]:
        """The k best nodes, best first, with the parts of their scores. Looks at every node: for explanations."""
        request = canonical(request, self.models)
        scores = self.node_scores(request, allowed)
        order = np.argsort(-scores, kind="stable")[: max(k, 0)]
        only = np.zeros(self.nodes.size, dtype=np.bool_)
        found = []
        for node in order[scores[order] > -np.inf]:
            only[node] = True
            decided = decide(LOOK, self._slot(request), *request, only, self._state)
            found.append(self._decision(request, decided))
            only[node] = False
        return found

    def node_scores(self, request: ShapeRequest, allowed: Bools | None = None) -> Floats:
        """The score of every node for this request, -inf where it has no room; for gangs, which weigh whole domains."""
        request = canonical(request, self.models)
        scores: Floats = np.empty(self.nodes.size)
        scan.score_nodes(
            self._slot(request),
            *request,
            self._mask(allowed),
            self.nodes,
            self._values,
            self._cache,
            self._prices,
            self._lessons,
            self._memo,
            self._scratch,
            scores,
        )
        return scores

    # Following the fleet

    def take(self, request: ShapeRequest, node: int, devices: Sequence[int]) -> None:
        """Gives the node's CPU, memory and these devices to the request; also for devices chosen elsewhere."""
        self._change(request, node, devices, TAKE)

    def release(self, request: ShapeRequest, node: int, devices: Sequence[int]) -> None:
        """Takes back what the request held."""
        self._change(request, node, devices, GIVE_BACK)
        self._refused_slots.clear()
        self._events_since_refresh += 1

    def set_node_available(self, node: int, available: bool) -> None:
        """A node that is not available keeps its work and receives none; it counts for no price."""
        self.nodes.available[node] = available
        self._refused_slots.clear()

    # Learning

    @property
    def learning_due(self) -> bool:
        return self.history.learning_due

    def relearn(self) -> None:
        """Learns from the remembered requests at once."""
        self.adopt(prepare(self.snapshot()))

    def learn_from(self, requests: Ints) -> None:
        """Learns from given rows of requests instead of the own history, e.g. from a trace."""
        rows = np.array([canonical(ShapeRequest(*row), self.models) for row in requests.tolist()], dtype=np.int64)
        self.adopt(prepare(self.snapshot()._replace(history=rows.reshape(-1, 5))))

    def snapshot(self) -> EngineSnapshot:
        """What `prepare` needs; cheap."""
        versions = self._values.version.copy()
        past = self.history
        return EngineSnapshot(copied(self.nodes), versions, past.rows(), self.models, past.arrivals, past.turnover)

    def adopt(self, prepared: PreparedLessons) -> None:
        """Swaps new lessons in; nodes that changed since the snapshot are valued again."""
        for node in np.flatnonzero(prepared.versions != self._values.version).tolist():
            node_values.revalue(self.nodes, node, prepared.values, prepared.lessons, prepared.memo, self._scratch)
        # Versions count the changes of a node, whatever the lessons: a snapshot stays comparable after other swaps.
        prepared.values.version[:] = self._values.version
        self._lessons, self._values, self._memo = prepared.lessons, prepared.values, prepared.memo
        self._cache.version.fill(-1)
        self._prices = no_prices(self.models, len(prepared.lessons.block_gpus))
        self._gather()
        self.history.learned(prepared.arrivals)
        self.refresh_prices()

    def refresh_prices(self) -> None:
        """Prices follow the free capacity; called by `observe` after every `REFRESH_EVENTS` arrivals and departures."""
        refresh(self.nodes, self._values.blocks, self._lessons, self._prices)
        self._events_since_refresh = 0

    @property
    def memory_bytes(self) -> int:
        """What the arrays occupy, the cache of scores first of all."""
        return sum(part.nbytes for group in self._groups for part in group if isinstance(part, np.ndarray))

    # Inside

    def _decide(self, direction: int, kind: ShapeRequest, allowed: Bools | None) -> KernelDecision | None:
        """Asks the kernel, unless nothing came free since this kind was refused everywhere."""
        slot = self._slot(kind)
        if slot in self._refused_slots:
            return None
        decided = decide(direction, slot, *kind, self._mask(allowed), self._state)
        if decided.node != scan.NOWHERE:
            return decided
        if allowed is None:
            self._refused_slots.add(slot)
        return None

    def _observe(self, kind: ShapeRequest) -> None:
        if self._events_since_refresh >= REFRESH_EVENTS:
            self.refresh_prices()
        self._events_since_refresh += 1
        self.history.add(kind)

    def _change(self, request: ShapeRequest, node: int, devices: Sequence[int], direction: int) -> None:
        request = canonical(request, self.models)
        if not 0 <= node < self.nodes.size or len(devices) != request.gpus:
            raise InvariantBroken("a request holds as many devices of one node as it requested", request, node, devices)
        cpu_milli, memory_mib, _, gpu_milli, _ = request
        changed = occupy(node, cpu_milli, memory_mib, gpu_milli, _array_of(tuple(devices)), direction, self._state)
        if not changed:
            raise InvariantBroken("nothing is given twice or given back twice", request, node, devices)
        self.history.moved(direction)

    def _slot(self, kind: ShapeRequest) -> int:
        slot = self._slot_of_kind.get(kind)
        if slot is not None:
            self._slot_of_kind.move_to_end(kind)
            return slot
        slots = len(self._cache.score)
        if len(self._slot_of_kind) == slots and slots < self._kind_slots_max:
            self._grow_cache(min(2 * slots, self._kind_slots_max))
        if len(self._slot_of_kind) < len(self._cache.score):
            slot = len(self._slot_of_kind)
        else:
            _, slot = self._slot_of_kind.popitem(last=False)
            self._cache.version[slot].fill(-1)
            self._refused_slots.discard(slot)
        self._slot_of_kind[kind] = slot
        return slot

    def _grow_cache(self, slots: int) -> None:
        grown = node_values.new_cache(slots, self.nodes.size)
        used = len(self._cache.score)
        grown.score[:used] = self._cache.score
        grown.device[:used] = self._cache.device
        grown.blocks_lost[:used] = self._cache.blocks_lost
        grown.version[:used] = self._cache.version
        self._cache = grown
        self._gather()

    @property
    def _groups(self) -> tuple[NodeArrays, NodeValues, Lessons, ValueMemo, KernelScratch, ScoreCache, Prices]:
        return self.nodes, self._values, self._lessons, self._memo, self._scratch, self._cache, self._prices

    def _gather(self) -> None:
        self._state = new_state(*self._groups)

    def _mask(self, allowed: Bools | None) -> Bools:
        if allowed is None:
            return self._everywhere
        if allowed.dtype != np.bool_ or allowed.shape != (self.nodes.size,):
            raise ValueError(f"`allowed` must hold {self.nodes.size} booleans, one per node")
        return np.ascontiguousarray(allowed)

    def _decision(self, request: ShapeRequest, decided: KernelDecision) -> PlacementDecision:
        node, score, before_prices, cpu_milli_left, gpu_milli_left, price_per_milli, _ = decided
        cpu_left = -node_values.CPU_LEFT_WEIGHT * cpu_milli_left
        gpu_left = -node_values.GPU_LEFT_WEIGHT * gpu_milli_left
        model_price = -request.gpu_milli_total * price_per_milli
        parts = ScoreParts(
            value=before_prices - cpu_left - gpu_left,
            cpu_left=cpu_left,
            gpu_left=gpu_left,
            model_price=model_price,
            block_price=score - (before_prices + model_price),
        )
        devices = tuple(self._scratch.chosen[: request.gpus].tolist())
        return PlacementDecision(node, devices, score, parts)


@lru_cache(_DEVICE_SETS_MAX)
def _array_of(devices: tuple[int, ...]) -> Ints:
    """For kernels, which only read it."""
    return np.array(devices, dtype=np.int64)


def warm() -> None:
    """Compiles every kernel, or loads it from disk: seconds once, so a hub does it before its first decision."""
    engine = PlacementEngine([NodeShape(8000, 8192, 4, 0), NodeShape(8000, 8192, 2, 1)], models=2)
    requests = [
        ShapeRequest(1000, 1024, gpus, gpu_milli, 0b01) for gpus, gpu_milli in ((0, 0), (1, 300), (2, 1000), (2, 100))
    ]
    engine.learn_from(np.array(requests, dtype=np.int64))
    for request in requests:
        decision = engine.place(request)
        if decision is not None:
            engine.release(request, decision.node, decision.devices)
    engine.top_candidates(requests[0], 1)
