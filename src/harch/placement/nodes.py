"""Which nodes does a hub have, and what is free there? Arrays: a decision over thousands of nodes must be cheap."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harch.fleet.model import Hub, Node
from harch.workloads.spec import Resources

_MASK_CACHE_MAX = 1024  # distinct (model, memory) requirements remembered per hub


@dataclass(frozen=True)
class NodeTable:
    """The unchanging side of a hub's nodes; row i of every array is `nodes[i]`."""

    nodes: tuple[Node, ...]
    row_of: dict[str, int]
    models: tuple[str, ...]  # model index -> name
    model_index: NDArray[np.int16]
    gpu_count: NDArray[np.int16]
    gpu_memory_gb: NDArray[np.int32]
    cpus: NDArray[np.float64]
    memory_gb: NDArray[np.float64]
    rack_index: NDArray[np.int32]
    gpus_max: int
    _masks: dict[tuple[str | None, float], NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def of(cls, hub: Hub) -> NodeTable:
        nodes = hub.nodes
        models = hub.gpu_models
        racks = {rack.id: i for i, rack in enumerate(hub.racks)}
        return cls(
            nodes=nodes,
            row_of={node.id: row for row, node in enumerate(nodes)},
            models=models,
            model_index=np.array([models.index(node.gpu_model.name) for node in nodes], np.int16),
            gpu_count=np.array([len(node.gpus) for node in nodes], np.int16),
            gpu_memory_gb=np.array([node.gpu_model.memory_gb for node in nodes], np.int32),
            cpus=np.array([node.cpus for node in nodes], np.float64),
            memory_gb=np.array([node.memory_gb for node in nodes], np.float64),
            rack_index=np.array([racks[node.rack_id] for node in nodes], np.int32),
            gpus_max=max(len(node.gpus) for node in nodes),
        )

    def suits(self, needs: Resources) -> NDArray[np.bool_]:
        """Nodes whose GPUs are of the wanted model and memory; all nodes for a request without GPUs."""
        key = (needs.gpu_model, needs.gpu_memory_gb_min) if needs.gpus else (None, 0.0)
        mask = self._masks.get(key)
        if mask is None:
            mask = self.gpu_memory_gb >= key[1]
            if key[0] is not None:
                wanted = self.models.index(key[0]) if key[0] in self.models else -1
                mask = mask & (self.model_index == wanted)
            if len(self._masks) >= _MASK_CACHE_MAX:
                self._masks.clear()
            self._masks[key] = mask
        return mask

    def slots_when_empty(self, needs: Resources) -> NDArray[np.int64]:
        """How many tasks each node would take if nothing ran on it."""
        return _slots(needs, self.suits(needs), self.gpu_count, self.cpus, self.memory_gb)


@dataclass
class NodeState:
    """The changing side: what is free. `devices_free[row, i]` is True while GPU i of that node is free."""

    table: NodeTable
    available: NDArray[np.bool_]  # an agent serves the node and nobody cordoned it
    devices_free: NDArray[np.bool_]
    gpus_free: NDArray[np.int16]
    cpus_free: NDArray[np.float64]
    memory_gb_free: NDArray[np.float64]
    process_slots_free: int = 0

    @classmethod
    def empty(cls, table: NodeTable) -> NodeState:
        devices = np.arange(table.gpus_max)[None, :] < table.gpu_count[:, None]
        return cls(
            table=table,
            available=np.zeros(len(table.nodes), np.bool_),
            devices_free=devices,
            gpus_free=table.gpu_count.copy(),
            cpus_free=table.cpus.copy(),
            memory_gb_free=table.memory_gb.copy(),
        )

    def copy(self) -> NodeState:
        """A private copy to plan on; the plan, not the copy, is what changes the world."""
        return NodeState(
            table=self.table,
            available=self.available.copy(),
            devices_free=self.devices_free.copy(),
            gpus_free=self.gpus_free.copy(),
            cpus_free=self.cpus_free.copy(),
            memory_gb_free=self.memory_gb_free.copy(),
            process_slots_free=self.process_slots_free,
        )

    def slots_now(self, needs: Resources) -> NDArray[np.int64]:
        """How many tasks each node takes right now."""
        suits = self.table.suits(needs) & self.available
        return _slots(needs, suits, self.gpus_free, self.cpus_free, self.memory_gb_free)

    def fits_now(self, needs: Resources) -> NDArray[np.bool_]:
        """Nodes that take one task right now; cheaper than counting slots."""
        fits = self.table.suits(needs) & self.available
        fits &= self.gpus_free >= needs.gpus
        fits &= self.cpus_free >= needs.cpus
        fits &= self.memory_gb_free >= needs.memory_gb
        return fits

    def take(self, row: int, devices: list[int], needs: Resources) -> None:
        self.devices_free[row, devices] = False
        self.gpus_free[row] -= len(devices)
        self.cpus_free[row] -= needs.cpus
        self.memory_gb_free[row] -= needs.memory_gb

    def give_back(self, row: int, devices: list[int], needs: Resources) -> None:
        self.devices_free[row, devices] = True
        self.gpus_free[row] += len(devices)
        self.cpus_free[row] += needs.cpus
        self.memory_gb_free[row] += needs.memory_gb


def _slots(
    needs: Resources,
    suits: NDArray[np.bool_],
    gpus: NDArray[np.int16],
    cpus: NDArray[np.float64],
    memory_gb: NDArray[np.float64],
) -> NDArray[np.int64]:
    # A tiny allowance: 0.1 + 0.2 cores must fit into 0.3.
    slots = np.minimum(np.floor(cpus / needs.cpus + 1e-9), np.floor(memory_gb / needs.memory_gb + 1e-9)).astype(
        np.int64
    )
    if needs.gpus:
        slots = np.minimum(slots, gpus.astype(np.int64) // needs.gpus)
    return np.where(suits, slots, 0)
