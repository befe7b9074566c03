"""What do a hub and its node agents say to each other?

The agent dials the hub (`GET /v1/agents/connect`, a WebSocket) and authenticates with its API key (role `agent`).
Each frame is one msgpack array of messages. Rules that make crashes harmless:

- `(workload_id, attempt, rank)` names one execution. The agent starts it **at most once**, however often it is ordered.
- The agent opens with `Hello` and the inventory of every execution it knows, ended ones included.
- The agent repeats `TaskEnded` after each `Hello` until the hub answers `Forget`, which the hub sends only once the end
  is on its disk. So a crash on either side loses no end and invents none.
- The hub repeats `StartTask` after each `Hello` for what it placed there and the inventory lacks.
- A task may be under a lease: it stops by itself unless a later deadline reaches it in time, and its end is
  `lease_ended`. Deadlines are on the **agent's** boot clock, of which `Hello` and each `Heartbeat` carry a reading. The
  hub adds to a reading the time that was left when it received it; the reading was older by then, so a slow network
  makes a deadline earlier and never later. A new `Hello` voids earlier readings: the node may have been restarted.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct

from harch.base.http.limits import FRAME_BYTES_MAX as FRAME_BYTES_MAX
from harch.sovereignty.tags import DataObject
from harch.workloads.lifecycle import ExitReason
from harch.workloads.lifecycle import TaskArtifact as TaskArtifact
from harch.workloads.spec import Artifact, Environment

# 2: tags of data; an agent that cannot check them must not be given any.
# 3: leases; an agent that cannot enforce them must not be given work of other hubs.
# 4: content; an agent that cannot fetch it must not be given work that needs code, environments or images.
PROTOCOL_VERSION = 4
HEARTBEAT_S = 2.0
AGENT_LOST_AFTER_S = 10.0  # no frame for so long: no new work for its nodes; nothing is evicted


class TaskKey(Struct, frozen=True, array_like=True, gc=False):
    workload_id: str
    attempt: int
    rank: int


class ContentUse(StrEnum):
    CODE = "code"  # its working folder begins with it
    DATA = "data"  # read-only at $HARCH_DATA/NAME
    IMAGE = "image"  # an OCI layout or archive that it runs in


class TaskContent(Struct, frozen=True, array_like=True, gc=False):
    """A tree that must be on the node before the task starts. The agent asks its hub for it, by the data object."""

    data_id: str
    name: str
    digest: str
    use: ContentUse


class TaskSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """All that an agent needs to run one task. Secrets travel here and are written to files, never to logs."""

    key: TaskKey
    name: str
    tenant: str
    node_id: str
    gpu_ids: tuple[str, ...]
    gpu_indexes: tuple[int, ...]
    gpus_modelled: bool
    command: tuple[str, ...] = ()
    modelled_duration_s: float | None = None  # no process; the agent only keeps time
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    working_dir: str | None = None
    cpus: float = 1
    memory_gb: float = 1
    max_duration_s: float | None = None
    stop_grace_s: float = 10
    world_size: int = 1
    type: str = ""  # of the workload, for telemetry and for the task itself; empty from older hubs
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    country: str = ""  # where the scheduler believes it runs; the agent checks against its own
    countries_allowed: tuple[str, ...] = ()
    data: tuple[DataObject, ...] = ()  # what it reads, with tags; the agent checks them before anything is loaded
    scrub_after: bool = False  # what it leaves may not rest here: deleted when it ends, however it ends
    # On the agent's boot clock: TERM `stop_grace_s` before it, KILL when it is reached. A task that would have to be
    # told to stop at once is not started and ends as `lease_ended`. None: nobody else has a claim to this work.
    lease_until_s: float | None = None
    trace: str = ""  # a `traceparent`, if the work is traced
    contents: tuple[TaskContent, ...] = ()
    environment: Environment | None = None
    image: str = ""  # a reference; empty: none, or one of `contents`
    artifacts: tuple[Artifact, ...] = ()  # asked of rank 0 only

    @property
    def needs_preparation(self) -> bool:
        """Something has to be fetched or built first, which may take minutes."""
        return bool(self.contents or self.environment is not None or self.image)


# Hub to agent


class StartTask(Struct, frozen=True, tag="start"):
    task: TaskSpec


class StopTask(Struct, frozen=True, tag="stop"):
    """TERM, then KILL after `grace_s`. Harmless for unknown keys: the agent answers `TaskEnded(lost)`."""

    key: TaskKey
    grace_s: float
    reason: ExitReason = ExitReason.STOPPED
    scrub: bool = False  # also delete its working folder and checkpoints, before the end is reported


class PauseTask(Struct, frozen=True, tag="pause"):
    key: TaskKey


class ResumeTask(Struct, frozen=True, tag="resume"):
    key: TaskKey


class ExtendLease(Struct, frozen=True, tag="extend_lease"):
    """Later deadlines on the agent's boot clock. Shortens none, revives nothing that was told to stop, and gives no
    lease to a task without one. Not answered: the end of a task tells that it came too late."""

    leases: tuple[tuple[TaskKey, float], ...]


class Forget(Struct, frozen=True, tag="forget"):
    """The hub has the end of this task on disk; the agent may drop everything but its log."""

    key: TaskKey


class ReadTaskLog(Struct, frozen=True, tag="read_log"):
    """Asks for up to `bytes_max` of a task's log from `offset` (negative: from the end).

    `since_s`: not what was written before this Unix time, by the clock of the node.
    """

    request_id: int
    key: TaskKey
    offset: int
    bytes_max: int
    since_s: float | None = None
    preparation: bool = False  # of what was fetched and built before it started, instead of its own output


class SnapshotFiles(Struct, frozen=True, tag="snapshot_files"):
    """Makes a tree of what is at `path` below the working folder of a task, running or ended, and uploads it."""

    request_id: int
    key: TaskKey
    path: str


class PlaceFiles(Struct, frozen=True, tag="place_files"):
    """Fetches a tree from the hub by `ref` and puts it at `path` below the working folder of a task that runs."""

    request_id: int
    key: TaskKey
    path: str
    ref: str
    digest: str


class AgentRefused(Struct, frozen=True, tag="refused"):
    """The hub will not work with this agent; the agent logs the reason and exits."""

    code: str
    message: str


HubMessage = (
    StartTask
    | StopTask
    | PauseTask
    | ResumeTask
    | ExtendLease
    | Forget
    | ReadTaskLog
    | SnapshotFiles
    | PlaceFiles
    | AgentRefused
)

# Agent to hub


class KnownTask(Struct, frozen=True, kw_only=True):
    """`running`: the agent has it and its end is still to come. One that is `preparing` has not started yet."""

    key: TaskKey
    running: bool
    started_at: datetime | None = None
    preparing: bool = False


class AgentHello(Struct, frozen=True, kw_only=True, tag="hello"):
    """First message of a connection. `node_ids` empty: all nodes of the hub."""

    version: int
    agent_id: str
    country: str
    node_ids: tuple[str, ...]
    process_slots: int
    address: str
    gang_ports: tuple[int, int]
    features: dict[str, str]  # e.g. sandbox: bubblewrap, cgroup: v1
    tasks: tuple[KnownTask, ...]
    boot_s: float = 0.0  # the agent's boot clock; older versions have none and must still be understood to be refused


class AgentHeartbeat(Struct, frozen=True, tag="heartbeat"):
    """Every `HEARTBEAT_S`, however much else is said: the hub needs fresh readings of the agent's boot clock."""

    boot_s: float


