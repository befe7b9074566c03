"""What must be in place before a task can start?

Its folders, secrets, cgroups, launch file, and the environment that follows from what the hub requested.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from harch.base.tracing.spans import read_header, task_id
from harch.execution import kernel
from harch.execution.images.prepared import PreparedImage
from harch.execution.isolation.cgroups import Cgroups
from harch.execution.isolation.sandbox import Sandbox, SandboxView
from harch.execution.protocol import ContentUse, TaskKey, TaskSpec
from harch.execution.taskdir import LaunchSpec, OutputRecord, TaskDir, folder_name

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The user's own variables win over ours, except those that say what was allocated.
_RESERVED = frozenset({"CUDA_VISIBLE_DEVICES"})
_RESERVED_PREFIX = "HARCH_"
WORKLOAD_TYPE = "HARCH_WORKLOAD_TYPE"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a task works: `secrets` is empty if it has none, and so are `code`, `data` and `environment`."""

    work: str
    checkpoint: str
    secrets: str
    code: str = ""
    data: str = ""
    environment: str = ""


def task_environment(task: TaskSpec, folders: Folders, *, python_bin: str) -> dict[str, str]:
    rank, world_size = str(task.key.rank), str(task.world_size)
    env = {
        # In an environment of its own, a task finds nothing of the agent's: its `pip` would install into that.
        "PATH": SYSTEM_PATH if folders.environment else f"{python_bin}:{SYSTEM_PATH}",
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
    if folders.environment:
        env["PATH"] = f"{folders.environment}/bin:{env['PATH']}"
        env["VIRTUAL_ENV"] = folders.environment
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
    if folders.code:
        env["HARCH_CODE"] = folders.code
    if folders.data:
        env["HARCH_DATA"] = folders.data
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


# What must be in place before a task can start? Its folders, secrets, cgroups and launch file.


LOG_SEGMENT_BYTES = 4 * 1024 * 1024
LOG_SEGMENTS_MAX = 4
_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a folder of mode 0700 in it, so that secrets never touch a disk


CONTENT, KEPT_WORK = "content", "work"
MADE_PRIVATE = frozenset({CONTENT, KEPT_WORK})  # by every version that knows them; they may hold a million files


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The agent's own part of the disk."""

    root: Path

    @property
    def tag(self) -> str:
        """Names this agent's cgroups and secrets apart from those of others on the machine."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:12]

    def task(self, key: TaskKey) -> TaskDir:
        return TaskDir(self.tasks / folder_name(key))

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def trash(self) -> Path:
        return self.root / "trash"

    @property
    def content(self) -> Path:
        return self.root / CONTENT

    @property
    def kept_work(self) -> Path:
        return self.root / KEPT_WORK

    def checkpoint(self, key: TaskKey) -> Path:
        return self.root / "checkpoints" / key.workload_id

    @property
    def secrets(self) -> Path:
        in_memory = _MEMORY_FOLDER.is_dir() and os.access(_MEMORY_FOLDER, os.W_OK)
        return _MEMORY_FOLDER / f"harch-{self.tag}" if in_memory else self.root / "secrets"

    def make(self) -> None:
        own = (self.tasks, self.logs, self.trash, self.content, self.kept_work, self.root / "checkpoints")
        for folder in (self.root, *own, self.secrets):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                raise PermissionError(1, "belongs to another user", str(folder))

    def close(self) -> None:
        """Leaves nothing outside its folder, unless running tasks still need it."""
        with contextlib.suppress(OSError):
            self.secrets.rmdir()


@dataclass(frozen=True, slots=True)
class PreparedContent:
    """What was fetched and built for a task. `data`: (name, path of the tree). `readable`: what it must see besides."""

    data: tuple[tuple[str, str], ...] = ()
    environment: str = ""
    readable: tuple[str, ...] = ()
    image: PreparedImage | None = None


NOTHING = PreparedContent()


@dataclass(frozen=True, slots=True)
class Preparation:
    """Puts in place what one task needs. `hidden` are folders that no task may see."""

    state: StateFolder
    sandbox: Sandbox
    cgroups: Cgroups
    hidden: tuple[str, ...]

    def make_folder(self, task: TaskSpec) -> TaskDir:
        """First of all: what belongs to this execution has a place from now on. Raises OSError."""
        task_dir = self.state.task(task.key)
        task_dir.path.mkdir(mode=0o700)
        if task.working_dir is None:
            task_dir.work.mkdir(mode=0o700)
        if task.scrub_after:
            task_dir.write_scrub()
            return task_dir
        task_dir.write_output_record(
            OutputRecord(
                workload=task.key.workload_id,
                name=task.name,
                tenant=task.tenant,
                node=task.node_id,
                trace=trace_of(task),
            )
        )
        if task.artifacts:
            task_dir.write_artifacts_wanted(task.artifacts)
        return task_dir

    def limit(self, task: TaskSpec) -> list[str]:
        """The cgroups of the task, with its limits."""
        return self.cgroups.create(folder_name(task.key), cpus=task.cpus, memory_gb=task.memory_gb)

    def complete(self, task: TaskSpec, task_dir: TaskDir, content: PreparedContent = NOTHING) -> None:
        """Raises OSError, e.g. if the disk is full; `clear` then leaves nothing behind."""
        work = Path(os.path.realpath(task.working_dir)) if task.working_dir is not None else task_dir.work
        checkpoint = self.state.checkpoint(task.key)
        checkpoint.mkdir(mode=0o700, parents=True, exist_ok=True)
        mounts = self._place_data(task_dir, content)
        secrets = self._write_secrets(task)
        folders = Folders(
            work=str(work),
            checkpoint=str(checkpoint),
            secrets=secrets,
            code=str(work) if any(one.use is ContentUse.CODE for one in task.contents) else "",
            data=str(task_dir.data) if content.data else "",
            environment=content.environment,
        )
        env = task_environment(task, folders, python_bin=str(Path(sys.executable).parent))
        if content.image is not None:
            env = content.image.environment(env, task.env)
        view = SandboxView(
            work_dir=str(work),
            work_dir_shared=task.working_dir is not None,
            writable=(str(checkpoint),),
            readable=(*((secrets,) if secrets else ()), *content.readable),
            hidden=self.hidden,
            gpu_indexes=() if task.gpus_modelled else task.gpu_indexes,
            env=env,
            rootfs=content.image.rootfs if content.image is not None else None,
            mounts=mounts,
        )
        spec = LaunchSpec(
            argv=task.command,
            env=env,
            cwd=str(work),
            sandbox=self.sandbox.program,
            sandbox_args=self.sandbox.arguments(view),
            cgroups=self.limit(task),
            max_duration_s=task.max_duration_s,
            stop_grace_s=task.stop_grace_s,
            secrets_dir=secrets,
            log_segment_bytes=LOG_SEGMENT_BYTES,
            log_segments_max=LOG_SEGMENTS_MAX,
            lease_until_s=task.lease_until_s,
        )
        task_dir.write_launch_spec(spec)

    def _place_data(self, task_dir: TaskDir, content: PreparedContent) -> tuple[tuple[str, str], ...]:
        """As mounts of the sandbox or, without one, as links to what is read-only by its modes."""
        if not content.data:
            return ()
        task_dir.data.mkdir(mode=0o700)
        places = tuple((path, str(task_dir.data / name)) for name, path in content.data)
        if self.sandbox.program:
            return places
        for path, place in places:
            os.symlink(path, place)
        return ()

    def clear(self, key: TaskKey) -> None:
        """Takes away what an ended task must not leave: secrets and cgroups. Safe to repeat."""
        kernel.remove_secrets(str(self.state.secrets / folder_name(key)))
        kernel.remove_cgroups(self.cgroups_of(key))

    def cgroups_of(self, key: TaskKey) -> list[str]:
        """As its launch file has them, which an agent in another cgroup may have written, or as we would make them."""
        spec = self.state.task(key).launch_spec()
        return sorted({*self.cgroups.folders_of(folder_name(key)), *(spec.cgroups if spec else ())})

    def _write_secrets(self, task: TaskSpec) -> str:
        if not task.secrets:
            return ""
        folder = self.state.secrets / folder_name(task.key)
        folder.parent.mkdir(mode=0o700, exist_ok=True)  # cleaners of shared memory take away what is long empty
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, value in task.secrets.items():
            fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(value)
        return str(folder)
