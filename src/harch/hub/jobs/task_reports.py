"""What do agents report, and what follows? Tasks that started or ended, agents that came or went."""

# harch: pure

from __future__ import annotations

from msgspec import Struct

from harch.base.counting import counted
from harch.base.errors import HarchError
from harch.execution.protocol import AgentRefused, Forget, KnownTask, PauseTask, StopTask, TaskEnded, TaskKey
from harch.hub.audit import data_drafts, drafts
from harch.hub.jobs import data_commands, placement
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.transaction import Transaction
from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload
from harch.workloads.spec import RestartPolicy

REFUSALS = ("E0902", "E0907")  # how an agent begins its no about data
STRAY_GRACE_S = 5.0  # for tasks that an agent runs and the hub does not want


def is_of_another(tx: Transaction, key: TaskKey, agent_id: str) -> bool:
    """Whether the task is at a node of another agent that is connected: that one tells of it, and nobody else."""
    workload = tx.state.current(key)
    if workload is None or not agent_id:
        return False
    nodes = [task.node_id for task in workload.placement if task.rank == key.rank]
    return bool(nodes) and tx.state.agents.agent_of_node.get(nodes[0], agent_id) != agent_id


def task_started(tx: Transaction, key: TaskKey) -> None:
    workload = tx.state.current(key)
    if workload is None:
        return
    if workload.state is State.PAUSED:
        task = next(task for task in workload.placement if task.rank == key.rank)
        tx.to_agent(task, PauseTask(key))
    if key.rank in workload.ranks_running:
        return
    workload.ranks_running |= {key.rank}
    tx.changed(workload)
    if len(workload.ranks_running) == len(workload.placement):
        workload.started_at = tx.now
        if workload.state is State.SCHEDULED:
            nodes = counted(len({task.node_id for task in workload.placement}), "node")
            tx.move(workload, State.RUNNING, f"runs on {nodes}")


def task_ended(tx: Transaction, event: ev.TaskEndSeen) -> None:
    """Books the end once, however often it is reported, and lets the agent forget it."""
    end, key = event.end, event.end.key
    workload = tx.state.current(key)
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
        workload.artifacts += end.artifacts
        tx.changed(workload)
        for lost in end.artifacts_lost:
            data_commands.lose_artifact(tx, workload, lost)
        if workload.data_ids:
            _audit_data(tx, workload, end)
        if len(workload.task_ends) == len(workload.placement):
            all_ended(tx, workload)
        elif not is_clean(seen) and not workload.stop_reason:
            # A gang is whole or absent: with one rank gone, the others are stopped.
            workload.stop_reason = describe(seen, of_gang=True)
            tx.stop_tasks(workload)
    tx.emit(fx.Send(event.agent_id, Forget(key)))


def _audit_data(tx: Transaction, workload: Workload, end: TaskEnded) -> None:
    """What the agent did about the data: nothing loaded, or nothing left behind."""
    country = tx.state.hub.country
    if end.scrubbed:
        tx.audit(data_drafts.scrubbed(workload, country, rank=end.key.rank))
    if end.reason is ExitReason.NOT_STARTED and end.detail.startswith(REFUSALS):
        tx.audit(data_drafts.load_refused(workload, country, reason=end.detail))


def all_ended(tx: Transaction, workload: Workload) -> None:
    ending = decide_ending(workload)
    if ending.counts_as_restart:
        workload.restarts += 1
    if ending.state is State.PENDING:
        tx.requeue(workload, ending.message)
        return
    tx.free(workload)
    if ending.state is State.COMPLETED and (workload.spec.outputs or workload.artifacts):
        data_commands.produced(tx, workload)
    workload.error_message = "" if ending.state is State.COMPLETED else ending.message
    tx.end(workload, ending.state, ending.message or "all tasks ended well")


def agent_joined(tx: Transaction, event: ev.AgentJoined) -> None:
    hello = event.hello
    try:
        nodes = tx.state.agents.vet(hello)
    except HarchError as error:
        tx.emit(fx.Send(hello.agent_id, AgentRefused(error.code, f"{error.message}; {error.hint}")))
        tx.note("agent.refused", hello.agent_id, error.message)
        tx.audit(drafts.agent_refused(hello.agent_id, hello.country, error))
        return
    if hello.agent_id in tx.state.agents.agents:
        _drop(tx, hello.agent_id)
    tx.state.agents.join(hello, event.session, nodes, tx.boot_s)
    tx.state.scheduler.serve(nodes, True)
    tx.state.scheduler.room.process_slots_free += hello.process_slots
    tx.state.admission.forget_verdicts()
    tx.note("agent.joined", hello.agent_id, f"serves {len(nodes)} nodes, {hello.process_slots} processes")
    tx.audit(drafts.agent_joined(hello.agent_id, hello.country, nodes=len(nodes)))
    _reconcile(tx, hello.agent_id, set(nodes), {task.key: task for task in hello.tasks})


def agent_barred(tx: Transaction, event: ev.AgentBarred) -> None:
    tx.note("agent.refused", event.agent_id, "presented a key that is not its own")
    tx.audit(event.draft)


def agent_left(tx: Transaction, event: ev.AgentLeft) -> None:
    agent = tx.state.agents.agents.get(event.agent_id)
    if agent is None or agent.session != event.session:
        return  # an older connection of an agent that is already back
    _drop(tx, event.agent_id)
    tx.note("agent.left", event.agent_id, f"{event.why}; its tasks keep running, no new ones are sent")


