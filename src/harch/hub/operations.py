"""What may an operator do to a hub, its hardware, and what runs on it? Look, cordon, drain, retire, defragment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from harch.hub import happenings as h
from harch.hub.closing import HubClosure, check_change, remaining
from harch.hub.desk import Closed, Desk
from harch.hub.driver import Driver
from harch.hub.federation.service import HubFederation
from harch.hub.hardware import Condition, ConditionKind, missing
from harch.hub.hardware_views import NodeState, RackState, ZoneState, node_states, rack_states, zone_states
from harch.hub.store.database import Database
from harch.placement.defragmentation import DefragmentationPlan, Move
from harch.placement.topology_view import TopologyView, topology_view
from harch.workloads.lifecycle import Workload

T = TypeVar("T", NodeState, RackState, ZoneState)


class MoveView(Struct, frozen=True, kw_only=True):
    """One workload that would leave its nodes. `to_nodes` is where it fits as things stand, not a promise."""

    workload_id: str
    name: str
    tenant: str
    gpus: float
    from_nodes: tuple[str, ...]
    to_nodes: tuple[str, ...]
    lost_gpu_s: float


class Defragmentation(Struct, frozen=True, kw_only=True):
    """Which moves make room for a waiting workload. `lost_gpu_s` is work that is done again, since each restarts."""

    workload_id: str
    possible: bool
    sentence: str
    applied: bool = False
    pays: bool = False  # more GPU-seconds start now than are done again
    level: str = ""
    nodes: tuple[str, ...] = ()  # where it would start
    lost_gpu_s: float = 0.0
    moves: tuple[MoveView, ...] = ()


class HubOperations:
    """Behind the API; everything that changes goes through the driver, so it is on disk before anybody hears of it."""

    def __init__(
        self,
        driver: Driver,
        database: Database,
        find: Callable[[str], Awaitable[Workload]],
        federation: HubFederation,
    ) -> None:
        self._driver, self._database, self._find, self._federation = driver, database, find, federation

    # Looking

    async def nodes(self) -> list[NodeState]:
        return node_states(self._desk, await self._conditions())

    async def racks(self) -> list[RackState]:
        return rack_states(self._desk, await self._conditions())

    async def zones(self) -> list[ZoneState]:
        return zone_states(self._desk, await self._conditions())

    def topology(self) -> TopologyView:
        return topology_view(self._desk.scheduler.topology)

    async def closure(self) -> HubClosure:
        left = remaining(self._desk)
        why = next((one.why for one in await self._conditions() if one.kind is ConditionKind.CLOSED), "")
        return HubClosure(
            hub_id=self._desk.hub.id,
            state=self._desk.closed.name.lower(),
            why=why,
            remaining=left,
            remaining_total=left.total,
        )

    # Changing

    async def close_hub(self, closed: Closed, *, why: str) -> HubClosure:
        """Cordons, drains, retires or opens the hub itself. Raises E0304 for a change that cannot be made."""
        check_change(self._desk, closed)
        if closed is Closed.RETIRED:
            self._federation.check_may_leave()
            self._federation.note_retired()
        await self._driver.handle(h.HubClosed(closed, why))
        self._driver.plan_placement()
        return await self.closure()

    async def change_node(
        self, node_id: str, *, cordoned: bool | None, nvlink: tuple[float | None] | None, why: str
    ) -> NodeState:
        """None leaves it as it is; `nvlink` (None,) is as in the fleet file again."""
        if nvlink is not None:  # first, because a factor may be refused: then nothing has changed
            await self._set(ConditionKind.NVLINK, node_id, nvlink[0], why)
        if cordoned is not None:
            await self._set(ConditionKind.CORDONED, node_id, 1.0 if cordoned else None, why)
        return _found(await self.nodes(), node_id, "node")

    async def drain_node(self, node_id: str, *, why: str) -> NodeState:
        await self._driver.handle(h.NodeDrained(node_id, why))
        self._driver.plan_placement()
        return _found(await self.nodes(), node_id, "node")

    async def change_gpu(self, gpu_id: str, *, healthy: bool, why: str) -> None:
        await self._set(ConditionKind.UNHEALTHY, gpu_id, None if healthy else 1.0, why)

    async def change_zone(self, zone_id: str, *, heat_kw_max: float | None, why: str) -> ZoneState:
        await self._set(ConditionKind.COOLING_KW, zone_id, heat_kw_max, why)
        return _found(await self.zones(), zone_id, "cooling zone")

    async def change_rack(self, rack_id: str, *, uplink_factor: float | None, why: str) -> RackState:
        await self._set(ConditionKind.UPLINK, rack_id, uplink_factor, why)
        return _found(await self.racks(), rack_id, "rack")

    async def defragment(self, ref: str, *, apply: bool) -> Defragmentation:
        workload = await self._find(ref)
        if not apply:
            return self._shown(workload.id, self._driver.machine.moves.plan(workload.id), applied=False)
        stored = self._driver.handle(h.DefragmentationAsked(workload.id))
        clearing = self._desk.scheduler.clearing  # now: it may have started by the time that the disk is written
        shown = self._shown(workload.id, None if clearing is None else clearing.plan, applied=True)
        await stored
        self._driver.plan_placement()
        return shown

    async def _set(self, kind: ConditionKind, subject: str, value: float | None, why: str) -> None:
        await self._driver.handle(h.HardwareChanged(kind, subject, value, why))
        self._driver.plan_placement()

    def _shown(self, workload_id: str, plan: DefragmentationPlan | None, *, applied: bool) -> Defragmentation:
        if plan is None:
            sentence = "it fits already, or no moves within the limit would make room for it"
            return Defragmentation(workload_id=workload_id, possible=False, sentence=sentence)
        return Defragmentation(
            workload_id=workload_id,
            possible=True,
            sentence=plan.describe(),
            applied=applied,
            pays=plan.pays,
            level=plan.level.value,
            nodes=self._names({slot.row for slot in plan.slots}),
            lost_gpu_s=round(plan.lost_gpu_s, 1),
            moves=tuple(self._move(move) for move in plan.moves),
        )

    def _move(self, move: Move) -> MoveView:
        request = move.running.request
        workload = self._desk.registry.workloads[request.id]
        each_milli = self._desk.scheduler.room.kind(request.needs).gpu_milli_total
        return MoveView(
            workload_id=request.id,
            name=workload.spec.name,
            tenant=workload.tenant,
            gpus=len(move.running.slots) * each_milli / 1000,
            from_nodes=self._names({slot.row for slot in move.running.slots}),
            to_nodes=self._names({slot.row for slot in move.to}),
            lost_gpu_s=round(move.lost_gpu_s, 1),
        )

    def _names(self, rows: set[int]) -> tuple[str, ...]:
        return tuple(self._desk.hub.nodes[row].id for row in sorted(rows))

    async def _conditions(self) -> list[Condition]:
        return await asyncio.to_thread(self._database.conditions)

    @property
    def _desk(self) -> Desk:
        return self._driver.machine.desk


def _found(states: list[T], wanted: str, noun: str) -> T:
    for state in states:
        if state.id == wanted:
            return state
    raise missing(noun, wanted)
