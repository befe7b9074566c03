"""How is work lent, and never twice? The owner's side of a lease: grants, reports, renewals, and its end."""

# harch: pure

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace

from harch.base.counting import counted
from harch.federation.bidding import PeerOffer
from harch.federation.offers import (
    NEEDS_PER_REQUEST_MAX,
    Grant,
    Granted,
    Grants,
    KeptContent,
    LeaseRenewal,
    LeaseRenewed,
    OrderKind,
    Reports,
    ReportsBooked,
    WorkLease,
    WorkReport,
)
from harch.hub.audit import data_drafts, drafts
from harch.hub.jobs import effects as fx
from harch.hub.jobs.leases import GivenLease
from harch.hub.jobs.task_reports import decide_ending
from harch.hub.jobs.transaction import Transaction
from harch.hub.store.records import CatalogEntry
from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload


def lend(tx: Transaction, workload: Workload, offer: PeerOffer) -> Grant:
    """From here on the work is the peer's, until it ends, comes back, or its lease has surely run out."""
    lending = tx.state.lending
    tx.state.scheduler.withdraw(workload.id)
    tx.state.carbon.forget(workload.id)
    if workload.carbon is not None:  # if it comes back, home comes first
        workload.carbon = replace(workload.carbon, requested_there=True)
    workload.attempt += 1
    workload.epoch += 1
    workload.leased, workload.lease_s = True, lending.terms.length_s(workload.spec)
    workload.runner_hub = offer.hub_id
    workload.runner_placement = ()
    workload.ranks_running = frozenset()
    workload.task_ends = ()
    workload.error_message = ""
    place = "held for it" if offer.bid.start_in_s == 0 else f"in about {offer.bid.start_in_s:.0f} s (estimated)"
    tx.move(workload, State.SCHEDULED, f"goes to {offer.hub_id}, {place}", kind="workload.lent")
    (country,) = tx.state.countries_of((offer.hub_id,)) or ("",)
    tx.audit(drafts.lent(workload, country, policy_version=tx.policy_version))
    grant = Grant(
        bid_id=offer.bid.bid_id,
        lease=WorkLease(workload.id, workload.epoch),
        lease_s=workload.lease_s,
        attempt=workload.attempt,
        tenant=workload.tenant,
        spec=workload.spec,
        created_at=workload.created_at,
        restarts=workload.restarts,
        data=tx.state.guard.reads_of(workload).reads if workload.data_ids else (),
        contents=tuple(KeptContent(one.data_id, one.digest) for one in tx.state.guard.contents_of(workload)),
        annotations=workload.annotations,
        trace=workload.trace,
    )
    lending.given[workload.id] = GivenLease(offer.hub_id, workload.epoch, tx.boot_s, grant)
    lending.settled(workload.id)
    return grant


def granted(tx: Transaction, hub_id: str, answer: Granted) -> None:
    for lease in answer.taken:
        given = _given(tx, hub_id, lease)
        if given is not None:
            given.grant, given.reported_s = None, tx.boot_s
    for lease, why in answer.refused:
        if _given(tx, hub_id, lease) is not None:
            workload = tx.state.registry.workloads[lease.workload_id]
            tx.state.lending.answers.setdefault(workload.id, {})[hub_id] = why[:200]
            take_back(tx, workload, f"{hub_id} did not take it: {why[:200]}")


def reported(tx: Transaction, hub_id: str, message: Reports) -> None:
    booked: list[WorkLease] = []
    for report in message.reports:
        given = _given(tx, hub_id, report.lease)
        if given is not None:
            given.reported_s = tx.boot_s
            workload = tx.state.registry.workloads[report.lease.workload_id]
            record_report(tx, workload, report)
            _remind(tx, workload, report)
        else:
            record_late_report(tx, hub_id, report)
        if report.is_last:
            booked.append(report.lease)
    if booked:
        tx.emit(fx.SendPeer(hub_id, ReportsBooked(tuple(booked))))


def _remind(tx: Transaction, workload: Workload, report: WorkReport) -> None:
    """An order may have been lost on its way; the report shows it."""
    if report.is_last or not workload.leased:
        return
    if workload.stop_as is not None:
        kind = OrderKind.RETURN if workload.stop_as is State.PENDING else OrderKind.STOP
        tx.order(workload, kind, workload.stop_reason)
    elif workload.state is State.PAUSED and report.state is not State.PAUSED:
        tx.order(workload, OrderKind.PAUSE)
    elif workload.state is not State.PAUSED and report.state is State.PAUSED:
        tx.order(workload, OrderKind.RESUME)


def renew(tx: Transaction, hub_id: str, message: LeaseRenewal) -> None:
    """Needs no disk: after a restart the owner counts every lease anew from its start."""
    good: list[WorkLease] = []
    stale: list[WorkLease] = []
    for lease in message.leases:
        given = _given(tx, hub_id, lease)
        if given is None:
            stale.append(lease)
        else:
            given.confirmed_s = tx.boot_s
            good.append(lease)
    tx.emit(fx.SendPeer(hub_id, LeaseRenewed(number=message.number, leases=tuple(good), stale=tuple(stale))))


def repeat_grants(tx: Transaction, hub_id: str | None = None) -> None:
    """Those that were never answered, e.g. because the link broke; the runner takes each once or never."""
    open_grants: dict[str, list[Grant]] = defaultdict(list)
    for given in tx.state.lending.given.values():
        if given.grant is not None and hub_id in (None, given.runner):
            open_grants[given.runner].append(given.grant)
    for runner, grants in open_grants.items():
        for start in range(0, len(grants), NEEDS_PER_REQUEST_MAX):
            tx.emit(fx.SendPeer(runner, Grants(tuple(grants[start : start + NEEDS_PER_REQUEST_MAX]))))


