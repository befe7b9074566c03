"""What is asked for, and what is there? Requests and nodes as plain integers and arrays, in written units."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
SmallInts = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

GPU_MILLI = 1000  # one whole device
DEVICES_MAX = 72  # the largest node: one NVLink domain of 72
MODELS_MAX = 62  # a model set is a mask in a signed 64-bit integer
ANY_MODEL = -1  # every bit set: the request names no model
AMOUNT_MAX = 2**31 - 1  # rollouts keep CPU and memory in 32 bits, so that all of them stay in the first cache
TAKE = -1  # what happens to free amounts
GIVE_BACK = 1
LOOK = 0
KINDS_KEPT_MAX = 4096  # in their canonical form: each placement asks for it four times


class ShapeRequest(NamedTuple):
    """One request for one node: a gang is as many requests as it has nodes."""

    cpu_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_milli: int = 0  # of each GPU: 1..999 shares one, 1000 takes it whole
    models: int = ANY_MODEL  # mask: bit i stands for model i of the fleet

    @property
    def gpu_milli_total(self) -> int:
        return self.gpus * self.gpu_milli


@lru_cache(maxsize=KINDS_KEPT_MAX)
def canonical(request: ShapeRequest, models: int) -> ShapeRequest:
    """The same request in the one form that makes equal kinds equal; refuses what no fleet could mean.

    `models` is the number of models in the fleet.
    """
    cpu_milli, memory_mib, gpus, gpu_milli, mask = request
    if not (0 <= cpu_milli <= AMOUNT_MAX and 0 <= memory_mib <= AMOUNT_MAX):
        raise ValueError(f"cpu_milli and memory_mib must be in 0..{AMOUNT_MAX}: {request}")
    if not 0 <= gpus <= DEVICES_MAX:
        raise ValueError(f"gpus must be in 0..{DEVICES_MAX} on one node: {request}")
    every = (1 << models) - 1
    if gpus == 0:
        return ShapeRequest(cpu_milli, memory_mib, 0, 0, every)
    if not 1 <= gpu_milli <= GPU_MILLI:
        raise ValueError(f"gpu_milli must be in 1..{GPU_MILLI}: {request}")
    return ShapeRequest(cpu_milli, memory_mib, gpus, gpu_milli, mask & every)


def request_rows(requests: Iterable[ShapeRequest]) -> Ints:
    """Requests as an array of rows (cpu_milli, memory_mib, gpus, gpu_milli, models)."""
    rows = np.array([tuple(request) for request in requests], dtype=np.int64)
    return rows.reshape(-1, 5)


class NodeShape(NamedTuple):
    """One empty node."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    model: int  # index of its GPU model in the fleet


class NodeArrays(NamedTuple):
    """All nodes, one row each: what they have, and what is free now. Kernels read and write these arrays."""

    cpu_milli: Ints
    memory_mib: Ints
    gpus: Ints
    model: Ints
    cpu_milli_free: Ints
    memory_mib_free: Ints
    gpu_milli_free: Ints  # [node, device]; devices that a node does not have stay 0
    gpu_milli_free_sum: Ints
    available: Bools  # False: drained or lost; keeps its work, receives none

    @property
    def size(self) -> int:
        return len(self.cpu_milli)

    @property
    def gpu_milli_total(self) -> int:
        return int(self.gpus.sum()) * GPU_MILLI


def empty_nodes(shapes: Sequence[NodeShape]) -> NodeArrays:
    """Arrays of idle, available nodes, in the order given: ties go to the first."""
    if not shapes:
        raise ValueError("a fleet needs at least one node")
    table = np.array([tuple(shape) for shape in shapes], dtype=np.int64)
    cpu_milli, memory_mib, gpus, model = (np.ascontiguousarray(column) for column in table.T)
    if table.min() < 0 or cpu_milli.max() > AMOUNT_MAX or memory_mib.max() > AMOUNT_MAX:
        raise ValueError(f"amounts of a node must be in 0..{AMOUNT_MAX}")
    if gpus.max() > DEVICES_MAX or model.max() >= MODELS_MAX:
        raise ValueError(f"a node has at most {DEVICES_MAX} GPUs, a fleet at most {MODELS_MAX} models")
    width = max(1, int(gpus.max()))
    idle = np.where(np.arange(width) < gpus[:, None], GPU_MILLI, 0).astype(np.int64)
    return NodeArrays(
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        gpus=gpus,
        model=model,
        cpu_milli_free=cpu_milli.copy(),
        memory_mib_free=memory_mib.copy(),
        gpu_milli_free=idle,
        gpu_milli_free_sum=gpus * GPU_MILLI,
        available=np.ones(len(shapes), dtype=np.bool_),
    )


def copied(nodes: NodeArrays) -> NodeArrays:
    """A copy that shares nothing: what is built aside must not see later changes."""
    return NodeArrays._make(array.copy() for array in nodes)
