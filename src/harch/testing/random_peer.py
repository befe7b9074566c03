"""What does another hub say? A peer that bids, lends, borrows and reports at random, by the real messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from random import Random

from harch.federation import offers as o
from harch.placement.request import PlacementRequest
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import ExitReason, State, TaskEnd
from harch.workloads.spec import WorkloadSpec

INBOX_MAX = 200


class RandomPeer:
    """`hub_id` is its own; it remembers what it was asked, what it runs for the hub, and what it has lent to it."""

    def __init__(self, random: Random, hub_id: str, other: str) -> None:
        self.random, self.hub_id, self.other = random, hub_id, other
        self._inbox: list[o.LendingMessage] = []
        self._requested: dict[int, list[WorkloadSpec]] = {}  # by number of the request: what it would lend
        self._runs: dict[o.WorkLease, o.Grant] = {}
        self._lent: dict[o.WorkLease, WorkloadSpec] = {}
        self._numbers = 0

    def receive(self, message: o.LendingMessage) -> None:
        self._inbox = [*self._inbox[-INBOX_MAX:], message]

    def speak(self, now: datetime, draw_spec: Callable[[str], WorkloadSpec]) -> o.LendingMessage | None:
        """An answer, if it was asked something; or something of its own. Some of what it heard is lost on the way."""
        if self._inbox and self.random.random() < 0.8:
            message = self._inbox.pop(0 if self.random.random() < 0.8 else self.random.randrange(len(self._inbox)))
            return None if self.random.random() < 0.1 else self._answer(message, now)
        return self.random.choice((self._request, self._report, self._order, self._renewal))(now, draw_spec)

    def _answer(self, message: o.LendingMessage, now: datetime) -> o.LendingMessage | None:
        match message:
            case o.BidRequest(number, needs):
                refs = [need.ref for need in needs]
                taken = [ref for ref in refs if self.random.random() < 0.6]
                wait_s = self.random.choice((0.0, 0.0, 30.0))
                bids = tuple(
                    o.CapacityBid(ref=ref, bid_id=f"{self.hub_id}-{number}-{ref}", start_in_s=wait_s) for ref in taken
                )
                refusals = {ref: "no room now" for ref in refs if ref not in taken}
                return o.Bids(number=number, bids=bids, refusals=refusals, busy_s=self.random.choice((0, 0, 0, 1)))
            case o.Grants(grants):
                refused = tuple((grant.lease, "not today") for grant in grants if self.random.random() < 0.2)
                taken_leases = tuple(grant.lease for grant in grants if (grant.lease, "not today") not in refused)
                self._runs.update({grant.lease: grant for grant in grants if grant.lease in taken_leases})
                return o.Granted(taken=taken_leases, refused=refused)
            case o.Bids():
                return self._lend(message, now)
            case o.Granted():
                for lease, _ in message.refused:
                    self._lent.pop(lease, None)
            case o.Reports(reports):
                last = tuple(report.lease for report in reports if report.is_last)
                for lease in last:
                    self._lent.pop(lease, None)
                return o.ReportsBooked(last) if last else None
            case o.LeaseRenewal(number, leases):
                stale = tuple(lease for lease in leases if lease not in self._lent or self.random.random() < 0.05)
                return o.LeaseRenewed(number=number, leases=tuple(set(leases) - set(stale)), stale=stale)
            case o.ReportsBooked(leases):
                for lease in leases:
                    self._runs.pop(lease, None)
            case o.OwnerOrder(lease=lease) if lease in self._runs:
                return self._end(lease, State.CANCELLED, now)
            case _:
                pass
        return None

    def _lend(self, message: o.Bids, now: datetime) -> o.LendingMessage | None:
        specs = self._requested.pop(message.number, [])
        bids = [bid for bid in message.bids if bid.ref < len(specs)]
        if not bids:
            return None
        if self.random.random() < 0.2:
            return o.DropBids(tuple(bid.bid_id for bid in bids))
        grants = []
        for bid in bids:
            self._numbers += 1
            lease = o.WorkLease(f"wl_{self.hub_id}_{self._numbers}", 1)
            self._lent[lease] = specs[bid.ref]
            grants.append(
                o.Grant(
                    bid_id=bid.bid_id,
                    lease=lease,
                    lease_s=self.random.choice((20.0, 60.0)),
                    attempt=1,
                    tenant="theirs",
                    spec=specs[bid.ref],
                    created_at=now,
                )
            )
        return o.Grants(tuple(grants))

    def _request(self, now: datetime, draw_spec: Callable[[str], WorkloadSpec]) -> o.LendingMessage | None:
        self._numbers += 1
        specs = [draw_spec(f"theirs-{self._numbers}-{ref}") for ref in range(self.random.choice((1, 1, 2, 4)))]
        now_s = now.timestamp()
        needs = [
            o.Need.of(ref, PlacementRequest.of("need", spec, submitted_s=now_s), now_s=now_s, may_queue=bool(ref % 2))
            for ref, spec in enumerate(specs)
        ]
        self._requested[self._numbers] = specs
        return o.BidRequest(self._numbers, tuple(needs))

    def _report(self, now: datetime, _draw: object) -> o.LendingMessage | None:
        """Of what it runs for the hub: it runs, has ended, or comes back."""
        if not self._runs:
            return None
        lease = self.random.choice(list(self._runs))
        if self.random.random() < 0.5:
            tasks = tuple(
                TaskPlacement(rank=rank, node_id="there", gpu_ids=()) for rank in range(self._runs[lease].spec.tasks)
            )
            return o.Reports((o.WorkReport(lease=lease, state=State.RUNNING, placement=tasks, started_at=now),))
        if self.random.random() < 0.3:
            return o.Reports((o.WorkReport(lease=lease, state=State.CANCELLED, handed_back=True, message="full"),))
        return self._end(lease, self.random.choice((State.COMPLETED, State.FAILED)), now)

    def _end(self, lease: o.WorkLease, state: State, now: datetime) -> o.LendingMessage:
        end = TaskEnd(rank=0, reason=ExitReason.EXITED, exit_code=0 if state is State.COMPLETED else 1, ended_at=now)
        return o.Reports((o.WorkReport(lease=lease, state=state, task_ends=(end,), message="it ended"),))

    def _order(self, _now: datetime, _draw: object) -> o.LendingMessage | None:
        if not self._lent:
            return None
        lease, kind = self.random.choice(list(self._lent)), self.random.choice(list(o.OrderKind))
        return o.OwnerOrder(lease=lease, kind=kind, reason="by order of the owner", scrub=self.random.random() < 0.1)

    def _renewal(self, _now: datetime, _draw: object) -> o.LendingMessage | None:
        self._numbers += 1
        return o.LeaseRenewal(self._numbers, tuple(self._runs)) if self._runs else None
