"""What may an operator do to a hub, its hardware, and what runs on it? Look, cordon, drain, retire, defragment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from harch.hub.federation.service import HubFederation
from harch.hub.jobs import events as ev
from harch.hub.jobs.hardware import missing
from harch.hub.jobs.placement import plan_defragmentation
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.jobs.state import Closed, JobState
from harch.hub.store.database import Database
from harch.hub.store.records import Condition, ConditionKind
from harch.hub.summary import check_change, node_states, rack_states, remaining, zone_states
from harch.placement.defragmentation import DefragmentationPlan, Move
from harch.placement.topology import topology_view
from harch.wire.hardware import Defragmentation, MoveView, NodeState, RackState, TopologyView, ZoneState
from harch.wire.hubs import HubClosure
from harch.workloads.lifecycle import Workload

T = TypeVar("T", NodeState, RackState, ZoneState)


class HubOperations:
    """Behind the API; all changes go through the job runtime, so they are on disk before anybody hears of them."""

    def __init__(
        self,
        jobs: JobRuntime,
        database: Database,
        find: Callable[[str], Awaitable[Workload]],
        federation: HubFederation,
    ) -> None:
        self._jobs, self._database, self._find, self._federation = jobs, database, find, federation

    # Looking

    async def nodes(self) -> list[NodeState]:
        return node_states(self._state, await self._conditions())

    async def racks(self) -> list[RackState]:
        return rack_states(self._state, await self._conditions())

    async def zones(self) -> list[ZoneState]:
        return zone_states(self._state, await self._conditions())

    def topology(self) -> TopologyView:
        return topology_view(self._state.scheduler.topology)

    async def closure(self) -> HubClosure:
        left = remaining(self._state)
        why = next((one.why for one in await self._conditions() if one.kind is ConditionKind.CLOSED), "")
        return HubClosure(
            hub_id=self._state.hub.id,
            state=self._state.closed.name.lower(),
            why=why,
            remaining=left,
            remaining_total=left.total,
        )

    # Changing

    async def close_hub(self, closed: Closed, *, why: str) -> HubClosure:
        """Cordons, drains, retires or opens the hub itself. Raises E0304 for a change that cannot be made."""
        check_change(self._state, closed)
        if closed is Closed.RETIRED:
            self._federation.check_may_leave()
            self._federation.note_retired()
        await self._jobs.handle(ev.HubClosed(closed, why))
        self._jobs.plan_placement()
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
        await self._jobs.handle(ev.NodeDrained(node_id, why))
        self._jobs.plan_placement()
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
            return self._view(
                workload.id,
                plan_defragmentation(self._state, workload.id, now_s=self._jobs.context().now_s),
                applied=False,
            )
        stored = self._jobs.handle(ev.DefragmentationRequested(workload.id))
        clearing = self._state.scheduler.clearing  # now: it may have started by the time that the disk is written
        view = self._view(workload.id, None if clearing is None else clearing.plan, applied=True)
        await stored
        self._jobs.plan_placement()
        return view

    async def _set(self, kind: ConditionKind, subject: str, value: float | None, why: str) -> None:
        await self._jobs.handle(ev.HardwareChanged(kind, subject, value, why))
        self._jobs.plan_placement()

    def _view(self, workload_id: str, plan: DefragmentationPlan | None, *, applied: bool) -> Defragmentation:
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
        workload = self._state.registry.workloads[request.id]
        each_milli = self._state.scheduler.room.kind(request.needs).gpu_milli_total
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
        return tuple(self._state.hub.nodes[row].id for row in sorted(rows))

    async def _conditions(self) -> list[Condition]:
        return await asyncio.to_thread(self._database.conditions)

    @property
    def _state(self) -> JobState:
        return self._jobs.machine.state


def _found(states: list[T], wanted: str, noun: str) -> T:
    for state in states:
        if state.id == wanted:
            return state
    raise missing(noun, wanted)
