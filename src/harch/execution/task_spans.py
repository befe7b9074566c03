"""How long did a task take to start, and how long did it run? Two spans per traced task, exported by its agent.

Ids follow from the task, so that an agent which was started again, and adopts what an earlier one left, goes on in the
same trace: it finds the trace in the environment that the task was given.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from harch.base.clock import epoch_ns
from harch.base.tracing.spans import (
    Attributes,
    FinishedSpan,
    TraceContext,
    read_header,
    run_id,
    span_id_of,
    start_id,
    task_id,
)
from harch.base.tracing.tracer import Tracing, ids_of
from harch.execution.protocol import KnownTask, TaskEnded, TaskKey, TaskSpec, TaskStarted
from harch.workloads.lifecycle import ExitReason

TASKS_MAX = 10_000  # followed at a time; further ones run untold

_log = logging.getLogger("harch.task")


@dataclass(slots=True)
class _Task:
    trace: TraceContext
    attributes: Attributes
    ordered_ns: int
    started_ns: int = 0


class TaskSpans:
    """Of one agent; follows what the hub orders and what the engines report."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._tasks: dict[TaskKey, _Task] = {}

    def ordered(self, task: TaskSpec) -> None:
        trace = read_header(task.trace) if task.trace else None
        if trace is None or not trace.sampled or len(self._tasks) >= TASKS_MAX or task.key in self._tasks:
            return
        about = _about(task.key) | {"node": task.node_id, "task.gpus": len(task.gpu_ids)}
        about["task.modelled"] = not task.command
        self._tasks[task.key] = _Task(trace, about, self._tracing.now_ns())

    def adopted(self, known: KnownTask, environment: dict[str, str]) -> None:
        """It was started by an earlier agent; `environment` is what it was given."""
        trace = read_header(environment.get("HARCH_TRACEPARENT", ""))
        if trace is None or known.started_at is None or len(self._tasks) >= TASKS_MAX:
            return
        started_ns = epoch_ns(known.started_at)
        about = _about(known.key) | {"task.adopted": True}
        self._tasks[known.key] = _Task(trace, about, started_ns, started_ns)

    def record(self, message: object) -> None:
        """What the agent tells the hub."""
        if isinstance(message, TaskStarted):
            self._started(message)
        elif isinstance(message, TaskEnded):
            self._ended(message)

    def _started(self, start: TaskStarted) -> None:
        task = self._tasks.get(start.key)
        if task is None or task.started_ns:
            return
        task.started_ns = max(task.ordered_ns, epoch_ns(start.at))
        _log.info("%s attempt %d rank %d runs", *_words(start.key), extra=ids_of(task.trace))
        key, trace_id = start.key, task.trace.trace_id
        self._emit(
            task,
            "task.start",
            span_id=span_id_of(trace_id, "task.start", *_words(key)),
            parent_id=start_id(trace_id, key.workload_id, key.attempt),
            start_ns=task.ordered_ns,
            end_ns=task.started_ns,
        )

    def _ended(self, end: TaskEnded) -> None:
        task = self._tasks.pop(end.key, None)
        if task is None:
            return  # not traced, or reported before: an end is repeated until the hub has it
        _log.info("%s attempt %d rank %d ended: %s", *_words(end.key), end.reason.value, extra=ids_of(task.trace))
        key, trace_id = end.key, task.trace.trace_id
        clean = end.reason is ExitReason.EXITED and not end.exit_code
        more: Attributes = {"task.reason": end.reason.value}
        if end.exit_code is not None:
            more["task.exit_code"] = end.exit_code
        if end.signal is not None:
            more["task.signal"] = end.signal
        began = bool(task.started_ns)
        parent = run_id if began else start_id
        self._emit(
            task,
            "task.run" if began else "task.start",
            span_id=task_id(trace_id, *_words(key)),
            parent_id=parent(trace_id, key.workload_id, key.attempt),
            start_ns=task.started_ns or task.ordered_ns,
            end_ns=epoch_ns(end.at),
            more=more,
            error="" if clean else None if end.reason is ExitReason.STOPPED else end.reason.value,
        )

    def _emit(
        self,
        task: _Task,
        name: str,
        *,
        span_id: bytes,
        parent_id: bytes,
        start_ns: int,
        end_ns: int,
        more: Attributes | None = None,
        error: str | None = None,
    ) -> None:
        self._tracing.emit(
            FinishedSpan(
                trace_id=task.trace.trace_id,
                span_id=span_id,
                parent_id=parent_id,
                name=name,
                start_ns=start_ns,
                end_ns=max(start_ns, end_ns),
                error=error,
                attributes={**task.attributes, **(more or {})},
            )
        )


def _words(key: TaskKey) -> tuple[str, int, int]:
    return key.workload_id, key.attempt, key.rank


def _about(key: TaskKey) -> Attributes:
    return {"workload.id": key.workload_id, "workload.attempt": key.attempt, "task.rank": key.rank}
