"""What do hubs say to each other about work? Ask, bid, grant, report, renew; each message harmless when repeated.

    owner                               runner
      Ask      resource shapes only  ->            only to hubs that may run the work (sovereignty comes first)
                                     <-  Bids      holds the GPUs for a moment, or says when it could
      (commits the epoch)
      Grants   the work itself       ->  (commits the guest)
                                     <-  Granted   or refused: that epoch will never run there
                                     <-  Reports   running, ended, handed back; an end is repeated until `Booked`
      Booked                         ->
                                     <-  Renewal   every third of the lease
      Renewed                        ->            or stale: stop it
      Order    stop, pause, ...      ->

A lease is `(workload, epoch)`. The owner counts the epochs, writes each to disk before anybody hears of it, and never
uses one twice; the runner takes a grant only for a bid that it still remembers. So a grant that was delayed, repeated
or answered with no can never start anything later.
"""

# harch: pure

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from harch.placement.request import PlacementRequest
from harch.sovereignty.tags import DataObject
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import State, TaskEnd
from harch.workloads.spec import Resources, SchedulingClass, Topology, WorkloadSpec

NEEDS_PER_REQUEST_MAX = 256
LEASES_PER_MESSAGE_MAX = 1000


class WorkLease(Struct, frozen=True, array_like=True, gc=False):
    workload_id: str
    epoch: int


