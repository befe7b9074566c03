"""Which environment does a task get? A pure function of what the hub asked for and where its folders are."""

from __future__ import annotations

from dataclasses import dataclass

from harch.base.tracing.context import read_header, task_id
from harch.execution.protocol import TaskKey, TaskSpec

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The user's own variables win over ours, except those that say what was allocated.
_RESERVED = frozenset({"CUDA_VISIBLE_DEVICES"})
_RESERVED_PREFIX = "HARCH_"
WORKLOAD_TYPE = "HARCH_WORKLOAD_TYPE"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a task works: `secrets` is empty if it has none."""

    work: str
    checkpoint: str
    secrets: str


def task_environment(task: TaskSpec, folders: Folders, *, python_bin: str) -> dict[str, str]:
    rank, world_size = str(task.key.rank), str(task.world_size)
    env = {
        "PATH": f"{python_bin}:{SYSTEM_PATH}",
        "HOME": folders.work,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",  # output that sits in a buffer helps nobody who follows the log
        "RANK": rank,
        "LOCAL_RANK": "0",  # a task sees only its own GPUs, so it is the first on its node
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": task.master_addr,
    }
    trace = trace_of(task)
    if trace:
        env["TRACEPARENT"] = trace  # programs that speak OpenTelemetry go on in the trace of their work
    if task.master_port is not None:
        env["MASTER_PORT"] = str(task.master_port)
    env |= {name: value for name, value in task.env.items() if not _is_reserved(name)}
    env |= identity(task.key)
    if trace:
        env["HARCH_TRACEPARENT"] = trace  # whatever the user says
    env["HARCH_WORLD_SIZE"] = world_size
    env["HARCH_NODE"] = task.node_id
    if task.type:
        env[WORKLOAD_TYPE] = task.type
    env["HARCH_GPUS"] = ",".join(task.gpu_ids)
    env["HARCH_CHECKPOINT_DIR"] = folders.checkpoint
    env["CUDA_VISIBLE_DEVICES"] = "" if task.gpus_modelled else ",".join(map(str, task.gpu_indexes))
    if folders.secrets:
        env["HARCH_SECRETS"] = folders.secrets
    return env


def trace_of(task: TaskSpec) -> str:
    """The `traceparent` of what the task does itself: its parent is the span that the agent tells when it has ended."""
    trace = read_header(task.trace) if task.trace else None
    if trace is None:
        return ""
    key = task.key
    return trace.within(task_id(trace.trace_id, key.workload_id, key.attempt, key.rank)).header


def identity(key: TaskKey) -> dict[str, str]:
    """The variables that name one execution; stray processes are found by them."""
    return {"HARCH_WORKLOAD_ID": key.workload_id, "HARCH_ATTEMPT": str(key.attempt), "HARCH_RANK": str(key.rank)}


def _is_reserved(name: str) -> bool:
    return name in _RESERVED or name.startswith(_RESERVED_PREFIX)
