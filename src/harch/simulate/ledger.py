"""Did anything happen that must never happen? A second book, kept apart from the scheduler's own.

It trusts nobody: every start is checked again against the fleet as described and against what this book says is held.
A violation is counted, never repaired; a correct scheduler leaves all counts at 0.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from harch.fleet.model import Hub
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.request import PlacementRequest
from harch.placement.room import TaskSlot
from harch.workloads.spec import Level

RULES = (
    "residency",
    "gpu_twice",
    "gpu_memory",
    "capacity",
    "gpu_model",
    "gang_whole",
    "topology",
    "power",
    "started_twice",
)
_ROUNDING = 1e-6


@dataclass
class ReplayLedger:
    """The book of one hub."""

    hub: Hub
    violations: Counter[str] = field(default_factory=Counter)
    _gpu_milli: dict[tuple[int, int], int] = field(default_factory=dict)
    _gpu_memory_gb: defaultdict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    _cpus: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _memory_gb: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _rack_w: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _zone_w: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _held: dict[str, tuple[PlacementRequest, tuple[TaskSlot, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._racks = {rack.id: rack for rack in self.hub.racks}
        self._zone_w_max = {zone.id: zone.heat_kw_max * 1000 for zone in self.hub.cooling_zones}
        for rack in self.hub.racks:
            host_w = sum(node.host_power_w for node in rack.nodes)
            self._rack_w[rack.id] += host_w
            self._zone_w[rack.cooling_zone] += host_w

    def start(self, request: PlacementRequest, slots: tuple[TaskSlot, ...]) -> None:
        """Books a start, with every check that the rules of the house ask for."""
        if request.id in self._held:
            self.violations["started_twice"] += 1
            return
        self._held[request.id] = (request, slots)
        if request.countries_allowed and self.hub.country not in request.countries_allowed:
            self.violations["residency"] += 1
        if not request.tasks_min <= len(slots) <= request.tasks:
            self.violations["gang_whole"] += 1
        if not _stands_as_required(self.hub, request, slots):
            self.violations["topology"] += 1
        for slot in slots:
            self._start_task(request, slot)

    def end(self, request_id: str) -> None:
        request, slots = self._held.pop(request_id)
        for slot in slots:
            self._move(request, slot, -1)

    def _start_task(self, request: PlacementRequest, slot: TaskSlot) -> None:
        needs, node = request.needs, self.hub.nodes[slot.row]
        self._move(request, slot, 1)
        if len(slot.devices) != needs.gpus or len(set(slot.devices)) != needs.gpus:
            self.violations["gang_whole"] += 1
        if any(self._gpu_milli[slot.row, device] > GPU_MILLI for device in slot.devices):
            self.violations["gpu_twice"] += 1
        memory_gb = node.gpu_model.memory_gb
        if any(self._gpu_memory_gb[slot.row, device] > memory_gb + _ROUNDING for device in slot.devices):
            self.violations["gpu_memory"] += 1
        wanted = needs.models_wanted
        if needs.gpus and (
            (wanted and node.gpu_model.name not in wanted) or node.gpu_model.memory_gb < needs.gpu_memory_gb_min
        ):
            self.violations["gpu_model"] += 1
        if (
            self._cpus[slot.row] > node.cpus + _ROUNDING
            or self._memory_gb[slot.row] > node.memory_gb + _ROUNDING
            or any(device >= len(node.gpus) for device in slot.devices)
        ):
            self.violations["capacity"] += 1
        rack = self._racks[node.rack_id]
        if (
            self._rack_w[rack.id] > rack.power_kw_max * 1000 + _ROUNDING
            or self._zone_w[rack.cooling_zone] > self._zone_w_max[rack.cooling_zone] + _ROUNDING
        ):
            self.violations["power"] += 1

    def _move(self, request: PlacementRequest, slot: TaskSlot, sign: int) -> None:
        needs, node = request.needs, self.hub.nodes[slot.row]
        for device in slot.devices:
            key = (slot.row, device)
            self._gpu_milli[key] = self._gpu_milli.get(key, 0) + sign * needs.gpu_milli
            # By the memory of this very GPU: a share without a word about memory gets its fraction of it.
            fraction_gb = needs.gpu_milli / GPU_MILLI * node.gpu_model.memory_gb
            self._gpu_memory_gb[key] += sign * max(fraction_gb, needs.gpu_memory_gb or 0.0)
        self._cpus[slot.row] += sign * needs.cpus
        self._memory_gb[slot.row] += sign * needs.memory_gb
        watts = sign * node.gpu_model.power_w * len(slot.devices) * needs.gpu_milli / GPU_MILLI
        self._rack_w[node.rack_id] += watts
        self._zone_w[self._racks[node.rack_id].cooling_zone] += watts


def _stands_as_required(hub: Hub, request: PlacementRequest, slots: Sequence[TaskSlot]) -> bool:
    required = request.topology.required
    if required is Level.HUB:
        return True
    nodes = {slot.row for slot in slots}
    racks = {hub.nodes[row].rack_id for row in nodes}
    if required is Level.ROW:
        return len({rack.row for rack in hub.racks if rack.id in racks}) == 1
    if required is Level.RACK:
        return len(racks) == 1
    return len(nodes) == 1 and (required is Level.NODE or len(islands(hub, slots)) <= 1)


def islands(hub: Hub, slots: Sequence[TaskSlot]) -> set[tuple[int, int]]:
    """The NVLink islands that these slots touch, as (row of the node, island inside it)."""
    return {(slot.row, hub.nodes[slot.row].gpus[device].island) for slot in slots for device in slot.devices}
