"""How does a hub run the work of another? The runner's side: bid with GPUs in hand, take the grant, keep the lease.

A guest is a workload whose owner is another hub. It has one attempt here: whatever would make it wait again hands it
back, and its owner decides. It is reported until the owner has its end on disk.
"""

# harch: pure

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec.structs import replace

from harch.federation.offers import (
    LEASE_S_MAX,
    LEASE_S_MIN,
    LEASES_PER_MESSAGE_MAX,
    NEEDS_PER_REQUEST_MAX,
    BidRequest,
    Bids,
    CapacityBid,
    DropBids,
    Grant,
    Granted,
    Grants,
    KeptContent,
    LeaseRenewal,
    LeaseRenewed,
    OrderKind,
    OwnerOrder,
    Reports,
    ReportsBooked,
    WorkLease,
    WorkReport,
    renew_at_s,
)
from harch.hub.audit import drafts
from harch.hub.jobs import commands, placement
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.data_commands import artifact_id, output_ids
from harch.hub.jobs.leases import BorrowedLease, MadeBid
from harch.hub.jobs.transaction import Transaction
from harch.hub.store.records import CatalogEntry
from harch.placement.request import PlacementRequest
from harch.sovereignty.tags import DataObject
from harch.workloads.lifecycle import State, Workload

BID_S = 2.0  # how long GPUs are held for a bid
BIDS_MAX = 2048  # open at a time; beyond that the hub asks for patience
BUSY_S = 1.0
ESTIMATES_MAX = 8  # per ask: each costs milliseconds
START_UNKNOWN_S = 3600.0
TRACE_LENGTH_MAX = 128


def bid(tx: Transaction, owner: str, bid_request: BidRequest) -> None:
    lending, scheduler = tx.state.lending, tx.state.scheduler
    if (
        tx.state.closed
        or len(lending.bids) + len(bid_request.needs) > BIDS_MAX
        or len(bid_request.needs) > NEEDS_PER_REQUEST_MAX
    ):
        busy_s = 30.0 if tx.state.closed else BUSY_S
        tx.emit(fx.SendPeer(owner, Bids(number=bid_request.number, bids=(), busy_s=busy_s)))
        return
    bids: list[CapacityBid] = []
    refusals: dict[int, str] = {}
    in_vain: set[object] = set()  # shapes that did not fit a moment ago
    estimates = 0
    for need in bid_request.needs:
        bid_id = lending.bid_id()
        request = need.request(f"bid_{bid_id}", tenant=f"hub:{owner}", now_s=tx.now_s)
        assignment = None
        if request.shape not in in_vain:
            assignment = scheduler.hold(request, now_s=tx.now_s, until_s=tx.now_s + BID_S)
        start_in_s = 0.0
        if assignment is None:
            in_vain.add(request.shape)
            if not need.may_queue:
                refusals[need.ref] = "no room now"
                continue
            estimate = scheduler.start_estimate_s(request, now_s=tx.now_s) if estimates < ESTIMATES_MAX else None
            estimates += 1
            start_in_s = max(estimate, 1.0) if estimate is not None else START_UNKNOWN_S
        lending.bids[bid_id] = MadeBid(
            owner=owner,
            need=need,
            request=request,
            sent_s=tx.boot_s,
            expires_s=tx.boot_s + BID_S,
            assignment=assignment,
        )
        slowdown = assignment.prediction.slowdown if assignment is not None else 1.0
        bids.append(
            CapacityBid(
                ref=need.ref,
                bid_id=bid_id,
                start_in_s=start_in_s,
                slowdown=slowdown,
                carbon_g_per_kwh=tx.context.power.carbon_g_per_kwh,
                price_per_kwh=tx.context.power.price_per_kwh,
            )
        )
    tx.emit(fx.SendPeer(owner, Bids(number=bid_request.number, bids=tuple(bids), refusals=refusals)))


def dropped(tx: Transaction, owner: str, message: DropBids) -> None:
    for bid_id in message.bid_ids:
        made = tx.state.lending.bids.get(bid_id)
        if made is not None and made.owner == owner:
            release(tx, bid_id)


def release(tx: Transaction, bid_id: str) -> None:
    made = tx.state.lending.bids.pop(bid_id)
    if made.assignment is not None:
        tx.state.scheduler.ended(made.request.id, now_s=tx.now_s)


