"""The learned policy as a scorer: rollout value and scarcity prices, from the hub's own history. Needs Numba."""

# harch: pure

from __future__ import annotations

import numpy as np

from harch.placement.policy.engine import PlacementDecision, PlacementEngine
from harch.placement.policy.lessons import RequestHistory
from harch.placement.policy.shapes import Bools, Floats, Ints, NodeShape
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.room import Room, TaskSlot
from harch.placement.scoring import POLICY_HARCH, Choice


class LearnedPolicy:
    """Mirrors the room in the engine's own arrays. Learns when `learning_due` says so and its owner calls `learn`."""

    name = POLICY_HARCH

    def __init__(self, room: Room, *, history: RequestHistory | None = None) -> None:
        arrays = room.arrays
        shapes = [
            NodeShape(*row)
            for row in zip(
                arrays.cpu_milli.tolist(),
                arrays.memory_mib.tolist(),
                arrays.gpus.tolist(),
                arrays.model.tolist(),
                strict=True,
            )
        ]
        self.engine = PlacementEngine(shapes, models=len(room.models), history=history)

    def observe(self, kind: Kind) -> None:
        self.engine.observe(kind)

    @property
    def learning_due(self) -> bool:
        return self.engine.learning_due

    def learn(self) -> None:
        self.engine.relearn()

    def choose(self, kind: Kind, allowed: Bools) -> Choice | None:
        decision = self.engine.choose(kind, allowed)
        return None if decision is None else _choice(decision)

    def candidates(self, kind: Kind, allowed: Bools, limit: int) -> list[Choice]:
        return [_choice(decision) for decision in self.engine.top_candidates(kind, limit, allowed)]

    def node_scores(self, kind: Kind, allowed: Bools) -> Floats:
        return self.engine.node_scores(kind, allowed)

    def take(self, kind: Kind, slot: TaskSlot) -> None:
        self.engine.take(kind, slot.row, slot.devices)

    def release(self, kind: Kind, slot: TaskSlot) -> None:
        self.engine.release(kind, slot.row, slot.devices)

    def set_available(self, row: int, available: bool) -> None:
        self.engine.set_node_available(row, available)

    def withhold(self, row: int, device: int, gpu_milli: int) -> None:
        if gpu_milli > 0:
            self.engine.take(Kind(0, 0, 1, gpu_milli), row, (device,))
        elif gpu_milli < 0:
            self.engine.release(Kind(0, 0, 1, -gpu_milli), row, (device,))

    def history_rows(self) -> Ints:
        """What it has learned from so far, for keeping over restarts."""
        return np.asarray(self.engine.history.rows())


def _choice(decision: PlacementDecision) -> Choice:
    device = decision.devices[0] if len(decision.devices) == 1 else None
    return Choice(decision.node, device, decision.score, decision.parts._asdict())
