"""Who holds which GPU? The hub's book of allocations; a GPU is given once and freed once, or the hub stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from harch.base.errors import InvariantBroken
from harch.fleet.model import Hub
from harch.placement.nodes import NodeState, NodeTable
from harch.workloads.lifecycle import Workload


@dataclass
class CapacityBook:
    """Live node state plus the holder of every given GPU."""

    hub: Hub
    state: NodeState
    holder: dict[str, str] = field(default_factory=dict)  # GPU id -> workload id
    holds: set[str] = field(default_factory=set)  # workloads with a placement
    _place_of: dict[str, tuple[int, int]] = field(default_factory=dict)  # GPU id -> (row, device)

    @classmethod
    def of(cls, hub: Hub) -> CapacityBook:
        table = NodeTable.of(hub)
        book = cls(hub=hub, state=NodeState.empty(table))
        for row, node in enumerate(table.nodes):
            for gpu in node.gpus:
                book._place_of[gpu.id] = (row, gpu.index)
        return book

    def take(self, workload: Workload) -> None:
        """Books the workload's placement. Raises if a GPU is already held: never repaired in silence."""
        if workload.id in self.holds:
            raise InvariantBroken("a workload is placed once", workload.id)
        self.holds.add(workload.id)
        for task in workload.placement:
            devices = []
            for gpu_id in task.gpu_ids:
                if gpu_id in self.holder:
                    raise InvariantBroken("a GPU has one holder", gpu_id, self.holder[gpu_id], workload.id)
                self.holder[gpu_id] = workload.id
                devices.append(self._place_of[gpu_id][1])
            self.state.take(self.state.table.row_of[task.node_id], devices, workload.spec.resources)
        if workload.spec.runs_process:
            self.state.process_slots_free -= len(workload.placement)

    def give_back(self, workload: Workload) -> None:
        """Frees what `take` booked, exactly once."""
        if workload.id not in self.holds:
            raise InvariantBroken("only held GPUs are freed", workload.id)
        self.holds.discard(workload.id)
        for task in workload.placement:
            devices = []
            for gpu_id in task.gpu_ids:
                if self.holder.pop(gpu_id, None) != workload.id:
                    raise InvariantBroken("a GPU is freed by its holder", gpu_id, workload.id)
                devices.append(self._place_of[gpu_id][1])
            self.state.give_back(self.state.table.row_of[task.node_id], devices, workload.spec.resources)
        if workload.spec.runs_process:
            self.state.process_slots_free += len(workload.placement)

    def knows(self, workload: Workload) -> bool:
        """False if the fleet file no longer has a node or GPU that the workload was placed on."""
        rows = self.state.table.row_of
        return all(
            task.node_id in rows and all(gpu_id in self._place_of for gpu_id in task.gpu_ids)
            for task in workload.placement
        )

    def device_index(self, gpu_id: str) -> int:
        return self._place_of[gpu_id][1]

    def set_available(self, node_ids: tuple[str, ...], available: bool) -> None:
        for node_id in node_ids:
            self.state.available[self.state.table.row_of[node_id]] = available
