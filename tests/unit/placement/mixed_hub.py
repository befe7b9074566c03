"""A small hub with something of everything: two rows, two cooling zones, three models, islands of several sizes."""

from __future__ import annotations

from harch.fleet.model import CoolingZone, Gpu, GpuModel, Hub, Node, Provenance, Rack
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.workloads.spec import Resources, Topology, WorkloadSpec

BIG = GpuModel("big", memory_gb=80, power_w=700, nvlink_gb_per_s=900, pcie_gb_per_s=128)
SMALL = GpuModel("small", memory_gb=40, power_w=300, nvlink_gb_per_s=600, pcie_gb_per_s=64)
CARD = GpuModel("card", memory_gb=24, power_w=250, nvlink_gb_per_s=0, pcie_gb_per_s=64)


def node(
    node_id: str, rack_id: str, model: GpuModel, gpus: int, island: int, *, cpus: int = 64, memory_gb: int = 256
) -> Node:
    """PCIe switches of two, NUMA domains of half the node; scratch space of 10 GB per GPU."""
    devices = tuple(
        Gpu(f"{node_id}-g{index}", index, model, index // island, index // 2, index * 2 // gpus)
        for index in range(gpus)
    )
    return Node(node_id, rack_id, devices, cpus, memory_gb, 10 * gpus, Provenance.MODELLED, 500)


def mixed_hub(*, rack_kw: tuple[float, float, float] = (20, 20, 20), zone_kw: tuple[float, float] = (40, 20)) -> Hub:
    """Rows 0 and 1: eight big GPUs in islands of four. 2 and 3: four small ones in islands of two. 4: two cards. 5:
    eight big ones in one island. Racks r0 (0, 1) and r1 (2, 3) are row a, r2 (4, 5) is row b; r1 has zone z1."""
    racks = (
        Rack("r0", "a", "z0", rack_kw[0], (node("n0", "r0", BIG, 8, 4), node("n1", "r0", BIG, 8, 4))),
        Rack("r1", "a", "z1", rack_kw[1], (node("n2", "r1", SMALL, 4, 2, cpus=16), node("n3", "r1", SMALL, 4, 2))),
        Rack("r2", "b", "z0", rack_kw[2], (node("n4", "r2", CARD, 2, 1, memory_gb=64), node("n5", "r2", BIG, 8, 8))),
    )
    zones = (CoolingZone("z0", zone_kw[0]), CoolingZone("z1", zone_kw[1]))
    return Hub("hub", "Hub", "MA", "MA", 0.0, 0.0, 1.2, zones, racks)


def mixed_room(**limits: tuple[float, ...]) -> Room:
    """All nodes served, 100 process slots."""
    room = Room(mixed_hub(**limits))  # type: ignore[arg-type]
    room.serve(room.row_of, True)
    room.process_slots_free = 100
    return room


def request_of(
    needs: Resources, tasks: int = 1, *, key: str = "w", submitted_s: float = 0.0, **fields: object
) -> PlacementRequest:
    """Fields of `Topology` are taken for it, all others for the specification."""
    topology = {name: fields.pop(name) for name in ("required", "preferred", "strategy", "exclusive") if name in fields}
    spec = WorkloadSpec(name=key, tasks=tasks, resources=needs, topology=Topology(**topology), **fields)  # type: ignore[arg-type]
    return PlacementRequest.of(key, spec, tenant="t", submitted_s=submitted_s)
