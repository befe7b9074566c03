"""In what order do requests and nodes come? The published arrivals-only protocol, reproducible from one seed.

Node names get a random prefix per seed and ties go to the lowest name: a random permutation of the nodes. The trace is
shuffled; uniform draws from it are appended, unshuffled, until the next one would push the demand above 130 % of the
GPU capacity. Requests come one by one, nothing departs, and what is refused is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Ints, NodeShape, Request

PUBLISHED_LOAD = 1.3  # the trace is inflated this far, whatever part of it is replayed
LOAD_MAX = 10.0
_NODE_ORDER_STREAM = 1  # nodes and arrivals draw from separate streams of one seed


class Placer(Protocol):
    """Anything that decides about one request at a time."""

    def place(self, request: Request) -> object | None: ...


class Replay(NamedTuple):
    """What became of each arrival, in order."""

    gpu_milli: Ints  # asked for
    placed: Ints  # 1 or 0
    capacity_gpu_milli: int

    def allocation_pct(self, load: float) -> float:
        """GPU given as a share of the capacity, when arrivals had asked for `load` times the capacity."""
        arrived = int(np.searchsorted(np.cumsum(self.gpu_milli), load * self.capacity_gpu_milli, side="right"))
        return 100.0 * int((self.gpu_milli * self.placed)[:arrived].sum()) / self.capacity_gpu_milli


def permuted(shapes: Sequence[NodeShape], seed: int) -> list[NodeShape]:
    """The nodes in the order of their randomly prefixed names."""
    order = np.random.default_rng([seed, _NODE_ORDER_STREAM]).permutation(len(shapes))
    return [shapes[index] for index in order]


def arrivals(trace: Sequence[Request], capacity_gpu_milli: int, load: float, seed: int) -> list[Request]:
    """The trace shuffled, then extended by draws; cut where its demand would exceed `load` times the capacity."""
    if not 0.0 < load <= LOAD_MAX:
        raise ValueError(f"load must be above 0 and at most {LOAD_MAX}")
    random = np.random.default_rng(seed)
    limit = load * capacity_gpu_milli
    inflated_limit = max(load, PUBLISHED_LOAD) * capacity_gpu_milli
    come = [trace[index] for index in random.permutation(len(trace))]
    demand = sum(request.gpu_milli_total for request in trace)
    if demand == 0:
        raise ValueError("the trace asks for no GPU, so it cannot reach any load")
    while demand <= inflated_limit:
        drawn = trace[int(random.integers(len(trace)))]
        demand += drawn.gpu_milli_total
        if demand <= inflated_limit:
            come.append(drawn)
    within = np.cumsum([request.gpu_milli_total for request in come]) <= limit
    return come[: int(within.sum())]


def replay(
    placer: Placer,
    requests: Sequence[Request],
    capacity_gpus: int,
    *,
    before_each: Callable[[int], None] | None = None,
) -> Replay:
    """Places the requests one by one. `before_each` sees the number of arrivals so far: progress, relearning."""
    placed = np.zeros(len(requests), dtype=np.int64)
    for index, request in enumerate(requests):
        if before_each is not None:
            before_each(index)
        placed[index] = placer.place(request) is not None
    asked = np.array([request.gpu_milli_total for request in requests], dtype=np.int64)
    return Replay(asked, placed, capacity_gpus * GPU_MILLI)
