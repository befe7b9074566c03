"""How do others decide? The published policies, with our kernels and compiler flags, to be compared with in one run.

Fragmentation gradient descent (FGD), best fit, dot product, packing and random, as the public FGD simulator has them:
whole-number scores of 0 to 100, ties to the first node. Nothing is cached: every node is looked at for every request.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from harch.base.errors import InvariantBroken
from harch.placement.policy.compiled import borrowed, inner_kernel, kernel
from harch.placement.policy.lessons import common_kinds
from harch.placement.policy.node_values import change
from harch.placement.policy.shapes import (
    GIVE_BACK,
    GPU_MILLI,
    TAKE,
    Ints,
    NodeArrays,
    NodeShape,
    ShapeRequest,
    canonical,
    empty_nodes,
)
from harch.placement.policy.value import choose_devices, fits, fragment, profile

FGD_COVERAGE = 0.95  # FGD weighs the commonest kinds that make up this share of the requests
_CPU_MILLI_SCALE = 128_000.0  # the published normalisation: the largest node
_GPU_MILLI_SCALE = 8_000.0
_NOWHERE = -1
_BY_RULE = -1


class BaselineRule(IntEnum):
    FGD = 0
    BESTFIT = 1
    DOTPROD = 2
    PACKING = 3
    RANDOM = 4


class BaselinePlacement(NamedTuple):
    node: int
    devices: tuple[int, ...]


class BaselinePolicy:
    """One published rule over its own copy of the fleet. `history` matters to FGD, `seed` to random."""

    def __init__(
        self,
        shapes: Sequence[NodeShape],
        *,
        models: int,
        rule: BaselineRule,
        history: Ints | None = None,
        seed: int = 0,
    ) -> None:
        self.nodes = empty_nodes(shapes)
        self.models = models
        self._rule = rule
        self._random = np.random.default_rng(seed)
        width = self.nodes.gpu_milli_free.shape[1] + 1
        self._partial = np.zeros(width, np.int64)
        self._chosen = np.zeros(width, np.int64)
        rows = np.zeros((0, 5), np.int64) if history is None else history
        canonical_rows = [canonical(ShapeRequest(*row), models) for row in rows.tolist()]
        self._kinds, self._kind_counts = common_kinds(
            np.array(canonical_rows, dtype=np.int64).reshape(-1, 5), FGD_COVERAGE
        )

    def place(self, request: ShapeRequest) -> BaselinePlacement | None:
        """Decides and takes; None when no node has room."""
        request = canonical(request, self.models)
        if self._rule is BaselineRule.FGD:
            node, device = _fgd(*request, self.nodes, self._kinds, self._kind_counts, self._partial)
        elif self._rule is BaselineRule.RANDOM:
            node, device = _random(*request, self.nodes, self._random.random(), self._random.random())
        else:
            node, device = _simple(*request, int(self._rule), self.nodes, self._partial), _BY_RULE
        if node == _NOWHERE:
            return None
        devices = self._devices(request, node, device)
        self._change(request, node, devices, TAKE)
        return BaselinePlacement(node, devices)

    def release(self, request: ShapeRequest, node: int, devices: Sequence[int]) -> None:
        self._change(canonical(request, self.models), node, devices, GIVE_BACK)

    def _devices(self, request: ShapeRequest, node: int, device: int) -> tuple[int, ...]:
        if request.gpus == 0:
            return ()
        if device != _BY_RULE:
            return (device,)
        choose_devices(self.nodes, node, request.gpus, request.gpu_milli, self._chosen)
        return tuple(self._chosen[: request.gpus].tolist())

    def _change(self, request: ShapeRequest, node: int, devices: Sequence[int], direction: int) -> None:
        chosen = np.array(devices, dtype=np.int64)
        if not change(self.nodes, node, request.cpu_milli, request.memory_mib, request.gpu_milli, chosen, direction):
            raise InvariantBroken("nothing is given twice or given back twice", request, node, devices)


@kernel
def fragments_sum(nodes: NodeArrays, kinds: Ints, kind_counts: Ints, partial: Ints) -> float:
    """FGD's fragment of the whole fleet, in milli-GPU."""
    total = 0.0
    for node in range(len(nodes.gpus)):
        idle, partials = profile(nodes, node, partial)
        total += fragment(nodes.cpu_milli_free[node], idle, partial, partials, nodes.model[node], kinds, kind_counts)
    return total


