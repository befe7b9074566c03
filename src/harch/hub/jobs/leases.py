"""What does a hub remember of work that it lends and borrows? In memory; what must survive is on the workloads.

Times are seconds of this hub's boot clock: leases are about how long, not about what time it is.
"""

# harch: pure

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from harch.federation.bidding import PeerOffer
from harch.federation.offers import Grant, LeaseTerms, Need, WorkLease
from harch.hub.views import PeerView
from harch.placement.plan import GpuAssignment
from harch.placement.request import PlacementRequest
from harch.workloads.lifecycle import Workload

SILENT_SHARE = (
    0.5  # of its lease: a peer renews after a third, so work of which nobody heard for longer is said to be so
)
FIRST_TRY_S = 0.1  # work that waits longer than a round of placement takes is offered to others
RETRY_S, RETRY_S_MAX = 1.0, 10.0


@dataclass(slots=True)
class Auction:
    """Peers were asked about one waiting workload."""

    waits_for: set[str]
    ends_s: float
    offers: list[PeerOffer] = field(default_factory=list)


@dataclass(slots=True)
class GivenLease:
    """Own work that a peer runs. `grant` until it was answered."""

    runner: str
    epoch: int
    confirmed_s: float  # when the peer last had our word
    grant: Grant | None = None
    reported_s: float = -math.inf  # when the peer last reported on it

    def silent_s(self, boot_s: float) -> float:
        """How long nothing has been heard of it."""
        return boot_s - max(self.confirmed_s, self.reported_s)


@dataclass(slots=True)
class MadeBid:
    """What this hub offered to a peer. Without an assignment the work would wait in the queue here."""

    owner: str
    need: Need
    request: PlacementRequest
    sent_s: float
    expires_s: float
    assignment: GpuAssignment | None


@dataclass(slots=True)
class BorrowedLease:
    """A peer's work here. After a restart it is unconfirmed: what runs goes on, nothing is started."""

    owner: str
    until_s: float = -math.inf
    renew_s: float = -math.inf  # when to ask for more


@dataclass
class LendingRegistry:
    """`lifetime` names this run of the machine, so that bids of an earlier one are never taken for its own."""

    terms: LeaseTerms = field(default_factory=LeaseTerms)
    lifetime: str = ""
    enabled: bool = False  # there are other hubs
    peers: dict[str, PeerView] = field(default_factory=dict)
    # As owner
    auctions: dict[str, Auction] = field(default_factory=dict)
    bid_requests: dict[tuple[str, int], tuple[str, ...]] = field(
        default_factory=dict
    )  # (peer, number): workloads by ref
    busy_until_s: dict[str, float] = field(default_factory=dict)  # peers that asked for patience
    given: dict[str, GivenLease] = field(default_factory=dict)
    answers: dict[str, dict[str, str]] = field(default_factory=dict)  # why peers said no, of what still waits
    # As runner
    bids: dict[str, MadeBid] = field(default_factory=dict)
    borrowed: dict[str, BorrowedLease] = field(default_factory=dict)
    renewals: dict[int, tuple[str, float, tuple[WorkLease, ...]]] = field(default_factory=dict)  # peer, when sent
    unbooked: dict[str, Workload] = field(default_factory=dict)  # guests that ended, until the owner has it on disk
    to_report: dict[str, Workload] = field(default_factory=dict)  # changed in this event
    next_look_s: float = -math.inf  # at what changes slowly
    _due: list[tuple[float, str]] = field(default_factory=list)
    _tries: dict[str, int] = field(default_factory=dict)
    _numbers: int = 0

    def unheard_s(self, workload: Workload, boot_s: float) -> float | None:
        """How long nothing was heard of own work that another hub runs, if that is long; else None."""
        given = self.given.get(workload.id)
        silent_s = 0.0 if given is None else given.silent_s(boot_s)
        return silent_s if silent_s > SILENT_SHARE * workload.lease_s else None

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def bid_id(self) -> str:
        return f"{self.lifetime}-{self.number()}"

    # Who might go elsewhere

    def waits(self, workload_id: str, boot_s: float) -> None:
        if self.enabled:
            heapq.heappush(self._due, (boot_s + FIRST_TRY_S, workload_id))

    def try_later(self, workload_id: str, boot_s: float) -> None:
        tries = self._tries[workload_id] = self._tries.get(workload_id, 0) + 1
        heapq.heappush(self._due, (boot_s + min(RETRY_S * 2 ** (tries - 1), RETRY_S_MAX), workload_id))

    def take_due(self, boot_s: float, limit: int) -> list[str]:
        found: list[str] = []
        while self._due and self._due[0][0] <= boot_s and len(found) < limit:
            found.append(heapq.heappop(self._due)[1])
        return found

    def is_first_try(self, workload_id: str) -> bool:
        return workload_id not in self._tries

    def settled(self, workload_id: str) -> None:
        """It waits no longer."""
        self._tries.pop(workload_id, None)
        self.answers.pop(workload_id, None)

    @property
    def is_idle(self) -> bool:
        """Whether only an event can give it anything to do."""
        return not (self._due or self.auctions or self.bids or self.given or self.borrowed or self.unbooked)

    def is_due(self, boot_s: float) -> bool:
        return bool(self._due) and self._due[0][0] <= boot_s
