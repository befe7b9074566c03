"""What has a hub, who holds it, who waits for it? The state that decisions are made on, and all that changes it.

Deterministic and without a clock: the same happenings give the same books.
"""

# harch: pure

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from harch.base.errors import InvariantBroken
from harch.fleet.model import Hub
from harch.placement.plan import slot_of
from harch.placement.policy.shapes import GPU_MILLI, Ints
from harch.placement.queueing.preemption import PastPreemptions
from harch.placement.queueing.queue import TurnQueue
from harch.placement.queueing.releases import Releases
from harch.placement.queueing.running import RunningRequest
from harch.placement.queueing.settings import LOWEST_CLASS, QueueSettings
from harch.placement.queueing.vacancies import Vacancies
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.placement.scoring import BestFit, Degradation, Scorer
from harch.placement.topology import TopologyGraph
from harch.wire.workloads import TaskPlacement


@dataclass
class PlacementState:
    """One hub. Every GPU is booked once and freed once, here, in the scorer and in the queue."""

    hub: Hub
    settings: QueueSettings = field(default_factory=QueueSettings)
    room: Room = field(init=False)
    scorer: Scorer = field(init=False)
    queue: TurnQueue = field(init=False)
    running: dict[str, RunningRequest] = field(default_factory=dict)
    stopping: dict[str, float] = field(default_factory=dict)  # told to make room, and when it has surely ended
    past: PastPreemptions = field(default_factory=PastPreemptions)  # by higher classes
    past_moves: PastPreemptions = field(default_factory=PastPreemptions)  # for gangs that had waited long
    topology: TopologyGraph = field(init=False)
    degradation: Degradation = field(init=False)  # what is not as the fleet file says
    vacancies: Vacancies = field(init=False)
    releases: Releases = field(init=False)  # what `running` would give back
    anchored: Ints = field(init=False)  # per node: tasks that no waiting gang can have moved
    changes: int = 0  # grows with everything that is booked: who is refused must have left it as it was
    subject: str = ""  # the request that is being looked at: if that fails, it is set aside

    def __post_init__(self) -> None:
        self.room = Room(self.hub)
        self.vacancies = Vacancies(self.room)
        self.topology = TopologyGraph(self.room)
        self.degradation = Degradation(self.topology)
        self.scorer = BestFit(self.room)
        self.queue = TurnQueue(self.settings, self.room)
        self.releases = Releases(self.room)
        self.anchored = np.zeros(self.room.arrays.size, np.int64)

    # What happens

    def submit(self, request: PlacementRequest, *, now_s: float) -> None:
        self.changes += 1
        self.scorer.observe(self.room.kind(request.needs))
        # Whoever was stopped for a higher class waits anew: by its age it would take its place back at once.
        was_stopped = request.id in self.spared(now_s)
        self.queue.add(request, now_s, waiting_since_s=now_s if was_stopped else request.submitted_s)

    def spared(self, now_s: float) -> set[str]:
        """Who was stopped so recently that it is left alone."""
        return self.past.spared(self.settings, now_s) | self.past_moves.spared(self.settings, now_s)

    def withdraw(self, request_id: str) -> None:
        self.changes += request_id in self.queue
        self.queue.remove(request_id)

    def resume(
        self, request: PlacementRequest, tasks: tuple[TaskPlacement, ...], *, started_s: float, now_s: float
    ) -> None:
        """Books what already holds GPUs, e.g. after a restart of the hub."""
        slots = tuple(slot_of(self.room, task) for task in tasks)
        self.book(self._as_was_counted(request, slots), slots, started_s=started_s, now_s=now_s)

    def _as_was_counted(self, request: PlacementRequest, slots: tuple[TaskSlot, ...]) -> PlacementRequest:
        """Work keeps its place, whatever was counted when it was given.

        Before storage was counted: it is counted for none if its node has not so much. Before the fleet file got GPUs
        with less memory: a share is as large as on the GPUs that it has.
        """
        needs = request.needs
        if needs.gpu_memory_gb is not None and slots:
            memory_gb = min(int(self.room.gpu_memory_gb[slot.row]) for slot in slots)
            milli = needs.gpu_milli_of(memory_gb)
            if milli < self.room.kind(needs).gpu_milli:
                needs = replace(needs, gpu_fraction=milli / GPU_MILLI, gpu_memory_gb=None)
                request = replace(request, needs=needs)
        tasks_on = Counter(slot.row for slot in slots)
        storage_mib = self.room.storage_mib_of(needs)
        if all(tasks * storage_mib <= self.room.storage_mib_free[row] for row, tasks in tasks_on.items()):
            return request
        return replace(request, needs=replace(needs, storage_gb=0))

    def book(self, request: PlacementRequest, slots: tuple[TaskSlot, ...], *, started_s: float, now_s: float) -> None:
        """Gives these slots to the request."""
        if request.id in self.running:
            raise InvariantBroken("a workload is placed once", request.id)
        self.changes += 1
        kind = self.room.kind(request.needs)
        for slot in slots:
            self.room.take(request.needs, slot, exclusive=request.topology.exclusive)
            self.scorer.take(kind, slot)
        if request.runs_process:
            self.room.process_slots_free -= len(slots)
        self._anchor(request, slots, 1)
        self.vacancies.changed([slot.row for slot in slots])
        self._holds(request, slots, started_s=started_s, now_s=now_s)

    def hand_over(self, hold_id: str, request: PlacementRequest, *, now_s: float) -> None:
        """What was held under the one name is this request's now."""
        self.changes += 1
        held = self.running.pop(hold_id)
        self._anchor(held.request, held.slots, -1)
        self._anchor(request, held.slots, 1)
        self.releases.remove(hold_id)
        self.stopping.pop(hold_id, None)
        self.queue.released(hold_id, now_s)
        self._holds(request, held.slots, started_s=now_s, now_s=now_s)

    def _holds(self, request: PlacementRequest, slots: tuple[TaskSlot, ...], *, started_s: float, now_s: float) -> None:
        item = RunningRequest(request=request, slots=slots, started_s=started_s, stop_grace_s=request.stop_grace_s)
        self.running[request.id] = item
        self.releases.add(item)
        self.queue.holds(request.id, request, len(slots), now_s)

    def stops(self, request_id: str, *, now_s: float) -> None:
        """It was told to stop, by whomever: its place comes free after its grace."""
        self.changes += 1
        running = self.running[request_id]
        self.stopping[request_id] = now_s + running.stop_grace_s + self.settings.backfill_margin_s

    def ended(self, request_id: str, *, now_s: float) -> None:
        """Frees what the request held, exactly once."""
        running = self.running.pop(request_id, None)
        if running is None:
            raise InvariantBroken("only held GPUs are freed", request_id)
        self.changes += 1
        needs, exclusive = running.request.needs, running.request.topology.exclusive
        kind = self.room.kind(needs)
        for slot in running.slots:
            self.room.give_back(needs, slot, exclusive=exclusive)
            self.scorer.release(kind, slot)
            for device in slot.devices:
                if not self.room.healthy[slot.row, device]:
                    self.scorer.withhold(slot.row, device, kind.gpu_milli)
        if running.request.runs_process:
            self.room.process_slots_free += len(running.slots)
        self._anchor(running.request, running.slots, -1)
        self.releases.remove(request_id)
        self.stopping.pop(request_id, None)
        self.vacancies.add([slot.row for slot in running.slots])
        self.queue.released(request_id, now_s)

    def _anchor(self, request: PlacementRequest, slots: tuple[TaskSlot, ...], change: int) -> None:
        if is_anchor(request):
            np.add.at(self.anchored, [slot.row for slot in slots], change)

    # The hardware changes; the next decision sees it

    def serve(self, node_ids: tuple[str, ...], served: bool) -> None:
        """An agent serves these nodes, or no longer does."""
        self.room.serve(node_ids, served)
        self.look_again()
        self._show_availability(node_ids)

    def cordon(self, node_id: str, cordoned: bool) -> None:
        self.room.cordon(node_id, cordoned)
        self.look_again()
        self._show_availability((node_id,))

    def set_health(self, node_id: str, device: int, healthy: bool) -> None:
        row = self.room.row_of[node_id]
        before = int(self.room.withheld_milli[row, device])
        self.room.set_health(node_id, device, healthy)
        self.degradation.refresh()
        self.look_again()
        self.scorer.withhold(row, device, int(self.room.withheld_milli[row, device]) - before)

    def set_cooling(self, zone: int, heat_kw_max: float) -> None:
        self.room.set_cooling(zone, heat_kw_max)
        self.degradation.refresh()
        self.look_again()

    def set_nvlink(self, node_id: str, factor: float) -> None:
        self.topology.set_nvlink(node_id, factor)
        self.degradation.refresh()

    def set_uplink(self, rack_id: str, factor: float) -> None:
        self.topology.set_uplink(rack_id, factor)
        self.degradation.refresh()

    def look_again(self) -> None:
        """What did not fit may fit now."""
        self.changes += 1
        self.vacancies.add_everything()

    def use(self, scorer: Scorer) -> None:
        """Swaps the scorer: the new one, made for an empty room, is shown everything that is not free."""
        for running in self.running.values():
            for slot in running.slots:
                scorer.take(self.room.kind(running.request.needs), slot)
        for row, device in zip(*np.nonzero(self.room.withheld_milli), strict=True):
            scorer.withhold(int(row), int(device), int(self.room.withheld_milli[row, device]))
        self.scorer = scorer
        self.vacancies.add_everything()
        self._show_availability(tuple(self.room.row_of))

    def _show_availability(self, node_ids: tuple[str, ...]) -> None:
        for node_id in node_ids:
            row = self.room.row_of[node_id]
            self.scorer.set_available(row, bool(self.room.arrays.available[row]))


def is_anchor(request: PlacementRequest) -> bool:
    """True: it stays where it is, whoever waits. Of a higher class than the lowest, or not preemptible."""
    return request.turn_class is not LOWEST_CLASS or not request.preemptible
