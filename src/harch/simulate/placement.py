"""How much of a fleet would a policy fill with this trace? The function behind `harch simulate placement`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.placement.policy.shapes import Ints, NodeArrays, Request, canonical, request_rows
from harch.simulate.openb import NodeList
from harch.simulate.replay import LOAD_MAX, Placer, arrivals, permuted, replay

Policy = Literal["harch", "fgd", "bestfit", "dotprod", "packing", "random"]
HistorySource = Literal["trace", "online"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
_PROGRESS_EVERY = 256

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """What `--json` prints. Allocation is GPU given to work, not GPU busy."""

    policy: str
    history: str
    seed: int
    load: float
    nodes: int
    gpus: int
    requests: int
    gpu_allocation_pct: float
    fragmented_pct: float  # free GPU that a request of the trace's mix could not use (FGD's measure), of all GPU
    failed: int
    placements_per_s: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def simulate_placement(
    nodes: NodeList,
    trace: Sequence[Request],
    *,
    policy: Policy = "harch",
    load: float = 1.0,
    seed: int = 42,
    history: HistorySource = "trace",
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> PlacementResult:
    """Replays arrivals up to `load` times the GPU capacity and says what was placed.

    With `history="trace"` the policy knows the trace's distribution from the start, as FGD does; with `"online"` it
    learns from what has arrived. Compiling is not timed, learning is.
    """
    if not 0.0 < load <= LOAD_MAX:
        raise HarchError("E0201", f"load is {load}; it must be above 0 and at most {LOAD_MAX:g}", field="load")
    if nodes.gpus == 0 or not any(request.gpu_milli_total for request in trace):
        raise HarchError("E0201", "nodes and requests must have GPUs, or there is no allocation to measure")
    from harch.placement.policy.baselines import fragments_sum
    from harch.placement.policy.engine import warm

    clock = clock or SystemClock()
    warm()
    come = arrivals(trace, nodes.gpus * 1000, load, seed)
    placer, state, before_each = new_placer(nodes, trace, policy=policy, seed=seed, history=history)

    def step(arrived: int) -> None:
        if before_each is not None:
            before_each(arrived)
        if progress is not None and arrived % _PROGRESS_EVERY == 0:
            progress(arrived, len(come))

    started_s = clock.monotonic_s()
    outcome = replay(placer, come, nodes.gpus, before_each=step)
    elapsed_s = clock.monotonic_s() - started_s
    if progress is not None:
        progress(len(come), len(come))
    kinds, kind_counts = _mix(trace, len(nodes.models))
    stuck_milli = fragments_sum(state, kinds, kind_counts, np.zeros(state.gpu_milli_free.shape[1] + 1, np.int64))
    return PlacementResult(
        policy=policy,
        history=history,
        seed=seed,
        load=load,
        nodes=len(nodes.shapes),
        gpus=nodes.gpus,
        requests=len(come),
        gpu_allocation_pct=round(outcome.allocation_pct(load), 4),
        fragmented_pct=round(100.0 * stuck_milli / outcome.capacity_gpu_milli, 4),
        failed=int(len(come) - outcome.placed.sum()),
        placements_per_s=round(len(come) / max(elapsed_s, 1e-9), 1),
    )


def new_placer(
    nodes: NodeList, trace: Sequence[Request], *, policy: Policy, seed: int, history: HistorySource = "trace"
) -> tuple[Placer, NodeArrays, Callable[[int], None] | None]:
    """A policy over the seed's order of nodes, its view of the nodes, and what it wants to do before each arrival."""
    from harch.placement.policy.baselines import BaselinePolicy, Rule
    from harch.placement.policy.engine import PlacementEngine

    shapes = permuted(nodes.shapes, seed)
    models = len(nodes.models)
    if policy != "harch":
        rule = Rule[policy.upper()]
        baseline = BaselinePolicy(shapes, models=models, rule=rule, history=request_rows(trace), seed=seed)
        return baseline, baseline.nodes, None
    engine = PlacementEngine(shapes, models=models)
    if history == "trace":
        engine.learn_from(request_rows(trace))
        return engine, engine.nodes, None

    def learn_when_due(_: int) -> None:
        if engine.learning_due:
            engine.relearn()

    return engine, engine.nodes, learn_when_due


def _mix(trace: Sequence[Request], models: int) -> tuple[Ints, Ints]:
    from harch.placement.policy.baselines import FGD_COVERAGE
    from harch.placement.policy.lessons import common_kinds

    return common_kinds(request_rows(canonical(request, models) for request in trace), FGD_COVERAGE)
