"""What do the lessons make of each node as it is now?

Values, the cache of scores, what is held, and a price for what is scarce.
"""

# harch: pure

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harch.placement.policy.compiled import inner_kernel, kernel
from harch.placement.policy.lessons import BLOCK_CLASSES_MAX, Lessons
from harch.placement.policy.shapes import GPU_MILLI, Floats, Ints, NodeArrays, SmallInts
from harch.placement.policy.value import ValueMemo, node_value, profile, rollout_room, state_key

MODEL_PRICE_WEIGHT = 3.0  # nothing leaves: what is given away is gone for all that is still to come
MODEL_PRICE_WEIGHT_TURNOVER = 0.3  # as much leaves as comes: it will be free again
MODEL_PRESSURE_MAX = 3.0
BLOCK_PRICE_WEIGHT = 1.0
BALANCE_ROUNDS = 12
REFRESH_EVENTS = 50  # arrivals and departures between two refreshes

_TINY = 1e-9


class Prices(NamedTuple):
    """Never negative: the scan's bound depends on it."""

    model: Floats  # per milli-GPU of the model
    block: Floats  # per block of the class that a placement destroys


def no_prices(models: int, block_classes: int) -> Prices:
    return Prices(np.zeros(models), np.zeros(block_classes))


@inner_kernel
def count_blocks(cpu_milli: int, memory_mib: int, idle: int, model: int, lessons: Lessons, blocks: Ints) -> None:
    """Writes, per class, how many requests of that shape the node could still take."""
    for block in range(len(lessons.block_gpus)):
        if idle < lessons.block_gpus[block] or (lessons.block_models[block] >> model) & 1 == 0:
            blocks[block] = 0
            continue
        count = min(idle // lessons.block_gpus[block], cpu_milli // lessons.block_cpu_milli[block])
        blocks[block] = min(count, memory_mib // lessons.block_memory_mib[block])


@kernel
def refresh(nodes: NodeArrays, blocks: Ints, lessons: Lessons, prices: Prices) -> None:
    """Sets all prices from the nodes that are available now."""
    models = len(prices.model)
    free = np.zeros(models)
    used = np.zeros(models)
    classes = len(prices.block)
    blocks_sum = np.zeros(classes)
    for node in range(len(nodes.available)):
        if nodes.available[node]:
            free[nodes.model[node]] += nodes.gpu_milli_free_sum[node]
            used[nodes.model[node]] += nodes.gpus[node] * GPU_MILLI - nodes.gpu_milli_free_sum[node]
            for block in range(classes):
                blocks_sum[block] += blocks[node, block]
    supply = np.zeros(models)
    free_sum = 0.0
    supply_sum = 0.0
    for model in range(models):
        free_sum += free[model]
        # What will be free again counts as supply of a model. Whole idle blocks do not come back: shares and single
        # GPUs take every device as it falls free, so the price of blocks looks at the blocks there are.
        supply[model] = free[model] + lessons.turnover * used[model]
        supply_sum += supply[model]
    _price_models(supply, supply_sum, lessons, prices.model)
    for block in range(classes):
        pressure = min(1.0, lessons.block_rates[block] * free_sum / max(blocks_sum[block], 1.0))
        # Exponent 2.5 by products and a square root: both are exact to the last bit on every machine, a power is not.
        price = BLOCK_PRICE_WEIGHT * GPU_MILLI * lessons.block_gpus[block]
        prices.block[block] = price * pressure * pressure * np.sqrt(pressure)


@inner_kernel
def _price_models(supply: Floats, supply_sum: float, lessons: Lessons, price: Floats) -> None:
    """Splits the demand of each model set over its models until their pressures level out, like water in basins."""
    models = len(supply)
    sets = len(lessons.set_models)
    demand = np.zeros((sets, models))
    for index in range(sets):
        room = 0.0
        for model in range(models):
            if (lessons.set_models[index] >> model) & 1 == 1:
                room += supply[model]
        if room > 0.0:
            for model in range(models):
                if (lessons.set_models[index] >> model) & 1 == 1:
                    demand[index, model] = lessons.set_shares[index] * supply_sum * supply[model] / room
    pressure = np.zeros(models)
    for step in range(BALANCE_ROUNDS):
        for model in range(models):
            assigned = 0.0
            for index in range(sets):
                assigned += demand[index, model]
            pressure[model] = assigned / max(supply[model], 1.0)
        if step == BALANCE_ROUNDS - 1:
            break
        for index in range(sets):
            attraction = 0.0
            for model in range(models):
                attraction += demand[index, model] / max(pressure[model], _TINY)
            if attraction > 0.0:
                wanted = lessons.set_shares[index] * supply_sum
                for model in range(models):
                    share = demand[index, model] / max(pressure[model], _TINY) / attraction
                    demand[index, model] = wanted * share
    weight = MODEL_PRICE_WEIGHT + lessons.turnover * (MODEL_PRICE_WEIGHT_TURNOVER - MODEL_PRICE_WEIGHT)
    for model in range(models):
        price[model] = weight * min(pressure[model], MODEL_PRESSURE_MAX)


# Who holds what? Taking and giving back CPU, memory and devices of a node, refused when the sums would not balance.


@kernel
def change(
    nodes: NodeArrays, node: int, cpu_milli: int, memory_mib: int, gpu_milli: int, devices: Ints, direction: int
) -> bool:
    """Takes or gives back; False, and nothing changed, when anything would fall below 0 or rise above what there is."""
    cpu_after = nodes.cpu_milli_free[node] + direction * cpu_milli
    memory_after = nodes.memory_mib_free[node] + direction * memory_mib
    if not (0 <= cpu_after <= nodes.cpu_milli[node] and 0 <= memory_after <= nodes.memory_mib[node]):
        return False
    for place in range(len(devices)):
        device = devices[place]
        if not 0 <= device < nodes.gpus[node]:
            return False
        if not 0 <= nodes.gpu_milli_free[node, device] + direction * gpu_milli <= GPU_MILLI:
            return False
        for earlier in range(place):
            if devices[earlier] == device:
                return False
    nodes.cpu_milli_free[node] = cpu_after
    nodes.memory_mib_free[node] = memory_after
    for place in range(len(devices)):
        nodes.gpu_milli_free[node, devices[place]] += direction * gpu_milli
    nodes.gpu_milli_free_sum[node] += direction * gpu_milli * len(devices)
    return True


# What do the lessons make of each node as it is now? Values, the cache of scores, and the room kernels work in.


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


class KernelScratch(NamedTuple):
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


def new_scratch(nodes: NodeArrays) -> KernelScratch:
    devices = nodes.gpu_milli_free.shape[1] + 1
    return KernelScratch(
        partial=np.zeros(devices, np.int64),
        rollout=np.zeros(rollout_room(devices), np.int32),
        blocks=np.zeros(BLOCK_CLASSES_MAX, np.int64),
        chosen=np.zeros(devices, np.int64),
        stale=np.zeros(nodes.size, np.int64),
        bound=np.zeros(nodes.size),
    )


@kernel
def revalue(
    nodes: NodeArrays, node: int, values: NodeValues, lessons: Lessons, memo: ValueMemo, scratch: KernelScratch
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
    scratch: KernelScratch,
) -> bool:
    """Takes or gives back and brings the node's value up to date; False, and nothing changed, if sums forbid it."""
    if not change(nodes, node, cpu_milli, memory_mib, gpu_milli, taken_devices, direction):
        return False
    revalue(nodes, node, values, lessons, memo, scratch)
    return True


@kernel
def revalue_all(
    nodes: NodeArrays, values: NodeValues, lessons: Lessons, memo: ValueMemo, scratch: KernelScratch
) -> None:
    for node in range(len(values.value)):
        revalue(nodes, node, values, lessons, memo, scratch)
