"""What do the lessons make of each node as it is now? Values, the cache of scores, and the room kernels work in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harch.placement.policy.compiled import inner_kernel, kernel
from harch.placement.policy.lessons import BLOCK_CLASSES_MAX, Lessons
from harch.placement.policy.occupancy import change
from harch.placement.policy.prices import count_blocks
from harch.placement.policy.rollout import rollout_room
from harch.placement.policy.shapes import Floats, Ints, NodeArrays, SmallInts
from harch.placement.policy.value import ValueMemo, node_value, profile, state_key

# Best fit on top of the value: points per full node of 128 cores and of 8 GPUs that stay free.
CPU_LEFT_WEIGHT = 50.0 / 128_000
GPU_LEFT_WEIGHT = 50.0 / 8_000

_SLACK = 1e-6  # far above rounding, far below any difference that matters: the ceiling stays one


class NodeValues(NamedTuple):
    """What the lessons make of each node as it is now."""

    value: Floats
    ceiling: Floats  # no score before prices of any request can be higher than this plus what it takes away
    blocks: Ints  # [node, class]
    version: SmallInts  # grows with every change of the node
    amounts: Ints  # with `devices`: the key of the node's state
    devices: npt.NDArray[np.uint64]


class ScoreCache(NamedTuple):
    """Scores before prices, per kind slot and node; an entry counts while its version is the node's."""

    score: Floats
    device: npt.NDArray[np.int8]
    blocks_lost: Ints  # eight bits per class
    version: SmallInts


class Scratch(NamedTuple):
    """Room to work in, allocated once."""

    partial: Ints
    rollout: SmallInts  # see `rollout_room`
    blocks: Ints
    chosen: Ints
    stale: Ints  # nodes to score anew ...
    bound: Floats  # ... and what their scores cannot exceed


def new_values(nodes: int) -> NodeValues:
    return NodeValues(
        value=np.zeros(nodes),
        ceiling=np.zeros(nodes),
        blocks=np.zeros((nodes, BLOCK_CLASSES_MAX), np.int64),
        version=np.zeros(nodes, np.int32),
        amounts=np.zeros(nodes, np.int64),
        devices=np.zeros(nodes, np.uint64),
    )


def new_cache(slots: int, nodes: int) -> ScoreCache:
    return ScoreCache(
        np.zeros((slots, nodes)),
        np.zeros((slots, nodes), np.int8),
        np.zeros((slots, nodes), np.int64),
        np.full((slots, nodes), -1, np.int32),
    )


def new_scratch(nodes: NodeArrays) -> Scratch:
    devices = nodes.gpu_milli_free.shape[1] + 1
    return Scratch(
        partial=np.zeros(devices, np.int64),
        rollout=np.zeros(rollout_room(devices), np.int32),
        blocks=np.zeros(BLOCK_CLASSES_MAX, np.int64),
        chosen=np.zeros(devices, np.int64),
        stale=np.zeros(nodes.size, np.int64),
        bound=np.zeros(nodes.size),
    )


@kernel
def revalue(
    nodes: NodeArrays, node: int, values: NodeValues, lessons: Lessons, memo: ValueMemo, scratch: Scratch
) -> None:
    """Brings a node's value and blocks up to date and makes cached scores of it stale."""
    cpu_milli = nodes.cpu_milli_free[node]
    memory_mib = nodes.memory_mib_free[node]
    model = nodes.model[node]
    idle, partials = profile(nodes, node, scratch.partial)
    values.value[node] = node_value(
        cpu_milli, memory_mib, idle, scratch.partial, partials, model, lessons, memo, scratch.rollout
    )
    gpu_milli = nodes.gpu_milli_free_sum[node]
    values.ceiling[node] = values.value[node] - CPU_LEFT_WEIGHT * cpu_milli - GPU_LEFT_WEIGHT * gpu_milli + _SLACK
    count_blocks(cpu_milli, memory_mib, idle, model, lessons, values.blocks[node])
    values.version[node] += 1
    values.amounts[node], values.devices[node] = state_key(
        cpu_milli, memory_mib, idle, scratch.partial, partials, model
    )


@inner_kernel
def change_node(
    node: int,
    cpu_milli: int,
    memory_mib: int,
    gpu_milli: int,
    taken_devices: Ints,
    direction: int,
    nodes: NodeArrays,
    values: NodeValues,
    lessons: Lessons,
    memo: ValueMemo,
    scratch: Scratch,
) -> bool:
    """Takes or gives back and brings the node's value up to date; False, and nothing changed, if sums forbid it."""
    if not change(nodes, node, cpu_milli, memory_mib, gpu_milli, taken_devices, direction):
        return False
    revalue(nodes, node, values, lessons, memo, scratch)
    return True


@kernel
def revalue_all(nodes: NodeArrays, values: NodeValues, lessons: Lessons, memo: ValueMemo, scratch: Scratch) -> None:
    for node in range(len(values.value)):
        revalue(nodes, node, values, lessons, memo, scratch)
