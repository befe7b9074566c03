"""What holds GPUs now, and what will be free once it has ended? Small values, and rooms with some of them gone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harch.placement.gangs import place_gang
from harch.placement.policy.shapes import GPU_MILLI, Bools, Floats, Ints
from harch.placement.policy.shapes import Request as Kind
from harch.placement.request import Request
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level


@dataclass(frozen=True, slots=True)
class Running:
    """One request with the places of its tasks."""

    request: Request
    slots: tuple[TaskSlot, ...]
    started_s: float
    restarts: int = 0
    stop_grace_s: float = 0.0
    checkpoint_s: float | None = None  # when it last saved its work, if known

    def ends_s_max(self, now_s: float, margin_s: float = 0.0) -> float:
        """When it has surely ended, by its promise; infinite without one. A broken promise is none."""
        bound_s = self.request.duration_s_max
        if bound_s is None:
            return math.inf
        ends_s = self.started_s + bound_s + self.stop_grace_s + margin_s
        return ends_s if ends_s >= now_s else math.inf

    def lost_gpu_s(self, now_s: float) -> float:
        """Work that is done again after a restart. Tasks without GPUs count a thousandth: cheap, but not free."""
        since_s = max(self.started_s, -math.inf if self.checkpoint_s is None else self.checkpoint_s)
        needs = self.request.needs
        gpu_milli_each = max(needs.gpus * needs.gpu_milli, 1)
        return max(0.0, now_s - since_s) * len(self.slots) * gpu_milli_each / GPU_MILLI


class Releases:
    """What each of `running` would give back, as arrays: many "what if" rooms are made from one table."""

    def __init__(self, room: Room, running: Sequence[Running]) -> None:
        self._room = room
        self.running = running
        tasks = []
        devices = []
        for owner, item in enumerate(running):
            kind = room.kind(item.request.needs)
            for slot in item.slots:
                tasks.append((owner, slot.row, kind.cpu_milli, kind.memory_mib, kind.gpu_milli_total))
                devices += [(owner, slot.row, device, kind.gpu_milli) for device in slot.devices]
        self._tasks = np.array(tasks, np.int64).reshape(-1, 5)
        self._devices = np.array(devices, np.int64).reshape(-1, 4)
        self._processes = np.array([len(r.slots) if r.request.runs_process else 0 for r in running], np.int64)

    def room_after(self, gone: Bools) -> Room:
        """The room once those of `running` have ended for which `gone` is True. Health and cordons stay as they are."""
        room = self._room.copy()
        arrays = room.arrays
        _, row, cpu_milli, memory_mib, gpu_milli = self._tasks[gone[self._tasks[:, 0]]].T
        np.add.at(arrays.cpu_milli_free, row, cpu_milli)
        np.add.at(arrays.memory_mib_free, row, memory_mib)
        np.subtract.at(room.tasks_on, row, 1)
        watts: Floats = room.gpu_power_w[row] * gpu_milli / GPU_MILLI
        np.add.at(room.rack_power_w_free, room.rack[row], watts)
        np.subtract.at(room.zone_heat_w, room.rack_zone[room.rack[row]], watts)
        room.exclusive_on &= room.tasks_on > 0
        _, row, device, gpu_milli = self._devices[gone[self._devices[:, 0]]].T
        whole = room.healthy[row, device]
        np.add.at(arrays.gpu_milli_free, (row[whole], device[whole]), gpu_milli[whole])
        np.add.at(arrays.gpu_milli_free_sum, row[whole], gpu_milli[whole])
        room.process_slots_free += int(self._processes[gone].sum())
        return room


def domains(room: Room, level: Level) -> Ints:
    """The number of the domain in which each node stands. Islands lie inside nodes, so their domain is the node."""
    if level.rank <= Level.NODE.rank:
        return np.arange(room.arrays.size)
    if level is Level.RACK:
        return room.rack
    return room.rack_row[room.rack] if level is Level.ROW else np.zeros(room.arrays.size, np.int64)


def could_fit(room: Room, request: Request, tasks: int, allowed: Bools) -> bool:
    """False: `find_slots` would find none. A quick look, as power is counted per node and islands are not looked at."""
    slots = np.where(allowed, room.slots(request.needs, exclusive=request.topology.exclusive), 0)
    return bool(np.bincount(domains(room, request.topology.required), slots).max() >= tasks)


def find_slots(room: Room, request: Request, tasks: int, allowed: Bools) -> tuple[TaskSlot, ...] | None:
    """Would it fit in such a room, and where? The rules of the real placement; only scores are left out."""
    if request.runs_process and tasks > room.process_slots_free:
        return None
    if not could_fit(room, request, tasks, allowed):
        return None
    return place_gang(room, request, tasks, rank_nodes=_all_alike, allowed=allowed)


def _all_alike(kind: Kind, nodes: Bools) -> Floats:
    return np.zeros(nodes.size)