def expire_bids(tx: Transaction) -> None:
    for bid_id, made in list(tx.state.lending.bids.items()):  # oldest first, all live equally long
        if made.expires_s > tx.boot_s:
            break
        release(tx, bid_id)


def take(tx: Transaction, owner: str, message: Grants) -> None:
    taken: list[WorkLease] = []
    refused: list[tuple[WorkLease, str]] = []
    for grant in message.grants:
        why = _take_one(tx, owner, grant)
        if why:
            dropped(tx, owner, DropBids((grant.bid_id,)))  # no copy of this grant may find it later
            refused.append((grant.lease, why))
        else:
            taken.append(grant.lease)
    tx.emit(fx.SendPeer(owner, Granted(taken=tuple(taken), refused=tuple(refused))))


def _take_one(tx: Transaction, owner: str, grant: Grant) -> str:
    """Why not, or nothing. A refusal is for good: the bid is gone, and only a bid makes a grant valid."""
    lending, lease = tx.state.lending, grant.lease
    known = tx.state.registry.workloads.get(lease.workload_id)
    if known is not None:
        if known.owner_hub != owner:
            return f"{lease.workload_id} belongs to {known.owner_hub}"
        if known.epoch == lease.epoch:
            return ""  # a repetition
        if known.epoch > lease.epoch:
            return f"epoch {known.epoch} was here already"
        if not known.state.is_final or known.id in lending.unbooked:
            return f"epoch {known.epoch} has not ended here yet"
    made = lending.bids.get(grant.bid_id)
    if made is None or made.owner != owner or made.expires_s <= tx.boot_s:
        return "the bid has expired"
    spec = grant.spec
    request = PlacementRequest.of(
        lease.workload_id, spec, tenant=grant.tenant, submitted_s=grant.created_at.timestamp(), hubs_allowed=None
    )
    why = _why_not(tx, grant, made, request)
    if why:
        return why
    del lending.bids[grant.bid_id]
    _keep_tags(tx, grant, owner)
    workload = Workload(
        id=lease.workload_id,
        tenant=grant.tenant,
        owner_hub=owner,
        borrowed=True,
        spec=spec,
        created_at=grant.created_at,
        updated_at=tx.now,
        attempt=grant.attempt,
        epoch=lease.epoch,
        lease_s=grant.lease_s,
        restarts=grant.restarts,
        annotations=grant.annotations,
        data_ids=tuple(data.id for data in grant.data),
        trace=grant.trace[:TRACE_LENGTH_MAX],
    )
    until_s, renew_s = made.sent_s + grant.lease_s, renew_at_s(made.sent_s, grant.lease_s)
    lending.borrowed[workload.id] = BorrowedLease(owner, until_s, renew_s)
    tx.state.registry.add_borrowed(workload)
    tx.state.guard.watch(workload)
    tx.changed(workload, "workload.borrowed", f"from {owner}, epoch {lease.epoch}: {request.describe()}")
    tx.audit(drafts.borrowed(workload, tx.state.hub.country, policy_version=tx.policy_version))
    if made.assignment is None:
        tx.enqueue(workload)
    else:
        tx.state.scheduler.hand_over(made.request.id, request, now_s=tx.now_s)
        placement.assign(tx, replace(made.assignment, request=request))
    return ""


def _why_not(tx: Transaction, grant: Grant, made: MadeBid, request: PlacementRequest) -> str:
    """Checked again here, whatever its owner believes: what was bid for, its countries, the tags of its data."""
    spec, hub = grant.spec, tx.state.hub
    if not LEASE_S_MIN <= grant.lease_s <= LEASE_S_MAX:
        return f"a lease of {grant.lease_s:g} s is not between {LEASE_S_MIN:g} and {LEASE_S_MAX:g} s"
    if tx.state.closed:
        return f"{hub.name} no longer accepts work"
    if not made.need.is_of(request):
        return "this is not what was bid for"
    tasks = () if made.assignment is None else made.assignment.tasks
    if any(task.node_id not in tx.state.agents.agent_of_node for task in tasks):
        return "an agent of the nodes that were bid for has left"
    if spec.countries_allowed and hub.country not in spec.countries_allowed:
        return f"E0902 {hub.name} is in {hub.country}"
    tagged = {ref for data in grant.data for ref in (data.id, data.name)}
    untagged = next((ref for ref in spec.reads if ref not in tagged), None)
    if untagged is not None:
        return f"E0907 {untagged} came without its tag"
    rules, kept = tx.state.guard.rules, tx.state.catalog.objects
    in_force = ((data, data if _is_news(tx, made.owner, data) else kept[data.id]) for data in grant.data)
    forbidden = next(
        (
            data
            for data, here in in_force
            if not (rules.may_process(data.tag, hub.id) and rules.may_process(here.tag, hub.id))
        ),
        None,
    )
    if forbidden is not None:
        return f"E0907 {forbidden.id} may not be read at {hub.id}"
    over_quota = tx.state.scheduler.queue.quota_rejection(request, len(tasks) or None)
    return over_quota.detail if over_quota is not None else ""