def end_leases(tx: Transaction) -> None:
    """Nothing was heard for a whole lease and its grace: the runner has stopped the work, so it may start again."""
    lending = tx.state.lending
    for workload_id, given in list(lending.given.items()):
        tx.subject = workload_id
        workload = tx.state.registry.workloads[workload_id]
        if tx.boot_s < given.confirmed_s + lending.terms.owner_waits_s(workload.lease_s):
            continue
        silence = f"hub {given.runner} sent no message for {tx.boot_s - given.confirmed_s:.0f} s, its lease has ended"
        tx.note("federation.lease_ended", workload_id, f"epoch {given.epoch} at {given.runner}: {silence}")
        lost = TaskEnd(rank=0, reason=ExitReason.LOST, detail=silence, ended_at=tx.now)
        workload.task_ends = (lost,)
        ending = decide_ending(workload)
        if ending.counts_as_restart:
            workload.restarts += 1
        if ending.state is State.PENDING:
            take_back(tx, workload, ending.message)
        else:
            let_go(tx, workload)
            workload.error_message = ending.message
            tx.end(workload, ending.state, ending.message)


def _given(tx: Transaction, hub_id: str, lease: WorkLease) -> GivenLease | None:
    given = tx.state.lending.given.get(lease.workload_id)
    if given is None or given.epoch != lease.epoch or given.runner != hub_id:
        return None
    return given


# What does a runner's word mean for its owner? Work that runs, ends, or comes back; and words that come too late.


def let_go(tx: Transaction, workload: Workload) -> None:
    """No peer has it any more."""
    workload.leased = False
    tx.state.lending.given.pop(workload.id, None)


def take_back(tx: Transaction, workload: Workload, why: str) -> None:
    """It waits again at home, unless somebody wanted it stopped."""
    let_go(tx, workload)
    if workload.stop_as is State.CANCELLED:
        tx.end(workload, State.CANCELLED, workload.stop_reason)
    else:
        tx.requeue(workload, why)


def record_report(tx: Transaction, workload: Workload, report: WorkReport) -> None:
    """The word of whoever holds the lease."""
    tx.state.lending.given[workload.id].grant = None  # answered, even if the answer itself was lost
    workload.restarts = report.restarts
    if report.handed_back:
        take_back(tx, workload, f"{workload.runner_hub} gave it back: {report.message}")
    elif report.state.is_final:
        _book_end(tx, workload, report)
    elif (report.placement, report.started_at) != (workload.runner_placement, workload.started_at):
        workload.runner_placement, workload.started_at = report.placement, report.started_at
        tx.changed(workload)
        if report.started_at is not None and workload.state is State.SCHEDULED:
            nodes = counted(len({task.node_id for task in report.placement}), "node")
            tx.move(workload, State.RUNNING, f"runs at {workload.runner_hub} on {nodes}")


def record_late_report(tx: Transaction, hub_id: str, report: WorkReport) -> None:
    """The word of a peer that holds no lease any more: listed, and resolved by rule.

    An end counts unless the work was started again since (a higher epoch exists). Everything else is void; the peer
    learns that from the answer to its next renewal and stops it.
    """
    lease = report.lease
    workload = tx.state.registry.workloads.get(lease.workload_id)
    if workload is None or workload.borrowed:
        if report.is_last:
            tx.note("federation.reconciled", lease.workload_id, f"{hub_id} reports an old end; nothing changes")
        return
    current = workload.epoch == lease.epoch and workload.runner_hub == hub_id
    untouched = current and not workload.state.is_final and not workload.is_placed
    if untouched and report.state is State.COMPLETED and not report.handed_back:
        tx.state.scheduler.withdraw(workload.id)
        tx.note("federation.reconciled", workload.id, f"{hub_id} had completed it under epoch {lease.epoch}: it counts")
        _book_end(tx, workload, report)
        return
    if current and workload.state.is_final and not report.is_last:
        return
    stated = "gave back" if report.handed_back else report.state.value
    tx.note(
        "federation.reconciled",
        workload.id,
        f"{hub_id} reports {stated} under epoch {lease.epoch}; here it is {workload.state} under epoch "
        f"{workload.epoch}: ours counts",
    )


def _book_end(tx: Transaction, workload: Workload, report: WorkReport) -> None:
    let_go(tx, workload)
    if report.placement:
        workload.runner_placement = report.placement
    if report.started_at is not None:
        workload.started_at = report.started_at
    workload.task_ends = report.task_ends
    workload.error_message = "" if report.state is State.COMPLETED else report.message
    workload.artifacts_lost = report.artifacts_lost
    contents = {kept.data_id: kept for kept in report.contents}
    for data in report.produced:
        kept = contents.get(data.id)
        entry = CatalogEntry(
            object=replace(data, tenant=workload.tenant),
            created_at=tx.now,
            updated_at=tx.now,
            made_by=workload.id,
            content=kept.digest if kept is not None else "",
            expires_at=kept.expires_at if kept is not None else None,
        )
        tx.state.catalog.put(entry)
        tx.emit(fx.SaveData(entry))
        made = f"{data.kind} {data.name} by {workload.id} at {workload.runner_hub}"
        tx.record_data("data.produced", entry.object, made)
        (country,) = tx.state.countries_of((workload.runner_hub,)) or ("",)
        tx.audit(data_drafts.derived(entry.object, workload, country))
    tx.end(workload, report.state, report.message or f"all tasks ended well at {workload.runner_hub}")
