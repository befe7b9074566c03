"""What does a round of the scheduler decide, in values and in words? Assignments, the plan, and reasons for people."""

# harch: pure

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec import Struct

from harch.placement.defragmentation import DefragmentationPlan
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.queueing.preemption import PreemptionPlan
from harch.placement.queueing.reservations import Reservation
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.topology import Prediction
from harch.wire.workloads import TaskPlacement
from harch.workloads.spec import Level

ALONE = Prediction(Level.ISLAND, math.inf, math.inf, 1.0)  # one GPU, or none, has nobody to talk to


class GpuAssignment(Struct, frozen=True):
    """A whole workload placed: its tasks in rank order, and why there."""

    request: PlacementRequest
    slots: tuple[TaskSlot, ...]
    tasks: tuple[TaskPlacement, ...]
    score: float
    parts: dict[str, float]
    prediction: Prediction  # modelled: how much slower its GPUs talk than the best that so many could have
    why: str


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What one round decided. Assignments are booked; preemptions are for the hub to carry out."""

    assignments: tuple[GpuAssignment, ...] = ()
    preemptions: tuple[PreemptionPlan, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    complete: bool = True  # False: the limit was reached, ask again at once


@dataclass(frozen=True, slots=True)
class Clearing:
    """Work is moving away so that a request can start; `until_s` the room is kept for it before all others."""

    plan: DefragmentationPlan
    until_s: float


def slot_of(room: Room, task: TaskPlacement) -> TaskSlot:
    """Where a task stands in the room, from the names that a workload keeps."""
    row = room.row_of[task.node_id]
    index = {gpu.id: gpu.index for gpu in room.hub.nodes[row].gpus}
    return TaskSlot(row, tuple(index[gpu_id] for gpu_id in task.gpu_ids))


def placements_of(room: Room, slots: tuple[TaskSlot, ...]) -> tuple[TaskPlacement, ...]:
    """The names of what the slots are, in rank order."""
    placements = []
    for rank, slot in enumerate(slots):
        node = room.hub.nodes[slot.row]
        gpu_ids = tuple([node.gpus[device].id for device in slot.devices])
        placements.append(TaskPlacement(rank=rank, node_id=node.id, gpu_ids=gpu_ids))
    return tuple(placements)


def reason(
    room: Room, scorer_name: str, request: PlacementRequest, slots: tuple[TaskSlot, ...], prediction: Prediction
) -> str:
    """Why there, in one line."""
    speed = "" if prediction is ALONE else f"; {prediction}"
    if len(slots) == 1:
        row = slots[0].row
        free = int(room.arrays.gpu_milli_free_sum[row]) / GPU_MILLI
        return f"{scorer_name}: leaves {free:g} GPUs free on {room.hub.nodes[row].id}{speed}"
    rows = {slot.row for slot in slots}
    racks = len({int(room.rack[row]) for row in rows})
    where = "one node" if len(rows) == 1 else f"{len(rows)} nodes in {'one rack' if racks == 1 else f'{racks} racks'}"
    fewer = f" (of {request.tasks} wanted)" if len(slots) < request.tasks else ""
    return f"gang of {len(slots)}{fewer} on {where}{speed}"