def _keep_tags(tx: Transaction, grant: Grant, owner: str) -> None:
    """The owner's catalog is the authority; here they are kept to ask the rules, under no name."""
    contents = {kept.data_id: kept.digest for kept in grant.contents}
    for data in grant.data:
        if _is_news(tx, owner, data):
            entry = CatalogEntry(
                object=data, created_at=tx.now, updated_at=tx.now, home=owner, content=contents.get(data.id, "")
            )
            tx.state.catalog.put(entry)
            tx.emit(fx.SaveData(entry))


def _is_news(tx: Transaction, owner: str, data: DataObject) -> bool:
    """If not, the tag that this hub's catalog has is the one in force here."""
    held = tx.state.catalog.entries.get(data.id)
    return held is None or (held.home == owner and held.object.tag_revision < data.tag_revision)


# How is borrowed work kept? Its leases, what owners order, and what is reported to them.


RENEW_AGAIN_S = 2.0  # an unanswered renewal is repeated
ANSWER_WITHIN_S = 60.0


def renew_due(tx: Transaction, owner: str | None = None) -> None:
    """Renews what is due; of one owner, at once (`owner`): after a restart, and when a link is back."""
    lending = tx.state.lending
    due: dict[str, list[Workload]] = defaultdict(list)
    for workload_id, lease in lending.borrowed.items():
        if lease.owner == owner or (owner is None and lease.renew_s <= tx.boot_s):
            lease.renew_s = tx.boot_s + RENEW_AGAIN_S
            due[lease.owner].append(tx.state.registry.workloads[workload_id])
    for hub_id, borrowed in due.items():
        for start in range(0, len(borrowed), LEASES_PER_MESSAGE_MAX):
            some = borrowed[start : start + LEASES_PER_MESSAGE_MAX]
            number, leases = lending.number(), tuple(WorkLease(one.id, one.epoch) for one in some)
            lending.renewals[number] = (hub_id, tx.boot_s, leases)
            tx.emit(fx.SendPeer(hub_id, LeaseRenewal(number, leases)))
            tx.emit(fx.SendPeer(hub_id, Reports(tuple(report_of(tx, one) for one in some))))


def forget_unanswered(tx: Transaction) -> None:
    """Renewals of which nothing was heard; newer ones have gone out since."""
    renewals = tx.state.lending.renewals
    while renewals:
        number, (_, sent_s, _) = next(iter(renewals.items()))
        if sent_s > tx.boot_s - ANSWER_WITHIN_S:
            return
        del renewals[number]


def renewed(tx: Transaction, owner: str, answer: LeaseRenewed) -> None:
    lending = tx.state.lending
    pending = lending.renewals.pop(answer.number, None)
    if pending is None or pending[0] != owner:
        return
    _, sent_s, leases = pending
    for lease in answer.leases:
        held = lending.borrowed.get(lease.workload_id)
        workload = tx.state.registry.workloads.get(lease.workload_id)
        if held is None or workload is None or workload.epoch != lease.epoch or lease not in leases:
            continue
        held.until_s = max(held.until_s, sent_s + workload.lease_s)
        held.renew_s = renew_at_s(sent_s, workload.lease_s)
        placement.lengthen_leases(tx, workload)
    for lease in answer.stale:
        workload = tx.state.registry.workloads.get(lease.workload_id)
        if workload is not None and workload.id in lending.borrowed and workload.epoch == lease.epoch:
            _give_up(tx, workload, f"{owner} no longer lends it")


