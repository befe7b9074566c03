"""How does placed work get going? Its tasks to their agents, under the lease of its owner if it is a guest."""

from __future__ import annotations

from collections import defaultdict

from harch.execution.protocol import ExtendLease, TaskKey
from harch.hub import happenings as h
from harch.hub.audit import drafts
from harch.hub.desk import Desk
from harch.placement.plan import Assignment
from harch.workloads.lifecycle import State, Workload


def assign(desk: Desk, assignment: Assignment) -> None:
    """GPUs are booked for it: every own start is a new attempt, and a new epoch if it was ever lent."""
    workload = desk.registry.workloads[assignment.request.id]
    if not workload.guest:
        workload.attempt += 1
        workload.epoch += workload.epoch > 0  # what a peer says of an earlier one is void from now on
        workload.runner_hub, workload.runner_placement = "", ()
    desk.carbon.forget(workload.id)
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


def lengthen_leases(desk: Desk, workload: Workload) -> None:
    """Tells the agents of a guest that it may run longer."""
    by_agent: dict[str, list[tuple[TaskKey, float]]] = defaultdict(list)
    for task in workload.placement if workload.is_placed else ():
        agent_id = desk.agents.agent_of_node.get(task.node_id)
        until_s = desk.lease_until_s(workload, task)
        if agent_id is not None and until_s is not None and task.rank not in workload.ranks_ended:
            by_agent[agent_id].append((TaskKey(workload.id, workload.attempt, task.rank), until_s))
    for agent_id, leases in by_agent.items():
        desk.emit(h.Send(agent_id, ExtendLease(tuple(leases))))
