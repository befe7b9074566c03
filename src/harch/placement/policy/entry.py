"""How does Python reach the kernels quickly? Two doors that take all arrays flat.

Numba sorts out the types of plain arrays several times faster than those of named tuples of arrays, and a decision is
short enough for that to count. Inside, the arrays are put back under their names.
"""

from __future__ import annotations

from typing import Any

from harch.placement.policy.compiled import kernel
from harch.placement.policy.lessons import Lessons
from harch.placement.policy.node_values import NodeValues, ScoreCache, Scratch, change_node
from harch.placement.policy.prices import Prices
from harch.placement.policy.scan import best_node
from harch.placement.policy.shapes import Bools, Ints, NodeArrays
from harch.placement.policy.value import ValueMemo

State = tuple[Any, ...]

# Where each group starts in the flat state.
_VALUES = len(NodeArrays._fields)
_LESSONS = _VALUES + len(NodeValues._fields)
_MEMO = _LESSONS + len(Lessons._fields)
_SCRATCH = _MEMO + len(ValueMemo._fields)
_CACHE = SCORED_FROM = _SCRATCH + len(Scratch._fields)  # cache and prices are for `decide` only
_PRICES = _CACHE + len(ScoreCache._fields)


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
    slot: int, cpu_milli: int, memory_mib: int, gpus: int, gpu_milli: int, models: int, allowed: Bools, *state: Any
) -> tuple[int, float]:
    """`best_node` for a flat state."""
    nodes = NodeArrays(*state[0:_VALUES])
    values = NodeValues(*state[_VALUES:_LESSONS])
    lessons = Lessons(*state[_LESSONS:_MEMO])
    memo = ValueMemo(*state[_MEMO:_SCRATCH])
    scratch = Scratch(*state[_SCRATCH:_CACHE])
    cache = ScoreCache(*state[_CACHE:_PRICES])
    prices = Prices(*state[_PRICES:])
    return best_node(
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


@kernel
def occupy(
    node: int, cpu_milli: int, memory_mib: int, gpu_milli: int, devices: Ints, direction: int, *state: Any
) -> bool:
    """`change_node` for a flat state up to `SCORED_FROM`."""
    nodes = NodeArrays(*state[0:_VALUES])
    values = NodeValues(*state[_VALUES:_LESSONS])
    lessons = Lessons(*state[_LESSONS:_MEMO])
    memo = ValueMemo(*state[_MEMO:_SCRATCH])
    scratch = Scratch(*state[_SCRATCH:_CACHE])
    return change_node(
        node, cpu_milli, memory_mib, gpu_milli, devices, direction, nodes, values, lessons, memo, scratch
    )
