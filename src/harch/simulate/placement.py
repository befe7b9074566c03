"""How much of a fleet would a policy fill with this trace?

The function behind `harch simulate placement`, the published arrivals-only protocol, and readers of the public trace
files.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.placement.policy.shapes import (
    ANY_MODEL,
    GPU_MILLI,
    Ints,
    NodeArrays,
    NodeShape,
    ShapeRequest,
    canonical,
    request_rows,
)

# In what order do requests and nodes come? The published arrivals-only protocol, reproducible from one seed.
#
# Node names get a random prefix per seed and ties go to the lowest name: a random permutation of the nodes. The trace
# is
# shuffled; uniform draws from it are appended, unshuffled, until the next one would push the demand above 130 % of the
# GPU capacity. Requests come one by one, nothing departs, and what is refused is lost.


PUBLISHED_LOAD = 1.3  # the trace is inflated this far, whatever part of it is replayed
LOAD_MAX = 10.0
_NODE_ORDER_STREAM = 1  # nodes and arrivals draw from separate streams of one seed


class Placer(Protocol):
    """Anything that decides about one request at a time."""

    def place(self, request: ShapeRequest) -> object | None: ...


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


def arrivals(trace: Sequence[ShapeRequest], capacity_gpu_milli: int, load: float, seed: int) -> list[ShapeRequest]:
    """The trace shuffled, then extended by draws; cut where its demand would exceed `load` times the capacity."""
    if not 0.0 < load <= LOAD_MAX:
        raise ValueError(f"load must be above 0 and at most {LOAD_MAX}")
    random = np.random.default_rng(seed)
    limit = load * capacity_gpu_milli
    inflated_limit = max(load, PUBLISHED_LOAD) * capacity_gpu_milli
    come = [trace[index] for index in random.permutation(len(trace))]
    demand = sum(request.gpu_milli_total for request in trace)
    if demand == 0:
        raise ValueError("the trace requests no GPUs, so it cannot reach any load")
    while demand <= inflated_limit:
        drawn = trace[int(random.integers(len(trace)))]
        demand += drawn.gpu_milli_total
        if demand <= inflated_limit:
            come.append(drawn)
    within = np.cumsum([request.gpu_milli_total for request in come]) <= limit
    return come[: int(within.sum())]


def replay(
    placer: Placer,
    requests: Sequence[ShapeRequest],
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
    requested = np.array([request.gpu_milli_total for request in requests], dtype=np.int64)
    return Replay(requested, placed, capacity_gpus * GPU_MILLI)


# What do the public trace files say? Readers of node and request lists, by the names of their columns.
#
# Node lists have `sn,cpu_milli,memory_mib,gpu,model` (openb) or `gpu_model,gpu_capacity_num,cpu_num,node_name`
# (Alibaba 2026). Request lists need `name,cpu_milli,memory_mib,num_gpu,gpu_milli`; `gpu_spec`, models joined by `|`,
# may be missing, and so may everything else.


ROWS_MAX = 5_000_000  # a file beyond this is a mistake, not a trace
_MEMORY_UNKNOWN_MIB = 2**30  # lists that name no memory do not constrain it


@dataclass(frozen=True, slots=True)
class NodeList:
    """Nodes in the order of their names, and the model names that their `model` indices and request masks mean."""

    names: tuple[str, ...]
    shapes: tuple[NodeShape, ...]
    models: tuple[str, ...]

    @property
    def gpus(self) -> int:
        return sum(shape.gpus for shape in self.shapes)


def read_nodes(path: Path) -> NodeList:
    """Reads a node list of either form."""
    rows = list(_rows(path, ("model", "gpu_model")))
    if not rows:
        raise _unreadable(path, "no nodes listed")
    openb = "model" in rows[0]
    model_column, name_column = ("model", "sn") if openb else ("gpu_model", "node_name")
    models = tuple(sorted({row[model_column] for row in rows}))
    index = {model: position for position, model in enumerate(models)}
    found = []
    for line, row in enumerate(rows, start=2):
        if openb:
            cpu_milli = _whole(path, line, row, "cpu_milli")
            memory_mib = _whole(path, line, row, "memory_mib")
        else:
            cpu_milli = 1000 * _whole(path, line, row, "cpu_num")
            memory_mib = _MEMORY_UNKNOWN_MIB
        gpus = _whole(path, line, row, "gpu" if openb else "gpu_capacity_num")
        found.append((row.get(name_column, ""), NodeShape(cpu_milli, memory_mib, gpus, index[row[model_column]])))
    found.sort(key=lambda entry: entry[0])
    return NodeList(tuple(name for name, _ in found), tuple(shape for _, shape in found), models)


def read_requests(path: Path, models: Sequence[str]) -> list[ShapeRequest]:
    """Reads a request list in file order. A request that names only models the fleet lacks fits nowhere."""
    index = {model: position for position, model in enumerate(models)}
    requests = []
    for line, row in enumerate(_rows(path, ("num_gpu",)), start=2):
        amounts = [_whole(path, line, row, column) for column in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")]
        cpu_milli, memory_mib, gpus, gpu_milli = amounts
        if gpus == 0:
            requests.append(ShapeRequest(cpu_milli, memory_mib))
            continue
        if gpu_milli == 0:
            raise _unreadable(path, f"line {line} requests GPUs with gpu_milli 0")
        mask = _mask(row.get("gpu_spec") or "", index)
        requests.append(ShapeRequest(cpu_milli, memory_mib, gpus, min(gpu_milli, GPU_MILLI), mask))
    if not requests:
        raise _unreadable(path, "no requests listed")
    return requests


def _mask(spec: str, index: dict[str, int]) -> int:
    named = [model for model in spec.split("|") if model]
    if not named:
        return ANY_MODEL
    mask = 0
    for model in named:
        if model in index:
            mask |= 1 << index[model]
    return mask


def _rows(path: Path, one_of: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            if not any(column in columns for column in one_of):
                raise _unreadable(path, f"no column `{'` or `'.join(one_of)}`")
            for count, row in enumerate(reader):
                if count >= ROWS_MAX:
                    raise _unreadable(path, f"more than {ROWS_MAX:,} rows")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise _unreadable(path, str(problem)) from problem


def _whole(path: Path, line: int, row: dict[str, str], column: str) -> int:
    text = row.get(column) or ""
    try:
        number = float(text)
        whole = int(number)
    except (ValueError, OverflowError):
        raise _unreadable(path, f"line {line}: `{column}` is `{text}`, not a number") from None
    if number != whole or whole < 0:
        raise _unreadable(path, f"line {line}: `{column}` is `{text}`, not a whole number >= 0")
    return whole


def _unreadable(path: Path, why: str) -> HarchError:
    return HarchError(
        "E0202", f"cannot read `{path}`: {why}", hint="see `harch simulate placement --help` for the columns"
    )


# How much of a fleet would a policy fill with this trace? The function behind `harch simulate placement`.


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
    trace: Sequence[ShapeRequest],
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
    nodes: NodeList, trace: Sequence[ShapeRequest], *, policy: Policy, seed: int, history: HistorySource = "trace"
) -> tuple[Placer, NodeArrays, Callable[[int], None] | None]:
    """A policy over the seed's order of nodes, its view of the nodes, and what it wants to do before each arrival."""
    from harch.placement.policy.baselines import BaselinePolicy, BaselineRule
    from harch.placement.policy.engine import PlacementEngine

    shapes = permuted(nodes.shapes, seed)
    models = len(nodes.models)
    if policy != "harch":
        rule = BaselineRule[policy.upper()]
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


def _mix(trace: Sequence[ShapeRequest], models: int) -> tuple[Ints, Ints]:
    from harch.placement.policy.baselines import FGD_COVERAGE
    from harch.placement.policy.lessons import common_kinds

    return common_kinds(request_rows(canonical(request, models) for request in trace), FGD_COVERAGE)
