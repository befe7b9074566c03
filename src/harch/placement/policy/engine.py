"""Where does this request go? The policy as one stateful value: arrays in, decisions out, no I/O and no clock.

The engine follows every change of the fleet (`take`, `release`, `set_node_available`) and remembers what was asked for.
It learns when told: `relearn()` does it at once; a hub calls `prepare()` on a snapshot in a thread and then `adopt()`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import NamedTuple

import numpy as np

from harch.base.errors import InvariantBroken
from harch.placement.policy import node_values, scan
from harch.placement.policy.entry import SCORED_FROM, Decided, State, decide, flat, occupy
from harch.placement.policy.history import History
from harch.placement.policy.learning import Prepared, Snapshot, prepare
from harch.placement.policy.lessons import Lessons
from harch.placement.policy.prices import REFRESH_EVENTS, Prices, no_prices, refresh
from harch.placement.policy.shapes import (
    GIVE_BACK,
    LOOK,
    TAKE,
    Bools,
    Floats,
    Ints,
    NodeShape,
    Request,
    canonical,
    copied,
    empty_nodes,
)
from harch.placement.policy.value import ValueMemo

KIND_SLOTS_MAX = 512  # kinds with cached scores; the one not asked for longest makes room (21 bytes per slot and node)
_KIND_SLOTS_FIRST = 32


class ScoreParts(NamedTuple):
    """Why this node: the score is the sum, higher is better."""

    value: float  # what the learned work loses less by: rollout value and fragment, before minus after
    cpu_left: float  # best fit: CPU that stays free
    gpu_left: float  # best fit: GPU that stays free
    model_price: float  # the model is scarce
    block_price: float  # room for scarce multi-GPU shapes is lost


class Decision(NamedTuple):
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
        history: History | None = None,
        kind_slots_max: int = KIND_SLOTS_MAX,
    ) -> None:
        self.nodes = empty_nodes(shapes)
        if int(self.nodes.model.max()) >= models:
            raise ValueError(f"a node's model is not one of the fleet's {models}")
        if kind_slots_max < 1:
            raise ValueError("the engine needs at least one kind slot")
        self.models = models
        self.history = history if history is not None else History()
        self._kind_slots_max = kind_slots_max
        self._slot_of_kind: OrderedDict[Request, int] = OrderedDict()
        self._refused_slots: set[int] = set()
        self._everywhere = np.ones(self.nodes.size, dtype=np.bool_)
        self._scratch = node_values.new_scratch(self.nodes)
        self._cache = node_values.new_cache(min(_KIND_SLOTS_FIRST, kind_slots_max), self.nodes.size)
        self._values = node_values.new_values(self.nodes.size)
        self._lessons: Lessons
        self._memo: ValueMemo
        self._prices: Prices
        self._state: State
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
        twin._flatten()
        return twin

    # Deciding

    def place(self, request: Request, allowed: Bools | None = None) -> Decision | None:
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

    def observe(self, request: Request) -> None:
        """Counts one arrival for learning and prices. A retry of the same request is no new arrival."""
        self._observe(canonical(request, self.models))

    def choose(self, request: Request, allowed: Bools | None = None) -> Decision | None:
        """The best node with room among those that the hard checks allow; takes nothing."""
        request = canonical(request, self.models)
        decided = self._decide(LOOK, request, allowed)
        return None if decided is None else self._decision(request, decided)

    def top_candidates(self, request: Request, k: int, allowed: Bools | None = None) -> list[Decision]:
        """The k best nodes, best first, with the parts of their scores. Looks at every node: for explanations."""
        request = canonical(request, self.models)
        scores = self.node_scores(request, allowed)
        order = np.argsort(-scores, kind="stable")[: max(k, 0)]
        only = np.zeros(self.nodes.size, dtype=np.bool_)
        found = []
        for node in order[scores[order] > -np.inf]:
            only[node] = True
            decided = decide(LOOK, self._slot(request), *request, only, *self._state)
            found.append(self._decision(request, decided))
            only[node] = False
        return found

    def node_scores(self, request: Request, allowed: Bools | None = None) -> Floats:
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

    def take(self, request: Request, node: int, devices: Sequence[int]) -> None:
        """Gives the node's CPU, memory and these devices to the request; also for devices chosen elsewhere."""
        self._change(request, node, devices, TAKE)

    def release(self, request: Request, node: int, devices: Sequence[int]) -> None:
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
        rows = np.array([canonical(Request(*row), self.models) for row in requests.tolist()], dtype=np.int64)
        self.adopt(prepare(self.snapshot()._replace(history=rows.reshape(-1, 5))))

    def snapshot(self) -> Snapshot:
        """What `prepare` needs; cheap."""
        versions = self._values.version.copy()
        past = self.history
        return Snapshot(copied(self.nodes), versions, past.rows(), self.models, past.arrivals, past.turnover)

    def adopt(self, prepared: Prepared) -> None:
        """Swaps new lessons in; nodes that changed since the snapshot are valued again."""
        for node in np.flatnonzero(prepared.versions != self._values.version).tolist():
            node_values.revalue(self.nodes, node, prepared.values, prepared.lessons, prepared.memo, self._scratch)
        # Versions count the changes of a node, whatever the lessons: a snapshot stays comparable after other swaps.
        prepared.values.version[:] = self._values.version
        self._lessons, self._values, self._memo = prepared.lessons, prepared.values, prepared.memo
        self._cache.version.fill(-1)
        self._prices = no_prices(self.models, len(prepared.lessons.block_gpus))
        self._flatten()
        self.history.learned(prepared.arrivals)
        self.refresh_prices()

    def refresh_prices(self) -> None:
        """Prices follow the free capacity; called by `observe` after every `REFRESH_EVENTS` arrivals and departures."""
        refresh(self.nodes, self._values.blocks, self._lessons, self._prices)
        self._events_since_refresh = 0

    @property
    def memory_bytes(self) -> int:
        """What the arrays occupy, the cache of scores first of all."""
        return sum(part.nbytes for part in self._state if isinstance(part, np.ndarray))

    # Inside

    def _decide(self, direction: int, kind: Request, allowed: Bools | None) -> Decided | None:
        """Asks the kernel, unless nothing came free since this kind was refused everywhere."""
        slot = self._slot(kind)
        if slot in self._refused_slots:
            return None
        decided = decide(direction, slot, *kind, self._mask(allowed), *self._state)
        if decided.node != scan.NOWHERE:
            return decided
        if allowed is None:
            self._refused_slots.add(slot)
        return None

    def _observe(self, kind: Request) -> None:
        if self._events_since_refresh >= REFRESH_EVENTS:
            self.refresh_prices()
        self._events_since_refresh += 1
        self.history.add(kind)

    def _change(self, request: Request, node: int, devices: Sequence[int], direction: int) -> None:
        request = canonical(request, self.models)
        if not 0 <= node < self.nodes.size or len(devices) != request.gpus:
            raise InvariantBroken("a request holds as many devices of one node as it asked for", request, node, devices)
        cpu_milli, memory_mib, _, gpu_milli, _ = request
        chosen = np.array(devices, dtype=np.int64)
        changed = occupy(node, cpu_milli, memory_mib, gpu_milli, chosen, direction, *self._state[:SCORED_FROM])
        if not changed:
            raise InvariantBroken("nothing is given twice or given back twice", request, node, devices)
        self.history.moved(direction)

    def _slot(self, kind: Request) -> int:
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
        self._flatten()

    def _flatten(self) -> None:
        self._state = flat(
            self.nodes, self._values, self._lessons, self._memo, self._scratch, self._cache, self._prices
        )

    def _mask(self, allowed: Bools | None) -> Bools:
        if allowed is None:
            return self._everywhere
        if allowed.dtype != np.bool_ or allowed.shape != (self.nodes.size,):
            raise ValueError(f"`allowed` must hold {self.nodes.size} booleans, one per node")
        return np.ascontiguousarray(allowed)

    def _decision(self, request: Request, decided: Decided) -> Decision:
        cpu_left = -node_values.CPU_LEFT_WEIGHT * decided.cpu_milli_left
        gpu_left = -node_values.GPU_LEFT_WEIGHT * decided.gpu_milli_left
        model_price = -request.gpu_milli_total * decided.model_price
        before_prices = decided.score_before_prices
        parts = ScoreParts(
            value=before_prices - cpu_left - gpu_left,
            cpu_left=cpu_left,
            gpu_left=gpu_left,
            model_price=model_price,
            block_price=decided.score - (before_prices + model_price),
        )
        devices = tuple(self._scratch.chosen[: request.gpus].tolist())
        return Decision(decided.node, devices, decided.score, parts)


def warm() -> None:
    """Compiles every kernel, or loads it from disk: seconds once, so a hub does it before its first decision."""
    engine = PlacementEngine([NodeShape(8000, 8192, 4, 0), NodeShape(8000, 8192, 2, 1)], models=2)
    requests = [
        Request(1000, 1024, gpus, gpu_milli, 0b01) for gpus, gpu_milli in ((0, 0), (1, 300), (2, 1000), (2, 100))
    ]
    engine.learn_from(np.array(requests, dtype=np.int64))
    for request in requests:
        decision = engine.place(request)
        if decision is not None:
            engine.release(request, decision.node, decision.devices)
    engine.top_candidates(requests[0], 1)
