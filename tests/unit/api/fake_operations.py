"""Hardware in memory: two nodes in one rack, one cooling zone, and a defragmentation that always finds one move."""

from __future__ import annotations

from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.hub.jobs.hardware import missing
from harch.hub.jobs.state import Closed
from harch.placement.scheduler import Scheduler
from harch.placement.topology import topology_view
from harch.testing.samples import tiny_fleet
from harch.wire.hardware import Defragmentation, MoveView, NodeState, RackState, TopologyView, ZoneState
from harch.wire.hubs import HubClosure, Remaining


def _node(number: int) -> NodeState:
    return NodeState(
        id=f"dakhla-r1-n{number}",
        hub_id="dakhla",
        rack_id="dakhla-r1",
        row="A",
        cooling_zone="dakhla-hall-1",
        model="h100-80gb" if number == 1 else "a100-80gb",
        provenance="modelled",
        served=True,
        cordoned=False,
        available=True,
        gpus_total=8,
        gpus_free=7,
        gpus_unhealthy=0,
        gpus_held=1,
        cpus_total=112,
        cpus_free=111,
        memory_gb_total=2048,
        memory_gb_free=2047,
        tasks=1,
        nvlink_factor=1,
        rack_power_kw_free=5.5,
        zone_cooling_kw_free=20,
    )


class FakeOperations:
    def __init__(self) -> None:
        self.by_id = {node.id: node for node in (_node(1), _node(2))}
        self.zone = ZoneState(
            id="dakhla-hall-1",
            hub_id="dakhla",
            heat_kw_built=60,
            heat_kw_max=60,
            heat_kw=40,
            cooling_kw_free=20,
            racks=("dakhla-r1",),
        )
        self.rack = RackState(
            id="dakhla-r1",
            hub_id="dakhla",
            row="A",
            cooling_zone="dakhla-hall-1",
            power_kw_max=24,
            power_kw_free=5.5,
            uplink_factor=1,
            nodes=tuple(self.by_id),
        )
        self.said: list[str] = []
        self.closed, self.closed_why = Closed.OPEN, ""

    async def nodes(self) -> list[NodeState]:
        return list(self.by_id.values())

    async def racks(self) -> list[RackState]:
        return [self.rack]

    async def zones(self) -> list[ZoneState]:
        return [self.zone]

    def topology(self) -> TopologyView:
        return topology_view(Scheduler(tiny_fleet().hubs[0]).topology)

    async def change_node(
        self, node_id: str, *, cordoned: bool | None, nvlink: tuple[float | None] | None, why: str
    ) -> NodeState:
        node = self._node(node_id)
        self.said.append(why)
        if cordoned is not None:
            node = replace(node, cordoned=cordoned, available=not cordoned)
        if nvlink is not None:
            node = replace(node, nvlink_factor=1.0 if nvlink[0] is None else nvlink[0])
        self.by_id[node_id] = node
        return node

    async def drain_node(self, node_id: str, *, why: str) -> NodeState:
        return await self.change_node(node_id, cordoned=True, nvlink=None, why=why)

    async def change_gpu(self, gpu_id: str, *, healthy: bool, why: str) -> None:
        if not gpu_id.startswith("dakhla-r1-n1-g"):
            raise missing("GPU", gpu_id)
        self.said.append(f"{'healthy' if healthy else 'unhealthy'}: {why}")

    async def change_zone(self, zone_id: str, *, heat_kw_max: float | None, why: str) -> ZoneState:
        if zone_id != self.zone.id:
            raise missing("cooling zone", zone_id)
        self.zone = replace(self.zone, heat_kw_max=60.0 if heat_kw_max is None else heat_kw_max, why=why)
        return self.zone

    async def change_rack(self, rack_id: str, *, uplink_factor: float | None, why: str) -> RackState:
        if rack_id != self.rack.id:
            raise missing("rack", rack_id)
        self.rack = replace(self.rack, uplink_factor=1.0 if uplink_factor is None else uplink_factor, why=why)
        return self.rack

    async def closure(self) -> HubClosure:
        left = Remaining(running=2, waiting=1, lent=0, borrowed=0)
        state = self.closed.name.lower()
        return HubClosure(hub_id="dakhla", state=state, why=self.closed_why, remaining=left, remaining_total=left.total)

    async def close_hub(self, closed: Closed, *, why: str) -> HubClosure:
        if closed is Closed.RETIRED:
            raise HarchError("E0304", "Dakhla cannot retire: work left: 2 running, 1 waiting")
        self.closed, self.closed_why = closed, why
        return await self.closure()

    async def defragment(self, ref: str, *, apply: bool) -> Defragmentation:
        if ref != "large":
            raise HarchError("E0301", f"no workload is called `{ref}`")
        move = MoveView(
            workload_id="wl_1",
            name="small",
            tenant="acme",
            gpus=1,
            from_nodes=("dakhla-r1-n1",),
            to_nodes=("dakhla-r1-n2",),
            lost_gpu_s=30,
        )
        return Defragmentation(
            workload_id="wl_2",
            possible=True,
            sentence="moving 1 frees one node",
            applied=apply,
            pays=True,
            level="node",
            nodes=("dakhla-r1-n1",),
            lost_gpu_s=30,
            moves=(move,),
        )

    def _node(self, node_id: str) -> NodeState:
        if node_id not in self.by_id:
            raise missing("node", node_id)
        return self.by_id[node_id]
