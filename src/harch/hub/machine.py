"""What happens to the work of a hub? The job machine: events in, effects out; no clock, no disk, no network.

The driver (`hub.service`) writes the `Save` and `Record` effects of an event in one transaction and only then releases
its `Send` effects. So whatever an agent was ever told is on disk, and a crash between any two steps is harmless: on
restart the machine is rebuilt from disk, and every agent reports what it really runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from harch.fleet.model import Fleet, Hub
from harch.hub import asks, reports
from harch.hub import happenings as h
from harch.hub.desk import Desk
from harch.placement.planner import Assignment, plan_placements
from harch.workloads.lifecycle import State, Workload

PLACED_PER_ROUND_MAX = 256  # keeps one round in the low milliseconds; the driver asks for another


class JobMachine:
    """The only writer of workloads. `handle` either raises before anything changed, or returns all effects."""

    def __init__(self, fleet: Fleet, hub: Hub) -> None:
        self.desk = Desk(fleet, hub)
        self.more_to_place = False  # the last round reached its limit

    def restore(
        self, workloads: Iterable[Workload], keys: Iterable[h.IdempotencyEntry], *, now: datetime
    ) -> list[h.Effect]:
        """Takes over what the store holds: unfinished workloads, and those finished within the retry window."""
        desk = self.desk
        desk.begin(now)
        desk.registry.remember_keys(keys)
        for workload in sorted(workloads, key=lambda workload: workload.created_at):
            desk.registry.add(workload)
            if workload.is_placed and not desk.book.knows(workload):
                desk.requeue(workload, "the fleet file no longer has its nodes")
            elif workload.is_placed:
                desk.book.take(workload)
                if workload.master_port is not None:
                    desk.agents.gang_ports_used.add((workload.master_addr, workload.master_port))
            elif workload.state is State.PENDING:
                desk.queue.add(workload)
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
            case h.AgentJoined():
                reports.agent_joined(desk, event)
            case h.AgentLeft():
                reports.agent_left(desk, event)
            case h.Noted(kind, subject, message):
                desk.note(kind, subject, message)
        return desk.finish()

    def _place(self) -> None:
        desk = self.desk
        plan = plan_placements(
            desk.book.state, desk.hub.country, desk.queue.in_order(), placed_max=PLACED_PER_ROUND_MAX
        )
        self.more_to_place = not plan.complete
        for assignment in plan.assignments:
            self._assign(assignment)

    def _assign(self, assignment: Assignment) -> None:
        desk = self.desk
        workload = desk.registry.workloads[assignment.request.id]
        if workload.spec.tasks > 1:
            port = desk.agents.take_gang_port(assignment.tasks[0].node_id)
            if port is None:
                return  # every rendezvous port is in use: it waits until another gang has ended
            workload.master_addr, workload.master_port = port
        desk.queue.remove(workload.id)
        workload.attempt += 1
        workload.placement = assignment.tasks
        workload.placement_why = assignment.why
        workload.ranks_running = frozenset()
        workload.task_ends = ()
        workload.error_message = ""
        desk.book.take(workload)
        desk.move(workload, State.SCHEDULED, assignment.why)
        for task in workload.placement:
            desk.start_task(workload, task)
