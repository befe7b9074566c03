"""What happens to a workload? Its states, the moves between them, and the record that the hub keeps."""

# harch: pure

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from harch.wire import workloads
from harch.wire.carbon import CarbonChoice
from harch.wire.workloads import TaskPlacement
from harch.workloads.spec import WorkloadSpec

# `gc=False` on the values below: a hub holds hundreds of thousands of them, none can be part of a cycle, and walking
# them in every full collection would stop the event loop for a tenth of a second.


class State(StrEnum):
    """The words of the public clients. A workload that is being stopped keeps its state until its last task ended."""

    PENDING = "pending"
    SCHEDULED = "scheduled"  # GPUs are given, the agents have not yet said that it runs
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL


FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})

MOVES: dict[State, frozenset[State]] = {
    State.PENDING: frozenset(
        # `completed`: another hub had run it to its end, and said so only when it could be heard again
        {State.SCHEDULED, State.PAUSED, State.COMPLETED, State.CANCELLED, State.FAILED}
    ),
    State.SCHEDULED: frozenset(
        {State.RUNNING, State.PAUSED, State.PENDING, State.COMPLETED, State.FAILED, State.CANCELLED}
    ),
    State.RUNNING: frozenset({State.PAUSED, State.PENDING, State.COMPLETED, State.FAILED, State.CANCELLED}),
    State.PAUSED: frozenset(
        {State.SCHEDULED, State.RUNNING, State.PENDING, State.COMPLETED, State.FAILED, State.CANCELLED}
    ),
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}


class ExitReason(StrEnum):
    """Why did a task end? Reported by the agent, never guessed by the hub."""

    EXITED = "exited"  # of itself; the exit code tells how
    SIGNALLED = "signalled"  # by a signal that HarchOS did not send
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"  # ran longer than max_duration_s
    STOPPED = "stopped"  # because the hub asked
    NOT_STARTED = "not_started"  # e.g. the command does not exist
    LOST = "lost"  # the node went down, or its supervisor was killed
    AGENT_SHUTDOWN = "agent_shutdown"  # the node was shut down in an orderly way
    LEASE_ENDED = "lease_ended"  # it ran, or was to run, for another hub, and its lease was not renewed


class TaskEnd(workloads.TaskEnd, frozen=True, kw_only=True, gc=False):
    """What goes over the wire, with a reason that is one of ours."""

    reason: ExitReason


class TaskArtifact(Struct, frozen=True, array_like=True, gc=False):
    """A result that is safe at the hub: the tree that was made of it."""

    name: str
    digest: str
    size_bytes: int
    files: int


class Workload(Struct, kw_only=True, omit_defaults=True, gc=False):
    """One workload, for life. The store holds exactly these fields; the job machine is their only writer."""

    id: str
    tenant: str
    owner_hub: str
    spec: WorkloadSpec
    created_at: datetime
    updated_at: datetime
    state: State = State.PENDING
    attempt: int = 0  # counts placements; (id, attempt) names one execution and is started at most once
    restarts: int = 0
    data_ids: tuple[str, ...] = ()  # what `spec.reads` meant when it was admitted
    placement: tuple[TaskPlacement, ...] = ()
    placement_why: str = ""
    placement_score: dict[str, float] = {}  # the parts of the score of its node, from the decision
    predicted_slowdown: float | None = None  # modelled: how much slower its GPUs talk than the best possible
    master_addr: str = ""  # where the ranks of a gang find each other
    master_port: int | None = None
    ranks_running: frozenset[int] = frozenset()
    task_ends: tuple[TaskEnd, ...] = ()
    artifacts: tuple[TaskArtifact, ...] = ()  # kept of its present attempt; data objects once it has ended well
    artifacts_lost: tuple[str, ...] = ()  # "NAME: why" of those that could not be kept
    stop_reason: str = ""  # set when a stop was asked for; the state becomes final when the last task has ended
    stop_as: State | None = None  # the state it will have then
    scrub: bool = False  # it broke a rule about data: its tasks are killed and what they wrote is deleted
    error_message: str = ""
    started_at: datetime | None = None
    completed_at: datetime | None = None
    annotations: dict[str, str] = {}
    carbon: CarbonChoice | None = None  # of the owner: where and when, for its power; None: nothing was to be decided
    hidden: bool = False  # deleted by its user: gone from lists, kept for the record
    trace: str = ""  # the `traceparent` that it came with or was given; empty: it is not traced
    # Other hubs. `owner_hub` has it for life; another runs it only under a lease, named by `(id, epoch)`.
    borrowed: bool = field(default=False, name="guest")  # of the runner: here for its owner
    home_fits: bool = True  # its owner could run it, given room
    epoch: int = 0  # counts leases, and starts at home after one; no two runs share an epoch
    leased: bool = False  # of the owner: a peer has it now
    lease_s: float = 0.0  # how long each renewal lasts
    runner_hub: str = ""  # of the owner: the peer that has it, or had it last
    runner_placement: tuple[TaskPlacement, ...] = ()  # where it runs there, as the peer reports
    report_due: bool = False  # of a guest: its end is not yet on its owner's disk
    handed_back: bool = False  # of a guest: it ended here without an end, its owner decides again

    @property
    def is_placed(self) -> bool:
        """Holds GPUs now. Finished workloads keep `placement` as a memory of where they ran."""
        return bool(self.placement) and self.state not in FINAL

    @property
    def ranks_ended(self) -> frozenset[int]:
        return frozenset(end.rank for end in self.task_ends)
