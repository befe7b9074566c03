"""What is free at a hub? Every GPU, CPU and watt as arrays: a decision over thousands of nodes must be cheap.

`Room` is the one book of a hub's capacity. It follows what happens (work, health, drained nodes, cooling that fails),
refuses to give anything twice, and can be copied, so that a plan is made on a copy and only then carried out.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import cached_property

import numpy as np
from msgspec import Struct

from harch.base.errors import InvariantBroken
from harch.fleet.model import Hub, Node
from harch.placement.policy.shapes import (
    AMOUNT_MAX,
    ANY_MODEL,
    GPU_MILLI,
    Bools,
    Floats,
    Ints,
    NodeArrays,
    NodeShape,
    copied,
    empty_nodes,
)
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.workloads.spec import Resources

MIB_PER_GB = 1024
_KINDS_MAX = 4096
_PLENTY_W = 1e12
_CHANGING = (
    "rack_power_w_free",
    "zone_heat_w",
    "zone_heat_w_max",
    "healthy",
    "withheld_milli",
    "cordoned",
    "served",
    "tasks_on",
    "exclusive_on",
    "storage_mib_free",
)


Neighbourhoods = tuple[tuple[int, int, int], ...]  # island, PCIe switch and NUMA domain of each device of a node


class TaskSlot(Struct, frozen=True, gc=False):
    """A place for one task: a row of the room, and devices of that node in ascending order."""

    row: int
    devices: tuple[int, ...]


class Room:
    """Row i is `hub.nodes[i]` in every array. One owner, one thread."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.models = hub.gpu_models
        shapes = [
            NodeShape(
                node.cpus * 1000, node.memory_gb * MIB_PER_GB, len(node.gpus), self.models.index(node.gpu_model.name)
            )
            for node in hub.nodes
        ]
        self.arrays: NodeArrays = empty_nodes(shapes)
        # The policy scores without storage: it is a hard limit, and hardly ever the one that binds.
        self.storage_mib: Ints = np.array([node.storage_gb * MIB_PER_GB for node in hub.nodes], np.int64)
        self.storage_mib_free: Ints = self.storage_mib.copy()
        self.row_of = {node.id: row for row, node in enumerate(hub.nodes)}
        rack_of = {rack.id: index for index, rack in enumerate(hub.racks)}
        rows = {row: index for index, row in enumerate(dict.fromkeys(rack.row for rack in hub.racks))}
        zones = {zone.id: index for index, zone in enumerate(hub.cooling_zones)}
        self.rack: Ints = np.array([rack_of[node.rack_id] for node in hub.nodes])
        self.rack_row: Ints = np.array([rows[rack.row] for rack in hub.racks])
        self.rack_zone: Ints = np.array([zones[rack.cooling_zone] for rack in hub.racks])
        kinds: dict[Neighbourhoods, Neighbourhoods] = {}  # most nodes are alike, and share one value
        self.neighbourhoods = [kinds.setdefault(found, found) for found in map(neighbourhoods, hub.nodes)]
        width = self.arrays.gpu_milli_free.shape[1]
        self.island: Ints = np.full((len(hub.nodes), width), -1)
        for row, node in enumerate(hub.nodes):
            for gpu in node.gpus:
                self.island[row, gpu.index] = gpu.island
        self.gpu_memory_gb: Ints = np.array([node.gpu_model.memory_gb for node in hub.nodes])
        self.gpu_power_w: Ints = np.array([node.gpu_model.power_w for node in hub.nodes])
        idle_w = np.bincount(self.rack, [node.host_power_w for node in hub.nodes], len(hub.racks))
        self.rack_power_w_free: Floats = np.array([rack.power_kw_max * 1000 for rack in hub.racks]) - idle_w
        self.zone_heat_w_max: Floats = np.array([zone.heat_kw_max * 1000 for zone in hub.cooling_zones])
        self.zone_heat_w: Floats = np.bincount(self.rack_zone, idle_w, len(hub.cooling_zones)).astype(np.float64)
        self.healthy: Bools = self.arrays.gpu_milli_free > 0
        self.withheld_milli: Ints = np.zeros_like(self.arrays.gpu_milli_free)  # free, but on GPUs that are not healthy
        self.cordoned: Bools = np.zeros(len(hub.nodes), np.bool_)
        self.served: Bools = np.zeros(len(hub.nodes), np.bool_)  # an agent is connected
        self.arrays.available[:] = False
        self.tasks_on: Ints = np.zeros(len(hub.nodes), np.int64)
        self.exclusive_on: Bools = np.zeros(len(hub.nodes), np.bool_)
        self.process_slots_free = 0
        rack_w = np.bincount(self.rack, [node.power_w_max for node in hub.nodes], len(hub.racks))
        self._rack_w_max = rack_w
        self._rack_power_w = np.array([rack.power_kw_max * 1000 for rack in hub.racks])
        self.power_can_bind = self._power_can_bind()
        self._kinds: dict[Resources, Kind] = {}

    def copy(self) -> Room:
        """Shares what never changes, copies what does."""
        twin = copy(self)
        twin.arrays = copied(self.arrays)
        for name in _CHANGING:
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def __deepcopy__(self, memo: dict[int, object]) -> Room:
        memo[id(self)] = twin = self.copy()
        return twin

    @cached_property
    def whole_and_empty(self) -> Room:
        """The same hub as the fleet file describes it, with nothing on it and every node in use. Not to be changed."""
        room = Room(self.hub)
        room.serve(room.row_of, True)
        room.process_slots_free = AMOUNT_MAX
        return room

    def without_power_limits(self) -> Room:
        """A copy whose feeds carry and whose plants remove any amount."""
        room = self.copy()
        room.rack_power_w_free[:] = room.zone_heat_w_max[:] = _PLENTY_W
        room.power_can_bind = False
        return room

    # Asking

    def kind(self, needs: Resources) -> Kind:
        """The needs of one task in the units of the policy; `gpu_milli` is what it takes of each GPU."""
        kind = self._kinds.get(needs)
        if kind is None:
            wanted = needs.models_wanted
            mask = (
                sum(1 << index for index, model in enumerate(self.models) if model in wanted) if wanted else ANY_MODEL
            )
            if needs.gpu_memory_gb_needed and needs.gpus:
                rows = np.flatnonzero(self.gpu_memory_gb >= needs.gpu_memory_gb_needed)
                mask &= sum(1 << index for index in set(self.arrays.model[rows].tolist()))
            gpu_milli = self._gpu_milli(needs, mask) if needs.gpus else 0
            kind = Kind(round(needs.cpus * 1000), round(needs.memory_gb * MIB_PER_GB), needs.gpus, gpu_milli, mask)
            if len(self._kinds) >= _KINDS_MAX:
                self._kinds.clear()
            self._kinds[needs] = kind
        return kind

    def _gpu_milli(self, needs: Resources, models: int) -> int:
        """A share with memory is as large as on the smallest GPU that will do: on larger ones it is given more than it
        asks for, never less."""
        suits = (np.int64(1) << self.arrays.model) & np.int64(models) != 0
        # Without any such GPU the size does not matter.
        return needs.gpu_milli_of(int(self.gpu_memory_gb[suits].min())) if suits.any() else needs.gpu_milli

    @staticmethod
    def storage_mib_of(needs: Resources) -> int:
        """What one task takes of the scratch space of its node."""
        return round(needs.storage_gb * MIB_PER_GB)

    def has_storage(self, needs: Resources) -> Bools:
        """Nodes with scratch space for one more task."""
        enough: Bools = self.storage_mib_free >= self.storage_mib_of(needs)
        return enough

    def suits(self, needs: Resources) -> Bools:
        """Nodes whose GPUs are of a wanted model with enough memory; all nodes for tasks without GPUs."""
        kind = self.kind(needs)
        if not kind.gpus:
            return np.ones(self.arrays.size, np.bool_)
        named: Bools = (np.int64(1) << self.arrays.model) & np.int64(kind.models) != 0
        return named

    def watts(self, needs: Resources) -> Floats:
        """What the GPUs of one task draw at most, per node."""
        return self.gpu_power_w.astype(np.float64) * (self.kind(needs).gpu_milli_total / GPU_MILLI)

    def slots(self, needs: Resources, *, exclusive: bool = False) -> Ints:
        """How many tasks each node takes now. Power and cooling are shared by nodes: each is judged as if alone."""
        arrays, kind = self.arrays, self.kind(needs)
        usable = self.suits(needs) & arrays.available & ~self.exclusive_on
        if exclusive:
            usable &= self.tasks_on == 0
        slots = self._slots(kind, arrays.cpu_milli_free, arrays.memory_mib_free)
        if needs.storage_gb:
            slots = np.minimum(slots, self.storage_mib_free // max(self.storage_mib_of(needs), 1))
        if kind.gpus:
            slots = np.minimum(slots, gpu_slots(kind, arrays.gpu_milli_free))
            watts = np.maximum(self.watts(needs), 1.0)
            slots = np.minimum(slots, np.floor_divide(self.watts_free(), watts).astype(np.int64))
        return np.where(usable, np.maximum(slots, 0), 0)

    def slots_when_empty(self, needs: Resources) -> Ints:
        """How many tasks each node would take if nothing ran and everything was whole."""
        arrays, kind = self.arrays, self.kind(needs)
        slots = self._slots(kind, arrays.cpu_milli, arrays.memory_mib)
        if needs.storage_gb:
            slots = np.minimum(slots, self.storage_mib // max(self.storage_mib_of(needs), 1))
        if kind.gpus:
            whole = (
                arrays.gpus * (GPU_MILLI // kind.gpu_milli) if kind.gpu_milli < GPU_MILLI else arrays.gpus // kind.gpus
            )
            slots = np.minimum(slots, whole)
        return np.where(self.suits(needs), slots, 0)

    def _power_can_bind(self) -> bool:
        """False: every feed and every cooling plant carries all that is on it at full load."""
        zone_w = np.bincount(self.rack_zone, self._rack_w_max, len(self.zone_heat_w_max))
        return bool((self._rack_w_max > self._rack_power_w).any() or (zone_w > self.zone_heat_w_max).any())

    def watts_free(self) -> Floats:
        """Per node: what its rack's feed and its zone's cooling still carry."""
        zone = (self.zone_heat_w_max - self.zone_heat_w)[self.rack_zone]
        return np.minimum(self.rack_power_w_free, zone)[self.rack]

    @staticmethod
    def _slots(kind: Kind, cpu_milli: Ints, memory_mib: Ints) -> Ints:
        return np.minimum(cpu_milli // max(kind.cpu_milli, 1), memory_mib // max(kind.memory_mib, 1))

    # Changing

    def take(self, needs: Resources, slot: TaskSlot, *, exclusive: bool = False) -> None:
        """Books one task. Raises if anything of it is already given: never repaired in silence."""
        kind, arrays, row = self.kind(needs), self.arrays, slot.row
        free, healthy, milli = arrays.gpu_milli_free, self.healthy, kind.gpu_milli
        unfit = [device for device in slot.devices if free[row, device] < milli or not healthy[row, device]]
        if unfit or len(slot.devices) != kind.gpus:
            raise InvariantBroken("a GPU is given once", self.hub.nodes[row].id, slot.devices)
        if arrays.cpu_milli_free[row] < kind.cpu_milli or arrays.memory_mib_free[row] < kind.memory_mib:
            raise InvariantBroken("capacity is never exceeded", self.hub.nodes[row].id)
        storage_mib = self.storage_mib_of(needs)
        if storage_mib > self.storage_mib_free[row]:
            raise InvariantBroken("storage is never exceeded", self.hub.nodes[row].id)
        self._move(kind, slot, -1, storage_mib)
        if exclusive:
            self.exclusive_on[row] = True

    def give_back(self, needs: Resources, slot: TaskSlot, *, exclusive: bool = False) -> None:
        """Undoes `take`, exactly once."""
        kind, arrays, row = self.kind(needs), self.arrays, slot.row
        free, withheld = arrays.gpu_milli_free, self.withheld_milli
        most = GPU_MILLI - kind.gpu_milli
        over = [device for device in slot.devices if free[row, device] + withheld[row, device] > most]
        if over or self.tasks_on[row] < 1 or arrays.cpu_milli_free[row] + kind.cpu_milli > arrays.cpu_milli[row]:
            raise InvariantBroken("a GPU is freed once", self.hub.nodes[row].id, slot.devices)
        self._move(kind, slot, 1, self.storage_mib_of(needs))
        for device in slot.devices:
            self._withhold(row, device)
        if exclusive and self.tasks_on[row] == 0:
            self.exclusive_on[row] = False

    def _move(self, kind: Kind, slot: TaskSlot, sign: int, storage_mib: int) -> None:
        arrays, row = self.arrays, slot.row
        free = arrays.gpu_milli_free
        for device in slot.devices:
            free[row, device] += sign * kind.gpu_milli
        gpu_milli = kind.gpus * kind.gpu_milli
        arrays.cpu_milli_free[row] += sign * kind.cpu_milli
        arrays.memory_mib_free[row] += sign * kind.memory_mib
        self.storage_mib_free[row] += sign * storage_mib
        self.tasks_on[row] -= sign
        if gpu_milli:
            arrays.gpu_milli_free_sum[row] += sign * gpu_milli
            watts = sign * float(self.gpu_power_w[row]) * gpu_milli / GPU_MILLI
            rack = self.rack[row]
            self.rack_power_w_free[rack] += watts
            self.zone_heat_w[self.rack_zone[rack]] -= watts

    def serve(self, node_ids: Iterable[str], served: bool) -> None:
        for node_id in node_ids:
            self.served[self.row_of[node_id]] = served
        self._refresh_available()

    def cordon(self, node_id: str, cordoned: bool) -> None:
        self.cordoned[self.row_of[node_id]] = cordoned
        self._refresh_available()

    def set_health(self, node_id: str, device: int, healthy: bool) -> None:
        """A GPU that is not healthy keeps its work and receives none."""
        row = self.row_of[node_id]
        self.healthy[row, device] = healthy
        if healthy:
            back = self.withheld_milli[row, device]
            self.withheld_milli[row, device] = 0
            self.arrays.gpu_milli_free[row, device] += back
            self.arrays.gpu_milli_free_sum[row] += back
        else:
            self._withhold(row, device)

    def _withhold(self, row: int, device: int) -> None:
        if not self.healthy[row, device]:
            free = self.arrays.gpu_milli_free[row, device]
            self.withheld_milli[row, device] += free
            self.arrays.gpu_milli_free_sum[row] -= free
            self.arrays.gpu_milli_free[row, device] = 0

    def set_cooling(self, zone: int, heat_kw_max: float) -> None:
        """What the plant removes now. Less than the current heat stops new work there; it evicts nothing."""
        self.zone_heat_w_max[zone] = heat_kw_max * 1000
        self.power_can_bind = self._power_can_bind()

    def _refresh_available(self) -> None:
        self.arrays.available[:] = self.served & ~self.cordoned


def neighbourhoods(node: Node) -> Neighbourhoods:
    return tuple([(gpu.island, gpu.pcie_switch, gpu.numa) for gpu in node.gpus])


def gpu_slots(kind: Kind, free_milli: Ints) -> Ints:
    """How many tasks find GPUs on each node, of the devices [node, device] with so much free."""
    shared = kind.gpu_milli < GPU_MILLI
    count: Ints = (free_milli // kind.gpu_milli if shared else free_milli == GPU_MILLI).sum(axis=1)
    return count if shared else count // kind.gpus
