"""Requests and rooms for the tests of `turns`, short to write."""

from __future__ import annotations

from harch.fleet.blueprint import FleetBlueprint, HubBlueprint, NodeKind, RackGroup, expand
from harch.fleet.model import CoolingZone, GpuModel
from harch.placement.queueing.running import RunningRequest
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level, Resources, SchedulingClass, Topology

INFERENCE, INTERACTIVE, TRAINING = SchedulingClass
_GPU = GpuModel("h100-80gb", 80, 700, 900, 128)
_NODE = NodeKind("h100-8", _GPU, 8, 4, 2, 2, 64, 512, 1000, 1000)


def room_of(
    racks: int = 2, nodes_per_rack: int = 2, *, power_kw_max: float = 100.0, heat_kw_max: float = 1000.0
) -> Room:
    """Nodes of 8 GPUs in two islands of 4; two racks make a row. All served, no process slots."""
    groups = tuple(
        RackGroup(1, chr(ord("A") + rack // 2), "hall", power_kw_max, ((_NODE, nodes_per_rack),))
        for rack in range(racks)
    )
    hub = HubBlueprint("Test", "MA", "MA", 0.0, 0.0, 1.2, (CoolingZone("hall", heat_kw_max),), groups)
    room = Room(expand(FleetBlueprint("test", (_GPU,), (_NODE,), (hub,), ())).hubs[0])
    room.serve(room.row_of, True)
    return room


def ask(
    key: str,
    turn_class: SchedulingClass = TRAINING,
    *,
    tenant: str = "t",
    priority: int = 1,
    gpus: int = 1,
    tasks: int = 1,
    required: Level = Level.HUB,
    duration_s_max: float | None = None,
    preemptible: bool = True,
    runs_process: bool = False,
    countries_allowed: tuple[str, ...] = (),
) -> PlacementRequest:
    return PlacementRequest(
        id=key,
        tenant=tenant,
        turn_class=turn_class,
        priority=priority,
        needs=Resources(gpus=gpus),
        tasks=tasks,
        topology=Topology(required=required),
        countries_allowed=countries_allowed,
        runs_process=runs_process,
        submitted_s=0.0,
        tasks_min=tasks,
        degrade_after_s=30.0,
        duration_s_max=duration_s_max,
        preemptible=preemptible,
    )


def start(room: Room, request: PlacementRequest, slots: tuple[TaskSlot, ...], started_s: float = 0.0) -> RunningRequest:
    """Books `request` on `slots`."""
    for slot in slots:
        room.take(request.needs, slot, exclusive=request.topology.exclusive)
    if request.runs_process:
        room.process_slots_free -= len(slots)
    return RunningRequest(request=request, slots=slots, started_s=started_s, stop_grace_s=10.0)


def stop(room: Room, running: RunningRequest) -> None:
    request = running.request
    for slot in running.slots:
        room.give_back(request.needs, slot, exclusive=request.topology.exclusive)
    if request.runs_process:
        room.process_slots_free += len(running.slots)


def whole_node(row: int) -> tuple[TaskSlot, ...]:
    return (TaskSlot(row, tuple(range(8))),)