def _drop(tx: Transaction, agent_id: str) -> None:
    agent = tx.state.agents.leave(agent_id)
    tx.state.scheduler.serve(agent.node_ids, False)
    tx.state.scheduler.room.process_slots_free -= agent.hello.process_slots
    tx.state.admission.forget_verdicts()


def _reconcile(tx: Transaction, agent_id: str, nodes: set[str], inventory: dict[TaskKey, KnownTask]) -> None:
    """Compares what the agent has with what the hub placed there: starts the missing, stops the strays."""
    expected: set[TaskKey] = set()
    for workload in list(tx.state.registry.workloads.values()):
        if not workload.is_placed:
            continue
        for task in workload.placement:
            if task.node_id not in nodes or task.rank in workload.ranks_ended:
                continue
            key = TaskKey(workload.id, workload.attempt, task.rank)
            expected.add(key)
            if key in inventory and workload.stop_reason:
                tx.to_agent(task, tx.state.stop_order(workload, task.rank))
            elif key in inventory:
                if inventory[key].running:
                    if not inventory[key].preparing:
                        task_started(tx, key)
                    placement.lengthen_leases(tx, workload)
            elif workload.stop_reason:
                # Never started and no longer wanted: it ends here, as if the agent had stopped it.
                workload.task_ends += (TaskEnd(rank=task.rank, reason=ExitReason.STOPPED, ended_at=tx.now),)
                tx.changed(workload)
            else:
                tx.start_task(workload, task)
        if len(workload.task_ends) == len(workload.placement):
            all_ended(tx, workload)
    for key, known in inventory.items():
        if known.running and key not in expected:
            tx.emit(fx.Send(agent_id, StopTask(key, STRAY_GRACE_S)))
            tx.note("agent.stray_task", key.workload_id, f"{agent_id} runs attempt {key.attempt}: stopping it")


# All tasks of a workload have ended: what is it now? A pure rule, from how they ended to the next state.


class Ending(Struct, frozen=True, gc=False):
    """`state` PENDING means: back into the queue. `counts_as_restart`: uses up one of `restarts_max`."""

    state: State
    message: str = ""
    counts_as_restart: bool = False


def is_clean(end: TaskEnd) -> bool:
    return end.reason is ExitReason.EXITED and end.exit_code == 0


def decide_ending(workload: Workload) -> Ending:
    """The first task that ended badly decides; tasks that were stopped because of it do not count.

    A workload that was stopped for others (`stop_as` PENDING) but ended well before the signal has simply completed.
    One rank whose lease ended decides for its gang, whatever the others made of its absence: the work goes back to its
    owner, and the restart policy has no say in it.
    """
    if workload.stop_as in (None, State.PENDING) and all(map(is_clean, workload.task_ends)):
        return Ending(State.COMPLETED)
    if workload.stop_as is not None:
        return Ending(workload.stop_as, workload.stop_reason)
    unrenewed = next((end for end in workload.task_ends if end.reason is ExitReason.LEASE_ENDED), None)
    if unrenewed is not None:
        return Ending(State.PENDING, describe(unrenewed, of_gang=workload.spec.tasks > 1))
    culprit = next(
        (end for end in workload.task_ends if not is_clean(end) and end.reason is not ExitReason.STOPPED), None
    )
    if culprit is None:
        return Ending(State.COMPLETED)
    spec = workload.spec
    message = describe(culprit, of_gang=spec.tasks > 1)
    if culprit.reason is ExitReason.TIMEOUT:
        return Ending(State.COMPLETED if spec.is_reservation else State.FAILED, message)
    if culprit.reason is ExitReason.AGENT_SHUTDOWN and spec.restart is not RestartPolicy.NEVER:
        return Ending(State.PENDING, message)
    wanted = (
        spec.restart is not RestartPolicy.NEVER
        if culprit.reason in (ExitReason.LOST, ExitReason.AGENT_SHUTDOWN)
        else spec.restart is RestartPolicy.ON_FAILURE
    )
    if not wanted:
        return Ending(State.FAILED, message)
    if workload.restarts >= spec.restarts_max:
        return Ending(State.FAILED, f"{message}; already restarted {workload.restarts} times")
    return Ending(State.PENDING, message, counts_as_restart=True)


def describe(end: TaskEnd, *, of_gang: bool) -> str:
    """How a task ended, in words."""
    who = f"rank {end.rank}" if of_gang else "the task"
    words = {
        ExitReason.EXITED: f"{who} exited with code {end.exit_code}",
        ExitReason.SIGNALLED: f"{who} was ended by signal {end.signal}",
        ExitReason.OUT_OF_MEMORY: f"{who} used more memory than its limit",
        ExitReason.TIMEOUT: f"{who} ran longer than max_duration_s",
        ExitReason.STOPPED: f"{who} was stopped",
        ExitReason.NOT_STARTED: f"{who} could not start",
        ExitReason.LOST: f"{who} was lost with its node or supervisor",
        ExitReason.AGENT_SHUTDOWN: f"{who} was stopped because its node was shut down",
        ExitReason.LEASE_ENDED: f"{who} was stopped because its lease was not renewed",
    }
    text = words[end.reason]
    return f"{text}: {end.detail}" if end.detail else text
