"""How does Python reach the kernels quickly? Two doors that take all arrays flat.

Numba sorts out the types of plain arrays several times faster than those of named tuples of arrays, and a decision is
short enough for that to count. Inside, the arrays are put back under their names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from harch.placement.policy.compiled import borrowed, kernel
from harch.placement.policy.lessons import Lessons
from harch.placement.policy.node_values import NodeValues, ScoreCache, Scratch, change_node
from harch.placement.policy.prices import Prices
from harch.placement.policy.scan import BY_RULE, NOWHERE, best_node
from harch.placement.policy.shapes import TAKE, Bools, Ints, NodeArrays
from harch.placement.policy.value import ValueMemo, choose_devices

State = tuple[Any, ...]

# Where each group starts in the flat state.
_VALUES = len(NodeArrays._fields)
_LESSONS = _VALUES + len(NodeValues._fields)
_MEMO = _LESSONS + len(Lessons._fields)
_SCRATCH = _MEMO + len(ValueMemo._fields)
_CACHE = SCORED_FROM = _SCRATCH + len(Scratch._fields)  # cache and prices are for `decide` only
_PRICES = _CACHE + len(ScoreCache._fields)


class Decided(NamedTuple):
    """What `decide` found; the devices stand in the scratch's `chosen`."""

    node: int  # `NOWHERE` when no allowed node has room
    score: float
    score_before_prices: float
    cpu_milli_left: int
    gpu_milli_left: int
    model_price: float  # per milli-GPU
    balanced: bool  # False: what was decided could not be taken, and was not


def flat(
    nodes: NodeArrays,
    values: NodeValues,
    lessons: Lessons,
    memo: ValueMemo,
    scratch: Scratch,
    cache: ScoreCache,
    prices: Prices,
) -> State:
    """Everything a decision reads, in the order that the doors expect."""
    return (*nodes, *values, *lessons, *memo, *scratch, *cache, *prices)


@kernel
def decide(
    direction: int,
    slot: int,
    cpu_milli: int,
    memory_mib: int,
    gpus: int,
    gpu_milli: int,
    models: int,
    allowed: Bools,
    *state: Any,
) -> Decided:
    """The best node and its devices for a flat state; takes them at once if told to (`TAKE`, not `LOOK`)."""
    state = borrowed(state)
    nodes = NodeArrays(*state[0:_VALUES])
    values = NodeValues(*state[_VALUES:_LESSONS])
    lessons = Lessons(*state[_LESSONS:_MEMO])
    memo = ValueMemo(*state[_MEMO:_SCRATCH])
    scratch = Scratch(*state[_SCRATCH:_CACHE])
    cache = ScoreCache(*state[_CACHE:_PRICES])
    prices = Prices(*state[_PRICES:])
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
        return Decided(node, score, 0.0, 0, 0, 0.0, True)
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
    return Decided(node, score, before_prices, cpu_left, gpu_left, prices.model[nodes.model[node]], balanced)


@kernel
def occupy(
    node: int, cpu_milli: int, memory_mib: int, gpu_milli: int, devices: Ints, direction: int, *state: Any
) -> bool:
    """`change_node` for a flat state up to `SCORED_FROM`."""
    state = borrowed(state)
    nodes = NodeArrays(*state[0:_VALUES])
    values = NodeValues(*state[_VALUES:_LESSONS])
    lessons = Lessons(*state[_LESSONS:_MEMO])
    memo = ValueMemo(*state[_MEMO:_SCRATCH])
    scratch = Scratch(*state[_SCRATCH:_CACHE])
    return change_node(
        node, cpu_milli, memory_mib, gpu_milli, devices, direction, nodes, values, lessons, memo, scratch
    )