class Need(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The shape of a piece of work, nothing else of it. `may_queue`: its home can never run it, so it will wait."""

    ref: int
    turn_class: SchedulingClass
    needs: Resources
    tasks: int = 1
    tasks_min: int = 1
    degrade_after_s: float = 0.0
    priority: int = 1
    topology: Topology = Topology()
    runs_process: bool = False
    duration_s_max: float | None = None
    waited_s: float = 0.0
    may_queue: bool = False
    trace: str = ""  # a `traceparent`, if the work is traced; hubs of older versions send none

    @classmethod
    def of(cls, ref: int, request: PlacementRequest, *, now_s: float, may_queue: bool, trace: str = "") -> Need:
        return cls(
            ref=ref,
            turn_class=request.turn_class,
            needs=request.needs,
            tasks=request.tasks,
            tasks_min=request.tasks_min,
            degrade_after_s=request.degrade_after_s,
            priority=request.priority,
            topology=request.topology,
            runs_process=request.runs_process,
            duration_s_max=request.duration_s_max,
            waited_s=max(0.0, now_s - request.submitted_s),
            may_queue=may_queue,
            trace=trace,
        )

    def request(self, request_id: str, *, tenant: str, now_s: float) -> PlacementRequest:
        """As the runner's scheduler sees it until the work itself comes."""
        return PlacementRequest(
            id=request_id,
            tenant=tenant,
            turn_class=self.turn_class,
            priority=self.priority,
            needs=self.needs,
            tasks=self.tasks,
            topology=self.topology,
            countries_allowed=(),
            runs_process=self.runs_process,
            submitted_s=now_s - self.waited_s,
            tasks_min=self.tasks_min,
            degrade_after_s=self.degrade_after_s,
            duration_s_max=self.duration_s_max,
            preemptible=False,
        )

    def is_of(self, request: PlacementRequest) -> bool:
        """Whether this is the work that was bid for."""
        return (self.needs, self.tasks, self.topology, self.runs_process) == (
            request.needs,
            request.tasks,
            request.topology,
            request.runs_process,
        )


class BidRequest(Struct, frozen=True, tag="ask"):
    number: int
    needs: tuple[Need, ...]


class CapacityBid(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """`start_in_s` 0: the GPUs are held. Otherwise an estimate of when it could start there (*modelled*)."""

    ref: int
    bid_id: str
    start_in_s: float = 0.0
    slowdown: float = 1.0  # predicted for its GPUs there (modelled)
    carbon_g_per_kwh: float | None = None
    price_per_kwh: float | None = None


class Bids(Struct, frozen=True, kw_only=True, tag="bids"):
    """The answer to one ask. What is not in it is a no; `busy_s`: do not ask again before."""

    number: int
    bids: tuple[CapacityBid, ...]
    refusals: dict[int, str] = {}  # why not, by `ref`
    busy_s: float = 0.0


class DropBids(Struct, frozen=True, tag="drop"):
    """These bids were not taken."""

    bid_ids: tuple[str, ...]


class KeptContent(Struct, frozen=True, array_like=True, gc=False):
    """The tree that a data object consists of, and how long it is kept."""

    data_id: str
    digest: str
    expires_at: datetime | None = None


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The work itself, under a lease. Its data come with their tags, so that the runner asks its own rules; of those
    that consist of files it learns the trees, which it fetches from a hub that has them."""

    bid_id: str
    lease: WorkLease
    lease_s: float
    attempt: int
    tenant: str
    spec: WorkloadSpec
    created_at: datetime
    restarts: int = 0
    data: tuple[DataObject, ...] = ()
    contents: tuple[KeptContent, ...] = ()
    annotations: dict[str, str] = {}
    trace: str = ""


class Grants(Struct, frozen=True, tag="grants"):
    grants: tuple[Grant, ...]


class Granted(Struct, frozen=True, kw_only=True, tag="granted"):
    """Taken and on the runner's disk, or refused for good."""

    taken: tuple[WorkLease, ...] = ()
    refused: tuple[tuple[WorkLease, str], ...] = ()


class WorkReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a guest is. `handed_back`: it has stopped here and its owner decides again."""

    lease: WorkLease
    state: State
    placement: tuple[TaskPlacement, ...] = ()
    started_at: datetime | None = None
    task_ends: tuple[TaskEnd, ...] = ()
    message: str = ""
    restarts: int = 0
    handed_back: bool = False
    produced: tuple[DataObject, ...] = ()
    contents: tuple[KeptContent, ...] = ()  # of those of `produced` that consist of files
    artifacts_lost: tuple[str, ...] = ()

    @property
    def is_last(self) -> bool:
        return self.handed_back or self.state.is_final


class Reports(Struct, frozen=True, tag="reports"):
    reports: tuple[WorkReport, ...]


class ReportsBooked(Struct, frozen=True, tag="booked"):
    """These ends are on the owner's disk; the runner may forget them."""

    leases: tuple[WorkLease, ...]


class LeaseRenewal(Struct, frozen=True, tag="renew"):
    """`number` tells the runner when it asked: the lease counts from then, not from when the answer comes."""

    number: int
    leases: tuple[WorkLease, ...]


class LeaseRenewed(Struct, frozen=True, kw_only=True, tag="renewed"):
    number: int
    leases: tuple[WorkLease, ...]
    stale: tuple[WorkLease, ...] = ()  # no longer the owner's word: stop them


class OrderKind(StrEnum):
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    RETURN = "return"  # stop in an orderly way and hand it back


class OwnerOrder(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="order"):
    lease: WorkLease
    kind: OrderKind
    reason: str = ""
    scrub: bool = False


LendingMessage = (
    BidRequest | Bids | DropBids | Grants | Granted | Reports | ReportsBooked | LeaseRenewal | LeaseRenewed | OwnerOrder
)


# How long may a hub run another's work? Lease terms, and the two clocks that must never be confused.
#
# No clock is shared between hubs; only the *rate* of each is trusted, to within `drift`. The runner counts its lease
# from
# the moment it **sent** its bid or its renewal, the owner from the moment it **wrote** the grant or answered, which is
# later. So the runner's lease always ends first, and by at least the margin.


RENEWALS_PER_LEASE = 3
LEASE_S_MIN, LEASE_S_MAX = 3.0, 86_400.0
DRIFT_MAX = 1e-3  # of the rate of a boot clock


class LeaseTerms(Struct, frozen=True, kw_only=True):
    """What an owner grants. Each lease carries its length, so hubs need not agree on these, and may change them."""

    batch_s: float = 600.0
    service_s: float = 30.0  # inference: whoever waits for an answer cannot wait ten minutes for a lost hub
    margin_s: float = 5.0

    def length_s(self, spec: WorkloadSpec) -> float:
        return self.service_s if spec.turn_class is SchedulingClass.INFERENCE else self.batch_s

    def covers_grace(self, spec: WorkloadSpec) -> bool:
        """A task is told to stop so long before its lease ends; a renewal must come before that."""
        return spec.stop_grace_s <= self.length_s(spec) / 2

    def owner_waits_s(self, length_s: float) -> float:
        """From its last word to the runner: after so long, the runner has surely stopped the work."""
        return length_s * (1 + 2 * DRIFT_MAX) + self.margin_s


def renew_at_s(sent_s: float, length_s: float) -> float:
    return sent_s + length_s / RENEWALS_PER_LEASE
