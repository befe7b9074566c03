"""What does a hub answer? The values that the client returns.

Fields that a newer hub adds are ignored; fields that an older one lacks have defaults: their versions may differ.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct

from harch.sdk.carbon_types import CarbonChoice

FINAL_STATUSES = frozenset({"completed", "failed", "cancelled"})
_ENDED_BY_OTHERS = frozenset({"stopped", "lost", "agent_shutdown", "lease_ended"})  # not the task's own doing
_SIGNAL_EXIT_BASE = 128  # what shells answer for a process that a signal ended

T = TypeVar("T")


class Metadata(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    created_at: datetime
    updated_at: datetime | None = None
    labels: dict[str, str] = {}


class TaskPlacement(Struct, frozen=True, kw_only=True):
    """Where one task runs, and on which GPUs of that node."""

    rank: int
    node_id: str
    gpu_ids: tuple[str, ...] = ()


class TaskEnd(Struct, frozen=True, kw_only=True):
    """How one task ended: `reason` is `exited`, `signalled`, `out_of_memory`, `timeout`, `stopped`, …"""

    rank: int
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    ended_at: datetime | None = None


class Workload(Struct, frozen=True, kw_only=True):
    """A workload as its hub sees it now."""

    id: str
    name: str
    status: str
    metadata: Metadata
    type: str = ""
    spec: dict[str, object] = {}
    hub_id: str | None = None  # who owns it, for life
    runner_hub: str = ""  # who runs it, or ran it last
    epoch: int = 0  # counts its leases
    guest: bool = False  # it is at the asked hub for its owner
    tenant: str = ""
    scheduling_class: str = ""
    attempt: int = 0
    placement: tuple[TaskPlacement, ...] = ()
    nodes: tuple[str, ...] = ()  # of its placement
    task_ends: tuple[TaskEnd, ...] = ()
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error_message: str | None = None
    retry_count: int = 0
    gpus_total: int = 0
    modelled: bool = False  # no process runs; its GPUs are held for `modelled_duration_s`
    carbon: CarbonChoice | None = None  # what was decided about its power, and promised
    trace_id: str = ""  # of its trace in SENTINEL; empty if it is not traced
    unheard_s: float | None = None  # how long nothing was heard of it at its runner, if that is long
    stopping: bool = False  # asked to stop; the status changes when the last task has ended

    @property
    def is_final(self) -> bool:
        return self.status in FINAL_STATUSES

    @property
    def exit_code(self) -> int | None:
        """What a shell would answer: of the lowest rank that went wrong; None while it has not ended."""
        if not self.is_final:
            return None
        if self.status == "completed":
            return 0
        for end in sorted(self.task_ends, key=lambda end: end.rank):
            if end.reason in _ENDED_BY_OTHERS:
                continue
            if end.exit_code:
                return end.exit_code
            if end.signal:
                return _SIGNAL_EXIT_BASE + end.signal
        return 1


class Pagination(Struct, frozen=True, kw_only=True):
    total: int = 0
    page: int = 1
    per_page: int = 0
    total_pages: int = 0
    has_next: bool = False
    has_prev: bool = False


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list; `total` counts all pages."""

    items: list[T]
    total: int = 0
    pagination: Pagination = Pagination()


class RuleOutcome(Struct, frozen=True, kw_only=True):
    """One hard rule applied to one hub."""

    rule: str
    passed: bool
    detail: str = ""
    nearest_fix: str = ""


class Candidate(Struct, frozen=True, kw_only=True):
    """A node that could take a task; higher scores are better."""

    node_id: str
    gpus_free: int
    score: float
    parts: dict[str, float] = {}


class HubExplanation(Struct, frozen=True, kw_only=True):
    """One hub's answer; `source` is `live` for the hub that was asked, `summary` for what a peer last published."""

    hub_id: str
    country: str
    eligible: bool
    source: str
    age_s: float | None = None
    rules: tuple[RuleOutcome, ...] = ()
    never: bool = False  # a rule says no that waiting will not cure
    candidates: tuple[Candidate, ...] = ()


class Explanation(Struct, frozen=True, kw_only=True):
    """Why here, why not there, why not yet. `verdict`: placed, fits_now, must_wait, never_fits or finished."""

    subject: str
    verdict: str
    sentence: str
    hubs: tuple[HubExplanation, ...] = ()
    turn: str = ""  # where it stands in the queue
    kept_free: str = ""  # what is reserved for it, or before it
    decision: dict[str, float] = {}  # the parts of the score that its node had, if placed
    predicted_slowdown: float | None = None  # modelled, of communication; 1 is the best that its hub could do
    runner_hub: str = ""  # that has it, or had it last, if it is not the asked one
    power: tuple[str, ...] = ()  # where and when it runs for cleaner power, and what that rests on
    placement: tuple[TaskPlacement, ...] = ()

    @property
    def nearest_fix(self) -> str:
        """The smallest change that would let the asked hub start it; empty if it says yes, or has no such thing."""
        asked = (rule for hub in self.hubs if hub.source == "live" for rule in hub.rules)
        return next((rule.nearest_fix for rule in asked if not rule.passed), "")


