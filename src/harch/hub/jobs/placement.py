"""Who starts now, and who moves for it? Rounds of placement, starts, preemption and defragmentation.

Tasks go to their agents under the lease of their owner if they are another hub's.
"""

# harch: pure

from __future__ import annotations

from collections import defaultdict

from harch.base.errors import HarchError
from harch.execution.protocol import ExtendLease, TaskKey
from harch.hub.audit import drafts
from harch.hub.jobs import effects as fx
from harch.hub.jobs.state import JobState, wrong_state
from harch.hub.jobs.transaction import Transaction
from harch.placement.defragmentation import DefragmentationPlan
from harch.placement.plan import GpuAssignment
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.queueing.preemption import PreemptionPlan
from harch.placement.queueing.reservations import Reservation
from harch.workloads.lifecycle import State, Workload

DEFRAGMENT_EVERY_S = 30.0  # a plan costs milliseconds, and mostly nothing has changed since the last one


def assign(tx: Transaction, assignment: GpuAssignment) -> None:
    """GPUs are booked for it: every own start is a new attempt, and a new epoch if it was ever lent."""
    workload = tx.state.registry.workloads[assignment.request.id]
    if not workload.borrowed:
        workload.attempt += 1
        workload.epoch += workload.epoch > 0  # what a peer says of an earlier one is void from now on
        workload.runner_hub, workload.runner_placement = "", ()
    tx.state.carbon.forget(workload.id)
    workload.placement = assignment.tasks
    workload.placement_why = assignment.why
    workload.placement_score = assignment.parts
    workload.predicted_slowdown = assignment.prediction.slowdown
    workload.ranks_running = frozenset()
    workload.task_ends = ()
    workload.artifacts = workload.artifacts_lost = ()
    workload.error_message = ""
    if len(assignment.tasks) > 1:
        port = tx.state.agents.take_gang_port(assignment.tasks[0].node_id)
        if port is None:
            tx.move(workload, State.SCHEDULED, assignment.why)
            tx.requeue(workload, "every rendezvous port is in use; it waits until another gang has ended")
            return
        workload.master_addr, workload.master_port = port
    tx.move(workload, State.SCHEDULED, assignment.why)
    tx.audit(drafts.placed(workload, tx.state.hub.country, policy_version=tx.policy_version))
    for task in workload.placement:
        tx.start_task(workload, task)


def lengthen_leases(tx: Transaction, workload: Workload) -> None:
    """Tells the agents of a guest that it may run longer."""
    by_agent: dict[str, list[tuple[TaskKey, float]]] = defaultdict(list)
    for task in workload.placement if workload.is_placed else ():
        agent_id = tx.state.agents.agent_of_node.get(task.node_id)
        until_s = tx.state.lease_until_s(workload, task)
        if agent_id is not None and until_s is not None and task.rank not in workload.ranks_ended:
            by_agent[agent_id].append((TaskKey(workload.id, workload.attempt, task.rank), until_s))
    for agent_id, leases in by_agent.items():
        tx.emit(fx.Send(agent_id, ExtendLease(tuple(leases))))


# Rounds


def place_round(tx: Transaction) -> None:
    """One round: who is too late ends, who was set aside comes back, then places are given, room is made."""
    state = tx.state
    for workload in tx.too_late():
        tx.subject = workload.id
        state.scheduler.withdraw(workload.id)
        workload.error_message = f"did not start within {workload.spec.gang.start_within_s:g} s"
        tx.end(workload, State.FAILED, workload.error_message)
    if state.closed:
        state.more_to_place = False
        return
    tx.take_up_again()
    tx.subject = ""  # from here on the scheduler knows
    plan = state.scheduler.plan(now_s=tx.now_s, placed_max=tx.context.limits.placed_per_round_max)
    state.more_to_place = not plan.complete
    for assignment in plan.assignments:
        tx.subject = assignment.request.id
        assign(tx, assignment)
    for preemption in plan.preemptions:
        tx.subject = preemption.request.id
        _preempt(tx, preemption)
    defragment_if_due(tx, plan.reservations)


def _preempt(tx: Transaction, preemption: PreemptionPlan) -> None:
    """Stops the victims in an orderly way; each waits again once its last task has ended."""
    for victim in preemption.victims:
        workload = tx.state.registry.workloads[victim.request.id]
        if workload.stop_reason or not workload.is_placed:
            continue
        why = f"preempted for {preemption.request.id} ({preemption.request.turn_class})"
        tx.stop_for_others(workload, why, kind="workload.preempted")


# Defragmentation: who moves so that waiting work can start? Plans on request, one at a time; by itself only if set so.
# A move is a graceful stop: the workload is requeued, starts elsewhere and resumes from its own checkpoint folder.
# What it leaves is kept for the one that waits. A restart of the hub forgets that; its usual reservation remains.


def plan_defragmentation(state: JobState, workload_id: str, *, now_s: float) -> DefragmentationPlan | None:
    """For a waiting workload; None if it fits already, or if no moves within the limit would help."""
    workload = state.unfinished(workload_id)
    if workload.state is not State.PENDING:
        raise wrong_state(workload, "only pending work can have other work moved")
    return state.scheduler.plan_defragmentation(state.request(workload), now_s=now_s)


def defragment(tx: Transaction, workload_id: str) -> None:
    """Plans and applies. Raises if there is nothing to do, or if another plan is being carried out."""
    clearing = tx.state.scheduler.clearing
    if clearing is not None:
        raise HarchError(
            "E0304",
            f"work is already moving to make room for {clearing.plan.request.id}",
            hint="try again when it has started",
            retry_after_s=5,
        )
    plan = plan_defragmentation(tx.state, workload_id, now_s=tx.now_s)
    if plan is None:
        raise HarchError(
            "E0304",
            f"no moves would make room for {workload_id}",
            hint=f"`harch why {workload_id}` shows what it waits for",
        )
    _move_others(tx, plan)


def defragment_if_due(tx: Transaction, reservations: tuple[Reservation, ...]) -> None:
    """The first of those whose turn it is, who needs several GPUs, has waited long enough and would gain."""
    state, now_s = tx.state, tx.now_s
    after_s = state.scheduler.settings.defragment_after_s
    if after_s is None or state.scheduler.clearing is not None or now_s < state.next_defragmentation_s:
        return
    for kept in reservations:
        request = kept.request
        waits = request.id in state.scheduler.queue
        takes_milli = request.tasks * state.scheduler.room.kind(request.needs).gpu_milli_total
        if waits and takes_milli > GPU_MILLI and now_s - request.submitted_s >= after_s:
            state.next_defragmentation_s = now_s + DEFRAGMENT_EVERY_S
            plan = state.scheduler.plan_defragmentation(request, now_s=now_s)
            if plan is not None and plan.pays:
                _move_others(tx, plan)
                state.next_defragmentation_s = now_s + after_s  # whoever moved just now is left alone for a while
            return


def _move_others(tx: Transaction, plan: DefragmentationPlan) -> None:
    for move in plan.moves:
        workload = tx.state.registry.workloads[move.running.request.id]
        if workload.stop_reason:  # somebody stopped it already: its place comes free all the same
            tx.state.scheduler.stops(workload.id, now_s=tx.now_s)
            continue
        tx.stop_for_others(workload, f"moves to make room for {plan.request.id}", kind="workload.moving")
    tx.state.scheduler.clear(plan, now_s=tx.now_s)
    waiting = tx.state.registry.workloads[plan.request.id]
    tx.changed(waiting, "workload.room_made", plan.describe())