@kernel
def _fgd(
    cpu_milli: int,
    memory_mib: int,
    gpus: int,
    gpu_milli: int,
    models: int,
    nodes: NodeArrays,
    kinds: Ints,
    kind_counts: Ints,
    partial: Ints,
) -> tuple[int, int]:
    """The node, and for a share the device, whose fragment grows least; quantised as published."""
    nodes = borrowed(nodes)
    kinds, kind_counts, partial = borrowed((kinds, kind_counts, partial))
    best = -1.0
    chosen = _NOWHERE
    chosen_device = _BY_RULE
    for node in range(len(nodes.gpus)):
        if not fits(nodes, node, cpu_milli, memory_mib, gpus, gpu_milli, models):
            continue
        model = nodes.model[node]
        cpu_after = nodes.cpu_milli_free[node] - cpu_milli
        idle, partials = profile(nodes, node, partial)
        before = fragment(nodes.cpu_milli_free[node], idle, partial, partials, model, kinds, kind_counts)
        if gpus == 1 and gpu_milli < GPU_MILLI:
            next_partial = 0
            for device in range(nodes.gpus[node]):
                free = nodes.gpu_milli_free[node, device]
                place = next_partial
                if 0 < free < GPU_MILLI:
                    next_partial += 1
                if free < gpu_milli or _seen_before(nodes, node, device):
                    continue
                if free == GPU_MILLI:
                    partial[partials] = GPU_MILLI - gpu_milli
                    after = fragment(cpu_after, idle - 1, partial, partials + 1, model, kinds, kind_counts)
                else:
                    partial[place] = free - gpu_milli
                    after = fragment(cpu_after, idle, partial, partials, model, kinds, kind_counts)
                    partial[place] = free
                score = _quantised(before - after)
                if score > best:
                    best, chosen, chosen_device = score, node, device
        else:
            # Several shares of less than a device do not occur in the published traces: taken as whole devices here.
            after = fragment(cpu_after, max(0, idle - gpus), partial, partials, model, kinds, kind_counts)
            score = _quantised(before - after)
            if score > best:
                best, chosen, chosen_device = score, node, _BY_RULE
    return chosen, chosen_device


@inner_kernel
def _quantised(gain_milli: float) -> float:
    return float(np.floor(100.0 / (1.0 + np.exp(-gain_milli / 1000.0))))


@inner_kernel
def _seen_before(nodes: NodeArrays, node: int, device: int) -> bool:
    """True when an earlier device has as much free: it would score the same and win the tie."""
    seen = False
    for earlier in range(device):
        seen = seen or nodes.gpu_milli_free[node, earlier] == nodes.gpu_milli_free[node, device]
    return seen


@kernel
def _simple(
    cpu_milli: int, memory_mib: int, gpus: int, gpu_milli: int, models: int, rule: int, nodes: NodeArrays, partial: Ints
) -> int:
    """Best fit, dot product and packing: the node with the highest whole-number score."""
    best = 0
    chosen = _NOWHERE
    for node in range(len(nodes.gpus)):
        if not fits(nodes, node, cpu_milli, memory_mib, gpus, gpu_milli, models):
            continue
        cpu_free = nodes.cpu_milli_free[node] / _CPU_MILLI_SCALE
        gpu_free = nodes.gpu_milli_free_sum[node] / _GPU_MILLI_SCALE
        cpu_requested = cpu_milli / _CPU_MILLI_SCALE
        gpu_requested = gpus * gpu_milli / _GPU_MILLI_SCALE
        if rule == BaselineRule.BESTFIT:
            score = int(100.0 * (1.0 - 0.5 * (cpu_free - cpu_requested) - 0.5 * (gpu_free - gpu_requested)))
        elif rule == BaselineRule.DOTPROD:
            score = int(100.0 * (1.0 - 0.5 * (cpu_free * cpu_requested + gpu_free * gpu_requested)))
        else:
            score = _packing_score(gpus, gpu_milli, nodes, node, partial)
        if chosen == _NOWHERE or score > best:  # nodes above the published scale score below 0
            best = score
            chosen = node
    return chosen


@inner_kernel
def _packing_score(gpus: int, gpu_milli: int, nodes: NodeArrays, node: int, partial: Ints) -> int:
    """Devices in use first, then idle devices of nodes in use, then idle nodes."""
    if gpus == 0:
        return 0
    idle, partials = profile(nodes, node, partial)
    if idle == nodes.gpus[node]:
        return max(33 - idle, idle)
    # The fullest devices that fit are used first; what they cannot give, idle devices must.
    used = 0
    free_pct = 0
    floor_milli = gpu_milli
    while used < gpus:
        lowest = GPU_MILLI
        for index in range(partials):
            if floor_milli <= partial[index] < lowest:
                lowest = partial[index]
        if lowest == GPU_MILLI:
            return max(50 - (gpus - used), 33)
        for index in range(partials):
            if partial[index] == lowest and used < gpus:
                used += 1
                free_pct += lowest * 100 // GPU_MILLI
        floor_milli = lowest + 1
    return max(100 - free_pct // 10, 50)


@kernel
def _random(
    cpu_milli: int,
    memory_mib: int,
    gpus: int,
    gpu_milli: int,
    models: int,
    nodes: NodeArrays,
    node_draw: float,
    device_draw: float,
) -> tuple[int, int]:
    """Any node with room, any device with room on it; the draws are in [0, 1)."""
    fitting = 0
    for node in range(len(nodes.gpus)):
        if fits(nodes, node, cpu_milli, memory_mib, gpus, gpu_milli, models):
            fitting += 1
    if fitting == 0:
        return _NOWHERE, _BY_RULE
    wanted = int(node_draw * fitting)
    chosen = _NOWHERE
    for node in range(len(nodes.gpus)):
        if fits(nodes, node, cpu_milli, memory_mib, gpus, gpu_milli, models):
            if wanted == 0:
                chosen = node
                break
            wanted -= 1
    if gpus != 1 or gpu_milli == GPU_MILLI:
        return chosen, _BY_RULE
    roomy = 0
    for device in range(nodes.gpus[chosen]):
        if nodes.gpu_milli_free[chosen, device] >= gpu_milli:
            roomy += 1
    wanted = int(device_draw * roomy)
    for device in range(nodes.gpus[chosen]):
        if nodes.gpu_milli_free[chosen, device] >= gpu_milli:
            if wanted == 0:
                return chosen, device
            wanted -= 1
    return chosen, _BY_RULE
