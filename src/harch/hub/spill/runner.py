"""How does a hub run the work of another? The runner's side: bid with GPUs in hand, take the grant, keep the lease.

A guest is a workload whose owner is another hub. It has one attempt here: whatever would make it wait again hands it
back, and its owner decides. It is told of until the owner has its end on disk.
"""

from __future__ import annotations

from dataclasses import replace

from harch.federation.leases import LEASE_S_MAX, LEASE_S_MIN, renew_at_s
from harch.federation.offers import (
    NEEDS_PER_ASK_MAX,
    Ask,
    Bid,
    Bids,
    Drop,
    Grant,
    Granted,
    Grants,
    Lease,
)
from harch.hub import happenings as h
from harch.hub import starts
from harch.hub.audit import drafts
from harch.hub.catalog import CatalogEntry
from harch.hub.desk import Desk
from harch.hub.spill.board import GuestLease, MadeBid
from harch.placement.request import Request
from harch.workloads.lifecycle import Workload

BID_S = 2.0  # how long GPUs are held for a bid
BIDS_MAX = 2048  # open at a time; beyond that the hub asks for patience
BUSY_S = 1.0
ESTIMATES_MAX = 8  # per ask: each costs milliseconds
START_UNKNOWN_S = 3600.0
TRACE_LENGTH_MAX = 128


def bid(desk: Desk, owner: str, ask: Ask) -> None:
    board, scheduler = desk.spill, desk.scheduler
    if desk.closed or len(board.bids) + len(ask.needs) > BIDS_MAX or len(ask.needs) > NEEDS_PER_ASK_MAX:
        busy_s = 30.0 if desk.closed else BUSY_S
        desk.emit(h.SendPeer(owner, Bids(number=ask.number, bids=(), busy_s=busy_s)))
        return
    bids: list[Bid] = []
    refusals: dict[int, str] = {}
    in_vain: set[object] = set()  # shapes that did not fit a moment ago
    estimates = 0
    for need in ask.needs:
        bid_id = board.bid_id()
        request = need.request(f"bid_{bid_id}", tenant=f"hub:{owner}", now_s=desk.now_s)
        assignment = None
        if request.shape not in in_vain:
            assignment = scheduler.hold(request, now_s=desk.now_s, until_s=desk.now_s + BID_S)
        start_in_s = 0.0
        if assignment is None:
            in_vain.add(request.shape)
            if not need.may_queue:
                refusals[need.ref] = "no room now"
                continue
            estimate = scheduler.start_estimate_s(request, now_s=desk.now_s) if estimates < ESTIMATES_MAX else None
            estimates += 1
            start_in_s = max(estimate, 1.0) if estimate is not None else START_UNKNOWN_S
        board.bids[bid_id] = MadeBid(
            owner=owner,
            need=need,
            request=request,
            sent_s=desk.boot_s,
            expires_s=desk.boot_s + BID_S,
            assignment=assignment,
        )
        slowdown = assignment.prediction.slowdown if assignment is not None else 1.0
        bids.append(
            Bid(
                ref=need.ref,
                bid_id=bid_id,
                start_in_s=start_in_s,
                slowdown=slowdown,
                carbon_g_per_kwh=board.carbon_g_per_kwh,
                price_per_kwh=board.price_per_kwh,
            )
        )
    desk.emit(h.SendPeer(owner, Bids(number=ask.number, bids=tuple(bids), refusals=refusals)))


def dropped(desk: Desk, owner: str, message: Drop) -> None:
    for bid_id in message.bid_ids:
        made = desk.spill.bids.get(bid_id)
        if made is not None and made.owner == owner:
            release(desk, bid_id)


def release(desk: Desk, bid_id: str) -> None:
    made = desk.spill.bids.pop(bid_id)
    if made.assignment is not None:
        desk.scheduler.ended(made.request.id, now_s=desk.now_s)


def expire_bids(desk: Desk) -> None:
    for bid_id, made in list(desk.spill.bids.items()):  # oldest first, all live equally long
        if made.expires_s > desk.boot_s:
            break
        release(desk, bid_id)


def take(desk: Desk, owner: str, message: Grants) -> None:
    taken: list[Lease] = []
    refused: list[tuple[Lease, str]] = []
    for grant in message.grants:
        why = _take_one(desk, owner, grant)
        if why:
            dropped(desk, owner, Drop((grant.bid_id,)))  # no copy of this grant may find it later
            refused.append((grant.lease, why))
        else:
            taken.append(grant.lease)
    desk.emit(h.SendPeer(owner, Granted(taken=tuple(taken), refused=tuple(refused))))


