"""What does a hub answer about work? A workload, how its tasks ended, and the work of all hubs.

A word that hubs may add to (a state, a reason) is a `str` here: a client reads what a newer hub sends. Hubs narrow it.
"""

# harch: pure

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct, field

from harch.wire.carbon import CarbonChoice
from harch.wire.pages import Metadata, Pagination

FINAL_STATUSES = frozenset({"completed", "failed", "cancelled"})
_ENDED_BY_OTHERS = frozenset({"stopped", "lost", "agent_shutdown", "lease_ended"})  # not the task's own doing
_SIGNAL_EXIT_BASE = 128  # what shells answer for a process that a signal ended


class TaskPlacement(Struct, frozen=True, kw_only=True, gc=False):
    """Where one task of a workload runs, and on which GPUs of that node."""

    rank: int
    node_id: str
    gpu_ids: tuple[str, ...]


class TaskEnd(Struct, frozen=True, kw_only=True, gc=False):
    """How one task ended: `reason` is `exited`, `signalled`, `out_of_memory`, `timeout`, `stopped`, …"""

    rank: int
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    ended_at: datetime | None = None


class Workload(Struct, frozen=True, kw_only=True):
    """A workload as its hub sees it now. `spec` holds our fields and the public clients', theirs as written.

    `hub_id` owns it for life; `runner_hub` runs it, or ran it last: another one if it was lent, under lease `epoch`.
    `guest`: it is here for its owner, and this hub is the runner. `placement` and `nodes` are at the runner.
    """

    id: str
    name: str
    type: str = ""
    status: str
    created_at: datetime | None = None
    updated_at: datetime | None = None
    metadata: Metadata
    spec: dict[str, object] = {}
    hub_id: str | None = None
    runner_hub: str = ""
    epoch: int = 0
    borrowed: bool = field(default=False, name="guest")
    tenant: str = ""
    scheduling_class: str = ""  # whose turn it is: as asked for, else by its type
    attempt: int = 0
    gpus_total: int = 0
    modelled: bool = False
    placement: tuple[TaskPlacement, ...] = ()
    nodes: tuple[str, ...] = ()
    placement_why: str = ""
    task_ends: tuple[TaskEnd, ...] = ()
    stopping: bool = False
    stop_reason: str = ""
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error_message: str | None = None
    retry_count: int = 0
    carbon: CarbonChoice | None = None  # what was decided about its power, and promised; see `spec.carbon` for wishes
    carbon_metrics: None = None
    trace_id: str = ""  # of its trace in SENTINEL; empty if it is not traced
    unheard_s: float | None = None  # how long nothing was heard of it at its runner, if that is long
    pending_reason: str = ""  # in a few words, as a list shows it; `why` has all of it
    artifacts_lost: tuple[str, ...] = ()  # "NAME: why" of each that could not be kept; the work itself has not failed
    preparing: str = ""  # what is fetched or built for it now, e.g. `environment: 12 packages`; it starts after that

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


class SilentHub(Struct, frozen=True, kw_only=True):
    """A hub whose work is not in the list, and what was last known of it."""

    hub_id: str
    why: str = ""
    age_s: float | None = None  # of `workloads`; None: it was never heard
    workloads: dict[str, int] = {}  # count by state, as it last said


W = TypeVar("W", bound=Workload)


class FederatedPage(Struct, Generic[W], frozen=True, kw_only=True):
    """`silent_hubs` did not answer: their work is missing here, and is counted as it was when they were last heard.

    `complete` is false if hubs are silent, or if one of them has more work than it tells at once.
    """

    items: list[W]
    total: int = 0
    pagination: Pagination = Pagination()
    silent_hubs: list[SilentHub] = []
    complete: bool = True
