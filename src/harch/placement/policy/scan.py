"""Which node is best for this request? The scan over all nodes, with an exact cache of scores per kind and node.

The cached part of a score depends on the node's state and the lessons only, so it stays true until the node changes.
Prices move with the whole fleet and stay outside. They are never negative, and neither is a node's value: a score
without block prices, or a node's value before the placement, is a bound that lets most nodes be skipped unseen.
"""

# harch: pure

from __future__ import annotations

import numpy as np

from harch.placement.policy.compiled import inner_kernel, kernel
from harch.placement.policy.lessons import Lessons
from harch.placement.policy.node_values import (
    CPU_LEFT_WEIGHT,
    GPU_LEFT_WEIGHT,
    KernelScratch,
    NodeValues,
    Prices,
    ScoreCache,
    count_blocks,
)
from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats, Ints, NodeArrays
from harch.placement.policy.value import (
    ValueMemo,
    choose_devices,
    first_device,
    fits,
    node_value,
    profile,
)

NOWHERE = -1
BY_RULE = -1  # cached device: not one share on one device, so `choose_devices` names the devices
_BLOCK_BITS = 8
_BLOCK_MASK = 255


@inner_kernel
def rescore(
    slot: int,
    node: int,
    cpu_milli: int,
    memory_mib: int,
    gpus: int,
    gpu_milli: int,
    nodes: NodeArrays,
    values: NodeValues,
    cache: ScoreCache,
    lessons: Lessons,
    memo: ValueMemo,
    scratch: KernelScratch,
) -> None:
    """Fills one cache entry of a request that fits the node."""
    cpu_after = nodes.cpu_milli_free[node] - cpu_milli
    memory_after = nodes.memory_mib_free[node] - memory_mib
    model = nodes.model[node]
    partial = scratch.partial
    idle, partials = profile(nodes, node, partial)
    idle_after = idle
    device = BY_RULE
    if gpus == 1 and gpu_milli < GPU_MILLI:
        value_after = np.inf
        chosen_free = 0
        for index in range(partials):
            free = partial[index]
            if free < gpu_milli:
                continue
            seen = False
            for earlier in range(index):
                if partial[earlier] == free:
                    seen = True
                    break
            if seen:
                continue
            partial[index] = free - gpu_milli
            value = node_value(cpu_after, memory_after, idle, partial, partials, model, lessons, memo, scratch.rollout)
            partial[index] = free
            if value < value_after or (value == value_after and free < chosen_free):
                value_after = value
                chosen_free = free
        if idle > 0:
            partial[partials] = GPU_MILLI - gpu_milli
            value = node_value(
                cpu_after, memory_after, idle - 1, partial, partials + 1, model, lessons, memo, scratch.rollout
            )
            if value < value_after:
                value_after = value
                chosen_free = GPU_MILLI
        device = first_device(nodes, node, chosen_free)
        if chosen_free == GPU_MILLI:
            idle_after -= 1
    else:
        if gpu_milli == GPU_MILLI:
            idle_after -= gpus
        elif gpus > 1:
            idle_after, partials = _profile_after_shares(nodes, node, gpus, gpu_milli, partial, scratch.chosen)
        value_after = node_value(
            cpu_after, memory_after, idle_after, partial, partials, model, lessons, memo, scratch.rollout
        )
    gpu_after = nodes.gpu_milli_free_sum[node] - gpus * gpu_milli
    gain = values.value[node] - value_after
    cache.score[slot, node] = gain - CPU_LEFT_WEIGHT * cpu_after - GPU_LEFT_WEIGHT * gpu_after
    cache.device[slot, node] = device
    count_blocks(cpu_after, memory_after, idle_after, model, lessons, scratch.blocks)
    packed = 0
    for block in range(len(lessons.block_gpus)):
        packed |= (values.blocks[node, block] - scratch.blocks[block]) << (_BLOCK_BITS * block)
    cache.blocks_lost[slot, node] = packed
    cache.version[slot, node] = values.version[node]


@inner_kernel
def _profile_after_shares(
    nodes: NodeArrays, node: int, gpus: int, gpu_milli: int, partial: Ints, chosen: Ints
) -> tuple[int, int]:
    """The node's profile once the same share was taken of several devices."""
    choose_devices(nodes, node, gpus, gpu_milli, chosen)
    for place in range(gpus):
        nodes.gpu_milli_free[node, chosen[place]] -= gpu_milli
    idle, partials = profile(nodes, node, partial)
    for place in range(gpus):
        nodes.gpu_milli_free[node, chosen[place]] += gpu_milli
    return idle, partials


@inner_kernel
def block_cost(packed: int, prices: Prices) -> float:
    """The price of the blocks that a placement destroys."""
    cost = 0.0
    if packed != 0:
        for block in range(len(prices.block)):
            cost += prices.block[block] * ((packed >> (_BLOCK_BITS * block)) & _BLOCK_MASK)
    return cost


