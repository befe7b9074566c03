"""What is scarce now? A price per GPU model and per multi-GPU shape, from free capacity and the learned demand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harch.placement.policy.compiled import inner_kernel, kernel
from harch.placement.policy.lessons import Lessons
from harch.placement.policy.shapes import GPU_MILLI, Floats, Ints, NodeArrays

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