class HubCapacity(Struct, frozen=True, kw_only=True):
    total_gpus: int = 0
    available_gpus: int = 0
    total_cpu_cores: float = 0
    available_cpu_cores: float = 0
    total_memory_gb: float = 0
    available_memory_gb: float = 0
    total_storage_gb: float = 0
    available_storage_gb: float = 0


class ModelCapacity(Struct, frozen=True, kw_only=True):
    """GPUs of one model at one hub."""

    model: str
    memory_gb: int = 0
    total: int = 0
    free: int = 0
    gpus_per_node_max: int = 0


class HubSummary(Struct, frozen=True, kw_only=True):
    """What the hub last told about itself."""

    grid_zone: str = ""
    status_detail: str = ""
    version: str = ""
    at: datetime | None = None
    models: tuple[ModelCapacity, ...] = ()
    nodes_total: int = 0
    nodes_up: int = 0
    process_slots_total: int = 0
    process_slots_free: int = 0
    agents: int = 0
    workloads: dict[str, int] = {}  # unfinished work that it owns, by state, wherever it runs
    lent: dict[str, int] = {}  # of those, what other hubs run
    guests: dict[str, int] = {}  # of other hubs, here for them


class Hub(Struct, frozen=True, kw_only=True):
    """A hub as seen from the one that was asked. `age_s` is the age of every figure; None: it was never heard.

    `standing` is what it says of itself while it is heard (`ready`, `cordoned`), else how it is seen (`suspected`).
    """

    id: str
    name: str
    status: str = ""
    standing: str = ""
    endpoint: str | None = None
    country: str = ""
    reachable: bool = True
    age_s: float | None = None
    own: bool = False
    provenance: str = ""
    capacity: HubCapacity = HubCapacity()
    active_workloads: int = 0
    summary: HubSummary | None = None
    error: str = ""
    rtt_ms: float | None = None  # of the link from the asked hub
    via: str = ""  # who relayed its last sign of life


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU with who holds it."""

    id: str
    hub_id: str
    node_id: str
    model: str
    status: str
    rack_id: str = ""
    index: int = 0
    memory_gb: int = 0
    island: int = 0
    pcie_switch: int = 0
    numa: int = 0
    provenance: str = ""
    free_milli: int = 1000  # thousandths that may be given
    held_milli: int = 0  # thousandths that work holds
    healthy: bool = True
    workload_id: str = ""


class Event(Struct, frozen=True, kw_only=True):
    """One line of a hub's history; `seq` grows and is where to resume from."""

    seq: int
    at: datetime
    kind: str
    subject: str = ""
    tenant: str = ""
    message: str = ""
    data: dict[str, object] = {}


class EventPage(Struct, frozen=True, kw_only=True):
    """Ask again after `next_after`; `last_seq` is the newest event that the hub has, whoever may see it."""

    items: list[Event]
    next_after: int
    last_seq: int


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Where a hub's audit chain ended at that moment; `key` is the public key that has signed it."""

    at: str
    hash: str
    hub: str
    key: str
    seq: int


class SignedCheckpoint(Struct, frozen=True, kw_only=True):
    checkpoint: Checkpoint
    signature: str


class AcceptedLoss(Struct, frozen=True, kw_only=True):
    """Entries that a hub lost once, and who accepted that."""

    seq: int
    at: str
    actor: str
    found_seq: int
    lost_seq: int
    lost_hash: str = ""
    source: str = ""
    why: str = ""


class AuditLoss(Struct, frozen=True, kw_only=True):
    """`held`: the hub takes no work, because its chain lacks entries that `source` knows of."""

    held: bool
    sentence: str = ""
    found_seq: int = 0
    lost_seq: int = 0
    lost_hash: str = ""
    source: str = ""
    accepted: tuple[AcceptedLoss, ...] = ()


class SigningKey(Struct, frozen=True, kw_only=True):
    """The public half of the key that signs a hub's checkpoints."""

    key: str


class Health(Struct, frozen=True, kw_only=True):
    status: str
    version: str = ""
    timestamp: datetime | None = None


class Identity(Struct, frozen=True, kw_only=True):
    """Whose key this is."""

    id: str = ""
    name: str = ""
    tenant: str = ""
    role: str = ""
