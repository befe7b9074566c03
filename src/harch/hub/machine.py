"""What happens to the work of a hub? The job machine: events in, effects out; no clock, no disk, no network.

The driver writes the `Save`, `Record` and `Audit` effects of an event in one transaction and only then releases
its `Send` effects. So whatever an agent was ever told is on disk, and a crash between any two steps is harmless: on
restart the machine is rebuilt from disk, and every agent reports what it really runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import datetime

from harch.base.errors import HarchError
from harch.fleet.model import Fleet, Hub
from harch.hub import asks, data_asks, hardware, reports, starts
from harch.hub import happenings as h
from harch.hub.catalog import CatalogEntry
from harch.hub.desk import Closed, Desk
from harch.hub.moves import Moves
from harch.hub.routing import carrying_out, wishing
from harch.hub.spill import dealings, guests
from harch.placement.turns.preemption import PreemptionPlan
from harch.placement.turns.settings import TurnSettings
from harch.sovereignty.compiled import Rules
from harch.workloads.lifecycle import State, Workload

PLACED_PER_ROUND_MAX = 256  # keeps one round in the low milliseconds; the driver asks for another


class JobMachine:
    """The only writer of workloads. `handle` either raises before anything changed, or returns all effects."""

    def __init__(
        self, fleet: Fleet, hub: Hub, settings: TurnSettings | None = None, rules: Rules | None = None
    ) -> None:
        self.desk = Desk(fleet, hub, settings, rules)
        self.moves = Moves(self.desk)
        self.more_to_place = False  # the last round reached its limit

    def restore(
        self,
        workloads: Iterable[Workload],
        keys: Iterable[h.IdempotencyEntry],
        conditions: Iterable[hardware.Condition] = (),
        data: Iterable[CatalogEntry] = (),
        *,
        now: datetime,
        boot_s: float = 0.0,
        lifetime: str = "",
    ) -> list[h.Effect]:
        """Takes over what the store holds: unfinished workloads, and those finished within the retry window.

        `lifetime` is a name that no earlier run of this hub had.
        """
        desk = self.desk
        desk.begin(now, boot_s)
        desk.spill.lifetime = lifetime
        desk.registry.remember_keys(keys)
        desk.catalog.restore(data)
        for workload in sorted(workloads, key=lambda workload: workload.created_at):
            desk.subject = workload.id
            if not workload.state.is_final:
                desk.guard.watch(workload)
            if workload.guest:
                dealings.restore_guest(desk, workload)
                continue
            desk.registry.add(workload)
            if workload.leased:
                dealings.restore_lent(desk, workload)
            elif workload.is_placed and not desk.has_hardware_of(workload):
                desk.requeue(workload, "the fleet file no longer has its nodes")
            elif workload.is_placed:
                desk.adopt(workload)
            elif workload.state is State.PENDING:
                choice = workload.carbon
                desk.enqueue(workload)
                if workload.carbon is not choice:  # its hour came while the hub was away
                    desk.changed(workload)
        desk.subject = ""
        for condition in conditions:
            with contextlib.suppress(HarchError):  # the fleet file no longer has it
                hardware.apply(desk, condition)
        data_asks.sweep(desk)  # the fleet file may declare less than before
        guests.flush_reports(desk)
        return desk.finish()

    def handle(self, event: h.Event, *, now: datetime, boot_s: float = 0.0) -> list[h.Effect]:
        desk = self.desk
        desk.begin(now, boot_s)
        match event:
            case h.Submitted():
                asks.submit(desk, event)
            case h.PlacementDue():
                self._place()
            case h.TaskStartSeen(key, agent_id):
                if not reports.is_of_another(desk, key, agent_id):
                    reports.task_started(desk, key)
            case h.TaskEndSeen(agent_id, end):
                if not reports.is_of_another(desk, end.key, agent_id):
                    reports.task_ended(desk, event)
            case h.StopAsked():
                asks.stop(desk, event)
            case h.PauseAsked(workload_id):
                asks.pause(desk, desk.unfinished(workload_id))
            case h.ResumeAsked(workload_id):
                asks.resume(desk, desk.unfinished(workload_id))
            case h.SpecReplaced():
                asks.replace_spec(desk, event)
            case h.Relabelled():
                asks.relabel(desk, event)
            case h.DataAdded():
                data_asks.add(desk, event)
            case h.DataRetagged():
                data_asks.retag(desk, event)
            case h.TagsDue():
                data_asks.sweep(desk)
            case h.AgentJoined():
                reports.agent_joined(desk, event)
            case h.AgentBarred():
                reports.agent_barred(desk, event)
            case h.AgentLeft():
                reports.agent_left(desk, event)
            case h.SpillDue():
                dealings.look_around(desk)
            case h.PeerSaid(hub_id, message):
                dealings.listen(desk, hub_id, message)
            case h.PeersSeen(peers):
                desk.spill.peers = {peer.hub_id: peer for peer in peers}
            case h.PeerBack(hub_id):
                dealings.say_again(desk, hub_id)
            case h.CarbonWished():
                wishing.wish(desk, event)
            case h.CarbonPlanned(plan):
                carrying_out.plan_came(desk, plan)
            case h.CarbonDue():
                carrying_out.time_passed(desk)
            case h.HardwareChanged(kind, subject, value, why):
                condition = hardware.Condition(kind=hardware.ConditionKind(kind), subject=subject, value=value, why=why)
                hardware.set_condition(desk, condition)
            case h.NodeDrained(node_id, why):
                hardware.drain(desk, node_id, why)
            case h.HubClosed(closed, why):
                hardware.close_hub(desk, Closed(closed), why)
            case h.DefragmentationAsked(workload_id):
                self.moves.carry_out(workload_id)
            case h.Noted(kind, subject, message):
                desk.note(kind, subject, message)
            case h.FaultSeen():
                self._fault_seen(event)
        guests.flush_reports(desk)
        return desk.finish()

    def _place(self) -> None:
        desk = self.desk
        for workload in desk.too_late():
            desk.subject = workload.id
            desk.scheduler.withdraw(workload.id)
            workload.error_message = f"did not start within {workload.spec.gang.start_within_s:g} s"
            desk.end(workload, State.FAILED, workload.error_message)
        if desk.closed:
            self.more_to_place = False
            return
        desk.take_up_again()
        desk.subject = ""  # from here on the scheduler knows
        plan = desk.scheduler.plan(now_s=desk.now_s, placed_max=PLACED_PER_ROUND_MAX)
        self.more_to_place = not plan.complete
        for assignment in plan.assignments:
            desk.subject = assignment.request.id
            starts.assign(desk, assignment)
        for preemption in plan.preemptions:
            desk.subject = preemption.request.id
            self._preempt(preemption)
        self.moves.carry_out_if_due(plan.reservations)

    def _fault_seen(self, event: h.FaultSeen) -> None:
        """Said in the history, once the machine is sound again."""
        desk = self.desk
        desk.note("hub.fault", desk.hub.id, f"failed at `{event.what}` ({event.error}): undone, and restored from disk")
        workload = desk.registry.workloads.get(event.workload_id)
        fault = desk.faults.held(event.workload_id, desk.boot_s)
        if workload is not None and fault is not None and not workload.state.is_final:
            wait_s = fault.until_s - desk.boot_s
            desk.changed(
                workload,
                "workload.held_back",
                f"`{event.what}` failed on it ({event.error}): it waits aside, and is tried again in {wait_s:.0f} s",
            )

    def is_spill_due(self, boot_s: float) -> bool:
        """Whether `SpillDue` would find anything to do."""
        return dealings.is_due(self.desk, boot_s)

    def is_carbon_due(self, now: datetime, boot_s: float) -> bool:
        """Whether `CarbonDue` would find anything to do."""
        return self.desk.carbon.is_due(now.timestamp(), boot_s)

    def heard_clock(self, agent_id: str, agent_boot_s: float, *, boot_s: float) -> None:
        """A reading of an agent's clock has come; leases of its tasks are counted from it."""
        agent = self.desk.agents.agents.get(agent_id)
        if agent is not None:
            agent.clock = (agent_boot_s, boot_s)

    def _preempt(self, preemption: PreemptionPlan) -> None:
        """Stops the victims in an orderly way; each waits again once its last task has ended."""
        desk = self.desk
        for victim in preemption.victims:
            workload = desk.registry.workloads[victim.request.id]
            if workload.stop_reason or not workload.is_placed:
                continue
            why = f"preempted for {preemption.request.id} ({preemption.request.turn_class})"
            desk.stop_for_others(workload, why, kind="workload.preempted")