class TaskPreparing(Struct, frozen=True, kw_only=True, tag="preparing"):
    """What a task that has not started yet is waiting for. Told at each new step, and every few seconds."""

    key: TaskKey
    step: str  # e.g. `code`, `data corpus`, `environment`, `image`
    detail: str = ""  # for people, e.g. `45 of 120 MB`


class TaskStarted(Struct, frozen=True, kw_only=True, tag="started"):
    key: TaskKey
    at: datetime


class TaskEnded(Struct, frozen=True, kw_only=True, tag="ended"):
    key: TaskKey
    reason: ExitReason
    at: datetime
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    scrubbed: bool = False  # its working folder and checkpoints are deleted
    artifacts: tuple[TaskArtifact, ...] = ()  # on the hub's disk already
    artifacts_lost: tuple[str, ...] = ()  # "NAME: why" of each that could not be kept


class TaskLogChunk(Struct, frozen=True, kw_only=True, tag="log"):
    """`offset` is where `data` starts; offsets count all bytes ever written, also those rotated away."""

    request_id: int
    offset: int
    data: bytes
    eof: bool  # the task has ended and this is the last of its log


class FilesAnswer(Struct, frozen=True, kw_only=True, tag="files"):
    """To `SnapshotFiles`, with the tree, and to `PlaceFiles`; or the error that a person should see."""

    request_id: int
    digest: str = ""
    size_bytes: int = 0
    files: int = 0
    code: str = ""  # of the error; empty: it went well
    message: str = ""
    hint: str = ""


AgentMessage = AgentHello | AgentHeartbeat | TaskPreparing | TaskStarted | TaskEnded | TaskLogChunk | FilesAnswer

_encode = msgspec.msgpack.Encoder().encode
_decode_hub = msgspec.msgpack.Decoder(list[HubMessage]).decode
_decode_agent = msgspec.msgpack.Decoder(list[AgentMessage]).decode


def encode_frame(messages: list[HubMessage] | list[AgentMessage]) -> bytes:
    return _encode(messages)


def decode_hub_frame(frame: bytes) -> list[HubMessage]:
    """What the agent receives. Raises `msgspec.DecodeError` for anything else."""
    return _decode_hub(frame)


def decode_agent_frame(frame: bytes) -> list[AgentMessage]:
    """What the hub receives. Raises `msgspec.DecodeError` for anything else."""
    return _decode_agent(frame)
