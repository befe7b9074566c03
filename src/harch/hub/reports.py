"""What do agents report, and what follows? Tasks that started or ended, agents that came or went."""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.execution.protocol import Forget, PauseTask, Refused, StopTask, TaskEnded, TaskKey
from harch.hub import data_asks, starts
from harch.hub import happenings as h
from harch.hub.audit import data_drafts, drafts
from harch.hub.desk import Desk
from harch.hub.endings import decide_ending, describe, is_clean
from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload

REFUSALS = ("E0902", "E0907")  # how an agent begins its no about data
STRAY_GRACE_S = 5.0  # for tasks that an agent runs and the hub does not want


def is_of_another(desk: Desk, key: TaskKey, agent_id: str) -> bool:
    """Whether the task is at a node of another agent that is connected: that one tells of it, and nobody else."""
    workload = desk.current(key)
    node = next((task.node_id for task in workload.placement if task.rank == key.rank), "") if workload else ""
    return bool(agent_id) and desk.agents.agent_of_node.get(node, agent_id) != agent_id


def task_started(desk: Desk, key: TaskKey) -> None:
    workload = desk.current(key)
    if workload is None:
        return
    if workload.state is State.PAUSED:
        task = next(task for task in workload.placement if task.rank == key.rank)
        desk.to_agent(task, PauseTask(key))
    if key.rank in workload.ranks_running:
        return
    workload.ranks_running |= {key.rank}
    desk.changed(workload)
    if len(workload.ranks_running) == len(workload.placement):
        workload.started_at = desk.now
        if workload.state is State.SCHEDULED:
            desk.move(workload, State.RUNNING, f"runs on {len({task.node_id for task in workload.placement})} node(s)")


def task_ended(desk: Desk, event: h.TaskEndSeen) -> None:
    """Books the end once, however often it is reported, and lets the agent forget it."""
    end, key = event.end, event.end.key
    workload = desk.current(key)
    if workload is not None and key.rank not in workload.ranks_ended:
        seen = TaskEnd(
            rank=key.rank,
            reason=end.reason,
            exit_code=end.exit_code,
            signal=end.signal,
            detail=end.detail[:2000],
            ended_at=end.at,
        )
        workload.task_ends += (seen,)
        desk.changed(workload)
        if workload.data_ids:
            _audit_data(desk, workload, end)
        if len(workload.task_ends) == len(workload.placement):
            all_ended(desk, workload)
        elif not is_clean(seen) and not workload.stop_reason:
            # A gang is whole or absent: with one rank gone, the others are stopped.
            workload.stop_reason = describe(seen, of_gang=True)
            desk.stop_tasks(workload)
    desk.emit(h.Send(event.agent_id, Forget(key)))


def _audit_data(desk: Desk, workload: Workload, end: TaskEnded) -> None:
    """What the agent did about the data: nothing loaded, or nothing left behind."""
    country = desk.hub.country
    if end.scrubbed:
        desk.audit(data_drafts.scrubbed(workload, country, rank=end.key.rank))
    if end.reason is ExitReason.NOT_STARTED and end.detail.startswith(REFUSALS):
        desk.audit(data_drafts.load_refused(workload, country, reason=end.detail))


def all_ended(desk: Desk, workload: Workload) -> None:
    ending = decide_ending(workload)
    if ending.counts_as_restart:
        workload.restarts += 1
    if ending.state is State.PENDING:
        desk.requeue(workload, ending.message)
        return
    desk.free(workload)
    if ending.state is State.COMPLETED and workload.spec.outputs:
        data_asks.produced(desk, workload)
    workload.error_message = "" if ending.state is State.COMPLETED else ending.message
    desk.end(workload, ending.state, ending.message or "all tasks ended well")


def agent_joined(desk: Desk, event: h.AgentJoined) -> None:
    hello = event.hello
    try:
        nodes = desk.agents.vet(hello)
    except HarchError as error:
        desk.emit(h.Send(hello.agent_id, Refused(error.code, f"{error.message}; {error.hint}")))
        desk.note("agent.refused", hello.agent_id, error.message)
        desk.audit(drafts.agent_refused(hello.agent_id, hello.country, error))
        return
    if hello.agent_id in desk.agents.agents:
        _drop(desk, hello.agent_id)
    desk.agents.join(hello, event.session, nodes, desk.boot_s)
    desk.scheduler.serve(nodes, True)
    desk.scheduler.room.process_slots_free += hello.process_slots
    desk.admission.forget_verdicts()
    desk.note("agent.joined", hello.agent_id, f"serves {len(nodes)} nodes, {hello.process_slots} processes")
    desk.audit(drafts.agent_joined(hello.agent_id, hello.country, nodes=len(nodes)))
    _reconcile(desk, hello.agent_id, set(nodes), {task.key: task.running for task in hello.tasks})


def agent_barred(desk: Desk, event: h.AgentBarred) -> None:
    desk.note("agent.refused", event.agent_id, "came with a key that is not its own")
    desk.audit(event.draft)


def agent_left(desk: Desk, event: h.AgentLeft) -> None:
    agent = desk.agents.agents.get(event.agent_id)
    if agent is None or agent.session != event.session:
        return  # an older connection of an agent that is already back
    _drop(desk, event.agent_id)
    desk.note("agent.left", event.agent_id, f"{event.why}; its tasks go on, no new ones are sent")


def _drop(desk: Desk, agent_id: str) -> None:
    agent = desk.agents.leave(agent_id)
    desk.scheduler.serve(agent.node_ids, False)
    desk.scheduler.room.process_slots_free -= agent.hello.process_slots
    desk.admission.forget_verdicts()


def _reconcile(desk: Desk, agent_id: str, nodes: set[str], inventory: dict[TaskKey, bool]) -> None:
    """Compares what the agent has with what the hub placed there: starts the missing, stops the strays."""
    expected: set[TaskKey] = set()
    for workload in list(desk.registry.workloads.values()):
        if not workload.is_placed:
            continue
        for task in workload.placement:
            if task.node_id not in nodes or task.rank in workload.ranks_ended:
                continue
            key = TaskKey(workload.id, workload.attempt, task.rank)
            expected.add(key)
            if key in inventory and workload.stop_reason:
                desk.to_agent(task, desk.stop_order(workload, task.rank))
            elif key in inventory:
                if inventory[key]:
                    task_started(desk, key)
                    starts.lengthen_leases(desk, workload)
            elif workload.stop_reason:
                # Never started and no longer wanted: it ends here, as if the agent had stopped it.
                workload.task_ends += (TaskEnd(rank=task.rank, reason=ExitReason.STOPPED, ended_at=desk.now),)
                desk.changed(workload)
            else:
                desk.start_task(workload, task)
        if len(workload.task_ends) == len(workload.placement):
            all_ended(desk, workload)
    for key, running in inventory.items():
        if running and key not in expected:
            desk.emit(h.Send(agent_id, StopTask(key, STRAY_GRACE_S)))
            desk.note("agent.stray_task", key.workload_id, f"{agent_id} runs attempt {key.attempt}: stopping it")