def _take_one(desk: Desk, owner: str, grant: Grant) -> str:
    """Why not, or nothing. A refusal is for good: the bid is gone, and only a bid makes a grant valid."""
    board, lease = desk.spill, grant.lease
    known = desk.registry.workloads.get(lease.workload_id)
    if known is not None:
        if known.owner_hub != owner:
            return f"{lease.workload_id} belongs to {known.owner_hub}"
        if known.epoch == lease.epoch:
            return ""  # a repetition
        if known.epoch > lease.epoch:
            return f"epoch {known.epoch} was here already"
        if not known.state.is_final or known.id in board.unbooked:
            return f"epoch {known.epoch} has not quite ended here"
    made = board.bids.get(grant.bid_id)
    if made is None or made.owner != owner or made.expires_s <= desk.boot_s:
        return "the bid has expired"
    spec = grant.spec
    request = Request.of(
        lease.workload_id, spec, tenant=grant.tenant, submitted_s=grant.created_at.timestamp(), hubs_allowed=None
    )
    why = _why_not(desk, grant, made, request)
    if why:
        return why
    del board.bids[grant.bid_id]
    _keep_tags(desk, grant, owner)
    workload = Workload(
        id=lease.workload_id,
        tenant=grant.tenant,
        owner_hub=owner,
        guest=True,
        spec=spec,
        created_at=grant.created_at,
        updated_at=desk.now,
        attempt=grant.attempt,
        epoch=lease.epoch,
        lease_s=grant.lease_s,
        restarts=grant.restarts,
        annotations=grant.annotations,
        data_ids=tuple(data.id for data in grant.data),
        trace=grant.trace[:TRACE_LENGTH_MAX],
    )
    until_s, renew_s = made.sent_s + grant.lease_s, renew_at_s(made.sent_s, grant.lease_s)
    board.guests[workload.id] = GuestLease(owner, until_s, renew_s)
    desk.registry.add_guest(workload)
    desk.guard.watch(workload)
    desk.changed(workload, "workload.borrowed", f"from {owner}, epoch {lease.epoch}: {request.describe()}")
    desk.audit(drafts.borrowed(workload, desk.hub.country, policy_version=desk.policy_version))
    if made.assignment is None:
        desk.enqueue(workload)
    else:
        desk.scheduler.hand_over(made.request.id, request, now_s=desk.now_s)
        starts.assign(desk, replace(made.assignment, request=request))
    return ""


def _why_not(desk: Desk, grant: Grant, made: MadeBid, request: Request) -> str:
    """Checked again here, whatever its owner believes: what was bid for, its countries, the tags of its data."""
    spec, hub = grant.spec, desk.hub
    if not LEASE_S_MIN <= grant.lease_s <= LEASE_S_MAX:
        return f"a lease of {grant.lease_s:g} s is not between {LEASE_S_MIN:g} and {LEASE_S_MAX:g} s"
    if desk.closed:
        return f"{hub.name} takes no work any more"
    if not made.need.is_of(request):
        return "this is not what was bid for"
    tasks = () if made.assignment is None else made.assignment.tasks
    if any(task.node_id not in desk.agents.agent_of_node for task in tasks):
        return "an agent of the nodes that were bid for has left"
    if spec.countries_allowed and hub.country not in spec.countries_allowed:
        return f"E0902 {hub.name} stands in {hub.country}"
    if len(spec.data) and not grant.data:
        return "E0907 its data came without tags"
    rules = desk.guard.rules
    forbidden = next((data for data in grant.data if not rules.may_process(data.tag, hub.id)), None)
    if forbidden is not None:
        return f"E0907 {forbidden.id} may not be read at {hub.id}"
    over_quota = desk.scheduler.queue.quota_rejection(request, len(tasks) or None)
    return over_quota.detail if over_quota is not None else ""


def _keep_tags(desk: Desk, grant: Grant, owner: str) -> None:
    """The owner's catalog is the authority; here they are kept to ask the rules, under no name."""
    for data in grant.data:
        held = desk.catalog.entries.get(data.id)
        if held is None or (held.home == owner and held.object.tag_revision < data.tag_revision):
            entry = CatalogEntry(object=data, created_at=desk.now, updated_at=desk.now, home=owner)
            desk.catalog.put(entry)
            desk.emit(h.SaveData(entry))
