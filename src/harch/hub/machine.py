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
from harch.hub import asks, data_asks, hardware, reports
from harch.hub import happenings as h
from harch.hub.audit import drafts
from harch.hub.catalog import CatalogEntry
from harch.hub.desk import Desk
from harch.hub.moves import Moves
from harch.placement.plan import Assignment
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
    ) -> list[h.Effect]:
        """Takes over what the store holds: unfinished workloads, and those finished within the retry window."""
        desk = self.desk
        desk.begin(now)
        desk.registry.remember_keys(keys)
        desk.catalog.restore(data)
        for workload in sorted(workloads, key=lambda workload: workload.created_at):
            desk.registry.add(workload)
            if not workload.state.is_final:
                desk.guard.watch(workload)
            if workload.is_placed and not desk.has_hardware_of(workload):
                desk.requeue(workload, "the fleet file no longer has its nodes")
            elif workload.is_placed:
                desk.adopt(workload)
            elif workload.state is State.PENDING:
                desk.enqueue(workload)
        for condition in conditions:
            with contextlib.suppress(HarchError):  # the fleet file no longer has it
                hardware.apply(desk, condition)
        data_asks.sweep(desk)  # the fleet file may declare less than before
        return desk.finish()

    def handle(self, event: h.Event, *, now: datetime) -> list[h.Effect]:
        desk = self.desk
        desk.begin(now)
        match event:
            case h.Submitted():
                asks.submit(desk, event)
            case h.PlacementDue():
                self._place()
            case h.TaskStartSeen(key):
                reports.task_started(desk, key)
            case h.TaskEndSeen():
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
            case h.AgentLeft():
                reports.agent_left(desk, event)
            case h.HardwareChanged(kind, subject, value, why):
                condition = hardware.Condition(kind=hardware.ConditionKind(kind), subject=subject, value=value, why=why)
                hardware.set_condition(desk, condition)
            case h.NodeDrained(node_id, why):
                hardware.drain(desk, node_id, why)
            case h.DefragmentationAsked(workload_id):
                self.moves.carry_out(workload_id)
            case h.Noted(kind, subject, message):
                desk.note(kind, subject, message)
        return desk.finish()

    def _place(self) -> None:
        desk = self.desk
        for workload in desk.too_late():
            desk.scheduler.withdraw(workload.id)
            workload.error_message = f"did not start within {workload.spec.gang.start_within_s:g} s"
            desk.end(workload, State.FAILED, workload.error_message)
        plan = desk.scheduler.plan(now_s=desk.now_s, placed_max=PLACED_PER_ROUND_MAX)
        self.more_to_place = not plan.complete
        for assignment in plan.assignments:
            self._assign(assignment)
        for preemption in plan.preemptions:
            self._preempt(preemption)
        self.moves.carry_out_if_due(plan.reservations)

    def _assign(self, assignment: Assignment) -> None:
        desk = self.desk
        workload = desk.registry.workloads[assignment.request.id]
        workload.attempt += 1
        workload.placement = assignment.tasks
        workload.placement_why = assignment.why
        workload.placement_score = assignment.parts
        workload.predicted_slowdown = assignment.prediction.slowdown
        workload.ranks_running = frozenset()
        workload.task_ends = ()
        workload.error_message = ""
        if len(assignment.tasks) > 1:
            port = desk.agents.take_gang_port(assignment.tasks[0].node_id)
            if port is None:
                desk.move(workload, State.SCHEDULED, assignment.why)
                desk.requeue(workload, "every rendezvous port is in use; it waits until another gang has ended")
                return
            workload.master_addr, workload.master_port = port
        desk.move(workload, State.SCHEDULED, assignment.why)
        desk.audit(drafts.placed(workload, desk.hub.country, policy_version=desk.policy_version))
        for task in workload.placement:
            desk.start_task(workload, task)

    def _preempt(self, preemption: PreemptionPlan) -> None:
        """Stops the victims in an orderly way; each waits again once its last task has ended."""
        desk = self.desk
        for victim in preemption.victims:
            workload = desk.registry.workloads[victim.request.id]
            if workload.stop_reason or not workload.is_placed:
                continue
            why = f"preempted for {preemption.request.id} ({preemption.request.turn_class})"
            desk.stop_for_others(workload, why, kind="workload.preempted")