def obey(tx: Transaction, owner: str, order: OwnerOrder) -> None:
    workload = tx.state.registry.workloads.get(order.lease.workload_id)
    if (
        workload is None
        or workload.owner_hub != owner
        or workload.epoch != order.lease.epoch
        or workload.state.is_final
    ):
        return
    match order.kind:
        case OrderKind.STOP:
            if order.scrub and not workload.scrub:
                workload.scrub = True
                tx.changed(workload)
                if workload.is_placed:
                    tx.stop_tasks(workload)
            commands.stop(tx, ev.StopRequested(workload.id, order.reason or f"{owner} requested it"))
        case OrderKind.RETURN:
            _give_up(tx, workload, order.reason or f"{owner} wants it back")
        case OrderKind.PAUSE:
            if workload.state is not State.PAUSED and not workload.stop_reason:
                commands.pause(tx, workload)
        case OrderKind.RESUME:
            if workload.state is State.PAUSED and not workload.scrub:
                commands.resume(tx, workload)


def _give_up(tx: Transaction, workload: Workload, why: str) -> None:
    if not workload.is_placed:
        tx.state.scheduler.withdraw(workload.id)
        tx.hand_back(workload, why)
    elif not workload.stop_reason:
        tx.stop_for_others(workload, why, kind="workload.returning")


def end_waiting(tx: Transaction) -> None:
    """Guests that wait here past their lease, or past their welcome. What runs is stopped by its own supervisor."""
    for workload_id, lease in list(tx.state.lending.borrowed.items()):
        workload = tx.state.registry.workloads[workload_id]
        if not workload.is_placed and (tx.state.closed or lease.until_s <= tx.boot_s):
            _give_up(
                tx, workload, "its lease has ended" if not tx.state.closed else f"{tx.state.hub.name} takes no work"
            )


# Reports


def report_of(tx: Transaction, workload: Workload) -> WorkReport:
    final = workload.state.is_final
    produced = _produced(tx, workload)
    return WorkReport(
        lease=WorkLease(workload.id, workload.epoch),
        state=workload.state,
        placement=workload.placement,
        started_at=workload.started_at,
        task_ends=workload.task_ends if final else (),
        message=workload.error_message or workload.stop_reason,
        restarts=workload.restarts,
        handed_back=workload.handed_back,
        produced=tuple(entry.object for entry in produced),
        artifacts_lost=workload.artifacts_lost if final else (),
        contents=tuple(
            KeptContent(entry.object.id, entry.content, entry.expires_at) for entry in produced if entry.content
        ),
    )


def _produced(tx: Transaction, workload: Workload) -> list[CatalogEntry]:
    if workload.state is not State.COMPLETED:
        return []
    artifacts = (artifact_id(workload, number) for number in range(len(workload.spec.artifacts)))
    found = (tx.state.catalog.entries.get(data_id) for data_id in (*output_ids(workload), *artifacts))
    return [entry for entry in found if entry is not None]


def flush_reports(tx: Transaction) -> None:
    """What changed in this event, to its owners."""
    lending = tx.state.lending
    if lending.to_report:
        _report(tx, lending.to_report.values())
        lending.to_report = {}


def repeat_ends(tx: Transaction, owner: str | None = None) -> None:
    _report(tx, [one for one in tx.state.lending.unbooked.values() if owner in (None, one.owner_hub)])


def _report(tx: Transaction, borrowed: Iterable[Workload]) -> None:
    by_owner: dict[str, list[WorkReport]] = defaultdict(list)
    for one in borrowed:
        by_owner[one.owner_hub].append(report_of(tx, one))
    for owner, reports in by_owner.items():
        for start in range(0, len(reports), LEASES_PER_MESSAGE_MAX):
            tx.emit(fx.SendPeer(owner, Reports(tuple(reports[start : start + LEASES_PER_MESSAGE_MAX]))))


def booked(tx: Transaction, owner: str, message: ReportsBooked) -> None:
    for lease in message.leases:
        workload = tx.state.lending.unbooked.get(lease.workload_id)
        if workload is not None and workload.owner_hub == owner and workload.epoch == lease.epoch:
            del tx.state.lending.unbooked[lease.workload_id]
            workload.report_due = False
            tx.changed(workload)
            tx.state.registry.finished(workload)
