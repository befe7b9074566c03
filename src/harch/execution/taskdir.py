"""What is on disk of a task, and what does it tell an agent that was not there? Layout, reading, adoption.

STATE/tasks/WORKLOAD.ATTEMPT.RANK/   one execution, until the hub says Forget; see supervisor.py for its files
    work/                            its working folder, unless it works in a shared one
    data/                            what it reads: mount points or, without a sandbox, links
    content/                         what was fetched or built for it alone
    log/preparation/                 how that went
STATE/logs/WORKLOAD.ATTEMPT.RANK/    its log afterwards, until newer ones need the room
STATE/work/WORKLOAD.ATTEMPT.RANK/    its working folder afterwards, for a while
STATE/content/                       what tasks of this node share, see content/cache.py
STATE/checkpoints/WORKLOAD/          survives attempts
STATE/trash/                         being deleted
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from harch.base.seal import FIELD, DamagedContent
from harch.base.state_files import SUFFIX, set_aside
from harch.execution import kernel
from harch.execution.lease_watch import LEASE_FILE, later_deadline
from harch.execution.protocol import KnownTask, TaskArtifact, TaskEnded, TaskKey
from harch.workloads.lifecycle import ExitReason
from harch.workloads.spec import Artifact

_Record = TypeVar("_Record", bound=Struct)
ABOUT = "about.json"
PREPARATION = "preparation"
_log = logging.getLogger("harch.damage")
_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """`spec.json`: all that a supervisor needs. No secrets: those are files of their own, outside the state folder."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    sandbox: str
    sandbox_args: list[str]
    cgroups: list[str]
    max_duration_s: float | None
    stop_grace_s: float
    secrets_dir: str
    log_segment_bytes: int
    log_segments_max: int
    lease_until_s: float | None = None  # the first deadline; the file `lease` has later ones


class RunningRecord(Struct, frozen=True, kw_only=True):
    """`running.json`."""

    pid: int
    pgid: int
    start_ticks: int
    started_at: float
    sandbox: str

    @property
    def started(self) -> datetime:
        return datetime.fromtimestamp(self.started_at, UTC)


class EndRecord(Struct, frozen=True, kw_only=True):
    """`ended.json`."""

    reason: ExitReason
    ended_at: float
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    log_bytes_dropped: int = 0

    def message(self, key: TaskKey) -> TaskEnded:
        detail = self.detail
        if self.log_bytes_dropped:
            detail = f"{detail} ({self.log_bytes_dropped} bytes of its log were lost to a full disk)".strip()
        return TaskEnded(
            key=key,
            reason=self.reason,
            at=datetime.fromtimestamp(self.ended_at, UTC),
            exit_code=self.exit_code,
            signal=self.signal,
            detail=detail,
        )


class OutputRecord(Struct, frozen=True, kw_only=True):
    """`log/about.json`: whose output this is. It stays with the log when all else of the task is gone. A task whose
    output may not rest here has none."""

    workload: str
    name: str
    tenant: str
    node: str
    trace: str = ""  # a `traceparent`, if the work is traced


class ArtifactsWanted(Struct, frozen=True, kw_only=True):
    """`artifacts.json`: what of its working folder the hub is to keep if the task ends well."""

    artifacts: tuple[Artifact, ...]


class ArtifactsKept(Struct, frozen=True, kw_only=True):
    """`kept.json`: what has become of them. Each of `lost` is "NAME: why"."""

    artifacts: tuple[TaskArtifact, ...] = ()
    lost: tuple[str, ...] = ()


class ContentUses(Struct, frozen=True, kw_only=True):
    """`uses.json`: what the task uses of the content that tasks share, as (kind, name)."""

    uses: tuple[tuple[str, str], ...]


class SupervisorLine(Struct, frozen=True, kw_only=True):
    """One line of a supervisor's standard output: either record, with its name."""

    state: str
    started_at: float = 0.0
    reason: ExitReason = ExitReason.LOST
    ended_at: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    log_bytes_dropped: int = 0


