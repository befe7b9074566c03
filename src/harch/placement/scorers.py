"""Which node is best for one task? Two answers to the same question: plain best fit, and the learned policy.

A scorer follows every change of the room (`take`, `release`, `set_available`), so that it may keep values of its own.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats
from harch.placement.policy.shapes import Request as Kind
from harch.placement.room import Room, TaskSlot

POLICY_BEST_FIT, POLICY_HARCH = "best-fit", "harch"


class Choice(NamedTuple):
    """A node for one task. `device` is given for a share of a GPU; whole GPUs are chosen by topology afterwards."""

    row: int
    device: int | None
    score: float
    parts: dict[str, float]


class Scorer(Protocol):
    """Higher scores are better. `allowed` holds one boolean per node: what the hard checks left over."""

    name: str

    def observe(self, kind: Kind) -> None:
        """A request of this kind has arrived; scorers may learn from it."""
        ...

    def choose(self, kind: Kind, allowed: Bools) -> Choice | None: ...

    def candidates(self, kind: Kind, allowed: Bools, limit: int) -> list[Choice]: ...

    def node_scores(self, kind: Kind, allowed: Bools) -> Floats:
        """One score per node, -inf where the task does not fit; for gangs."""
        ...

    def take(self, kind: Kind, slot: TaskSlot) -> None: ...

    def release(self, kind: Kind, slot: TaskSlot) -> None: ...

    def set_available(self, row: int, available: bool) -> None: ...

    def withhold(self, row: int, device: int, gpu_milli: int) -> None:
        """So much more (less, if negative) of this device is free and yet not to be given: it is not healthy."""
        ...


class BestFit:
    """The node that is left with the least free GPU, then the least free CPU: whole nodes stay whole for others."""

    name = POLICY_BEST_FIT

    def __init__(self, room: Room) -> None:
        self._room = room

    def observe(self, kind: Kind) -> None:
        pass

    def choose(self, kind: Kind, allowed: Bools) -> Choice | None:
        scores = self.node_scores(kind, allowed)
        row = int(scores.argmax())
        return None if scores[row] == -np.inf else self._choice(kind, row, float(scores[row]))

    def candidates(self, kind: Kind, allowed: Bools, limit: int) -> list[Choice]:
        scores = self.node_scores(kind, allowed)
        order = np.argsort(-scores, kind="stable")[:limit]
        return [self._choice(kind, int(row), float(scores[row])) for row in order if scores[row] > -np.inf]

    def node_scores(self, kind: Kind, allowed: Bools) -> Floats:
        arrays = self._room.arrays
        fits = allowed & arrays.available & (arrays.cpu_milli_free >= kind.cpu_milli)
        fits &= arrays.memory_mib_free >= kind.memory_mib
        if kind.gpus:
            fits &= (np.int64(1) << arrays.model) & np.int64(kind.models) != 0
            fits &= (arrays.gpu_milli_free >= kind.gpu_milli).sum(axis=1) >= kind.gpus
        left = arrays.gpu_milli_free_sum - kind.gpu_milli_total
        # CPU only breaks ties: a node has fewer than a million thousandths of a core for each thousandth of a GPU.
        score = -(left + (arrays.cpu_milli_free - kind.cpu_milli) / 1e7)
        return np.where(fits, score, -np.inf)

    def _choice(self, kind: Kind, row: int, score: float) -> Choice:
        device = None
        if kind.gpus == 1 and kind.gpu_milli < GPU_MILLI:
            free = self._room.arrays.gpu_milli_free[row]
            device = int(np.where(free >= kind.gpu_milli, free, 2 * GPU_MILLI).argmin())  # the fullest that fits
        return Choice(row, device, score, {"best_fit": score})

    def take(self, kind: Kind, slot: TaskSlot) -> None:
        pass  # it reads the room itself

    def release(self, kind: Kind, slot: TaskSlot) -> None:
        pass

    def set_available(self, row: int, available: bool) -> None:
        pass

    def withhold(self, row: int, device: int, gpu_milli: int) -> None:
        pass
