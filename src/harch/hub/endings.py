"""All tasks of a workload have ended: what is it now? A pure rule, from how they ended to the next state."""

from __future__ import annotations

from dataclasses import dataclass

from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload
from harch.workloads.spec import RestartPolicy


@dataclass(frozen=True, slots=True)
class Ending:
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
    if workload.stop_as is State.PENDING and all(is_clean(end) for end in workload.task_ends):
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