class StopOrder(Struct, frozen=True):
    """`stop.json`."""

    reason: ExitReason
    grace_s: float


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What the files of one task say."""

    started: bool
    running: RunningRecord | None
    ended: EndRecord | None


def standing(key: TaskKey, facts: TaskFacts, *, lock_held: bool, now: datetime) -> KnownTask | TaskEnded | None:
    """What is true of a task, from its files and whether a supervisor lives. None: it never started, and never will."""
    if facts.ended is not None:
        return facts.ended.message(key)
    if lock_held:
        at = None if facts.running is None else datetime.fromtimestamp(facts.running.started_at, UTC)
        return KnownTask(key=key, running=True, started_at=at)
    if facts.started:
        detail = "its supervisor was killed, or the node went down; how far it came is not known"
        return TaskEnded(key=key, reason=ExitReason.LOST, at=now, detail=detail)
    return None


def folder_name(key: TaskKey) -> str:
    return f"{key.workload_id}.{key.attempt}.{key.rank}"


def key_of(name: str) -> TaskKey | None:
    workload_id, _, rest = name.partition(".")
    attempt, _, rank = rest.partition(".")
    if is_safe_id(workload_id) and attempt.isdecimal() and rank.isdecimal():
        return TaskKey(workload_id, int(attempt), int(rank))
    return None


def is_safe_id(text: str) -> bool:
    """Ids become folder names; one that could mean another folder is refused."""
    return _SAFE_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class TaskDir:
    """One execution's folder."""

    path: Path

    def facts(self) -> TaskFacts:
        return TaskFacts(
            (self.path / "started").exists(),
            _read(self.path / "running.json", RunningRecord),
            _read(self.path / "ended.json", EndRecord),
        )

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def content(self) -> Path:
        return self.path / "content"

    @property
    def preparation_log(self) -> Path:
        """Inside of the log, so that both go the same way."""
        return self.path / "log" / PREPARATION

    def launch_spec(self) -> LaunchSpec | None:
        return _read(self.path / "spec.json", LaunchSpec)

    def write_launch_spec(self, spec: LaunchSpec) -> None:
        self._write("spec.json", spec)

    def write_output_record(self, record: OutputRecord) -> None:
        """Not synced: after a power cut it may be missing, and then nobody learns whose output it was."""
        (self.path / "log").mkdir(mode=0o700, exist_ok=True)  # it may have the log of its preparation
        (self.path / "log" / ABOUT).write_bytes(FIELD.seal(msgspec.json.encode(record)))

    def write_artifacts_wanted(self, artifacts: tuple[Artifact, ...]) -> None:
        self._write("artifacts.json", ArtifactsWanted(artifacts=artifacts))

    def artifacts_wanted(self) -> tuple[Artifact, ...]:
        wanted = _read(self.path / "artifacts.json", ArtifactsWanted)
        return wanted.artifacts if wanted is not None else ()

    def write_artifacts_kept(self, kept: ArtifactsKept) -> None:
        self._write("kept.json", kept)

    def artifacts_kept(self) -> ArtifactsKept | None:
        return _read(self.path / "kept.json", ArtifactsKept)

    def write_uses(self, uses: ContentUses) -> None:
        self._write("uses.json", uses)

    def uses(self) -> tuple[tuple[str, str], ...]:
        found = _read(self.path / "uses.json", ContentUses)
        return found.uses if found is not None else ()

    def write_stop(self, order: StopOrder) -> None:
        self._write("stop.json", order)

    def extend_lease(self, until_s: float) -> None:
        """For the supervisor to find. Not synced: after a power cut nothing runs whose lease could matter."""
        file = self.path / LEASE_FILE
        if not later_deadline(kernel.read_text(str(file))) < until_s < math.inf:
            return  # it was overtaken by a later one, which the supervisor may not have seen yet, or it is nonsense
        scratch = file.with_name(f"{LEASE_FILE}.agent")
        scratch.write_text(repr(until_s))
        scratch.rename(file)

    def write_scrub(self) -> None:
        """From now on, however it ends, what it wrote is deleted; also by an agent that comes after this one."""
        write_atomically(self.path / "scrub", b"")

    @property
    def scrub_requested(self) -> bool:
        return (self.path / "scrub").exists()

    @property
    def stop_requested(self) -> bool:
        return (self.path / "stop.json").exists()

    def write_end(self, end: TaskEnded) -> None:
        """For an end that no supervisor could write."""
        record = EndRecord(
            reason=end.reason,
            ended_at=end.at.timestamp(),
            exit_code=end.exit_code,
            signal=end.signal,
            detail=end.detail,
        )
        self._write("ended.json", record)

    def _write(self, name: str, record: Struct) -> None:
        write_atomically(self.path / name, FIELD.seal(msgspec.json.encode(record)))

    def lock_held(self) -> bool:
        """Does a supervisor live? Only for folders that have started: the test takes the lock for a moment."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def supervisor_pid(self) -> int:
        text = kernel.read_text(str(self.path / "lock")).strip()
        return int(text) if text.isdecimal() else 0

    def void(self) -> bool:
        """Makes sure that no late supervisor can ever start this execution; false if one was faster."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(os.open(self.path / "started", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except (BlockingIOError, FileExistsError):
            return False
        finally:
            os.close(fd)
        return True


def write_atomically(path: Path, data: bytes) -> None:
    """All of it or nothing, also after a power cut."""
    scratch = path.with_name(f"{path.name}.agent")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    finally:
        os.close(fd)
    scratch.rename(path)


def read_output_record(log: Path) -> OutputRecord | None:
    """What is known about the output in the folder `log`."""
    return _read(log / ABOUT, OutputRecord)


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    """The record; none if it is missing or torn, which only a power cut can do to it, or damaged, which is said."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(FIELD.unseal(raw), type=kind)
    except (DamagedContent, msgspec.DecodeError) as damage:
        content = FIELD.mended(raw)
        if content is None:
            if raw:
                set_aside(path, f"is damaged: {damage}", code="E1030")
            return None
    _log.error("E1030: repaired a flipped bit in %s", path)
    path.with_name(f"{path.name}{SUFFIX}").write_bytes(raw)
    write_atomically(path, FIELD.seal(content))
    return msgspec.json.decode(content, type=kind)