@inner_kernel
def best_node(
    slot: int,
    cpu_milli: int,
    memory_mib: int,
    gpus: int,
    gpu_milli: int,
    models: int,
    allowed: Bools,
    nodes: NodeArrays,
    values: NodeValues,
    cache: ScoreCache,
    prices: Prices,
    lessons: Lessons,
    memo: ValueMemo,
    scratch: KernelScratch,
) -> tuple[int, float]:
    """The node with the highest score, the first of equals; `NOWHERE` when no allowed node has room."""
    demand_milli = gpus * gpu_milli
    taken = CPU_LEFT_WEIGHT * cpu_milli + GPU_LEFT_WEIGHT * demand_milli
    best = -np.inf
    chosen = NOWHERE
    stale = 0
    known_version = cache.version[slot]
    known_score = cache.score[slot]
    # Known scores first: the better the best so far, the more stale entries their bound can rule out.
    for node in range(len(allowed)):
        price = demand_milli * prices.model[nodes.model[node]]
        if known_version[node] != values.version[node]:
            bound = values.ceiling[node] + taken - price
            if bound >= best:
                scratch.stale[stale] = node
                scratch.bound[stale] = bound
                stale += 1
            continue
        score = known_score[node] - price
        if score > best and allowed[node] and nodes.available[node]:
            score -= block_cost(cache.blocks_lost[slot, node], prices)
            if score > best:
                best = score
                chosen = node
    promising = -1
    kept = 0
    for index in range(stale):
        node = scratch.stale[index]
        if scratch.bound[index] < best or not (allowed[node] and nodes.available[node]):
            continue
        if not fits(nodes, node, cpu_milli, memory_mib, gpus, gpu_milli, models):
            cache.score[slot, node] = -np.inf
            cache.version[slot, node] = values.version[node]
            continue
        scratch.stale[kept] = node
        scratch.bound[kept] = scratch.bound[index]
        if promising < 0 or scratch.bound[kept] > scratch.bound[promising]:
            promising = kept
        kept += 1
    # The most promising state first, each state once: few others are left above the best after a few of them.
    while promising >= 0:
        twin = scratch.stale[promising]
        rescore(slot, twin, cpu_milli, memory_mib, gpus, gpu_milli, nodes, values, cache, lessons, memo, scratch)
        score = cache.score[slot, twin] - demand_milli * prices.model[nodes.model[twin]]
        score -= block_cost(cache.blocks_lost[slot, twin], prices)
        if score > best or (score == best and twin < chosen):
            best = score
            chosen = twin
        stale = kept
        kept = 0
        promising = -1
        for index in range(stale):
            node = scratch.stale[index]
            bound = scratch.bound[index]
            if bound < best or node == twin:
                continue
            if values.devices[node] == values.devices[twin] and values.amounts[node] == values.amounts[twin]:
                _copy_entry(slot, twin, node, nodes, values, cache)
                if score == best and node < chosen:
                    chosen = node
                continue
            scratch.stale[kept] = node
            scratch.bound[kept] = bound
            if promising < 0 or bound > scratch.bound[promising]:
                promising = kept
            kept += 1
    return chosen, best


@inner_kernel
def _copy_entry(slot: int, twin: int, node: int, nodes: NodeArrays, values: NodeValues, cache: ScoreCache) -> None:
    """Fills a cache entry from a node in the same state; its devices may stand in another order."""
    cache.score[slot, node] = cache.score[slot, twin]
    cache.blocks_lost[slot, node] = cache.blocks_lost[slot, twin]
    cache.version[slot, node] = values.version[node]
    device = cache.device[slot, twin]
    if device != BY_RULE:
        device = first_device(nodes, node, nodes.gpu_milli_free[twin, device])
    cache.device[slot, node] = device


@kernel
def score_nodes(
    slot: int,
    cpu_milli: int,
    memory_mib: int,
    gpus: int,
    gpu_milli: int,
    models: int,
    allowed: Bools,
    nodes: NodeArrays,
    values: NodeValues,
    cache: ScoreCache,
    prices: Prices,
    lessons: Lessons,
    memo: ValueMemo,
    scratch: KernelScratch,
    scores: Floats,
) -> None:
    """Writes the full score of every allowed node, minus infinity where there is no room. Skips nothing."""
    for node in range(len(allowed)):
        scores[node] = -np.inf
        if not (allowed[node] and nodes.available[node]):
            continue
        if fits(nodes, node, cpu_milli, memory_mib, gpus, gpu_milli, models):
            if cache.version[slot, node] != values.version[node]:
                rescore(
                    slot, node, cpu_milli, memory_mib, gpus, gpu_milli, nodes, values, cache, lessons, memo, scratch
                )
            score = cache.score[slot, node] - gpus * gpu_milli * prices.model[nodes.model[node]]
            scores[node] = score - block_cost(cache.blocks_lost[slot, node], prices)
