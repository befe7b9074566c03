"""How is work lent, and never twice? The owner's side of a lease: grants, reports, renewals, and its end."""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace

from harch.federation.bidding import PeerOffer
from harch.federation.offers import (
    NEEDS_PER_ASK_MAX,
    Booked,
    Grant,
    Granted,
    Grants,
    Lease,
    OrderKind,
    Renewal,
    Renewed,
    Report,
    Reports,
)
from harch.hub import happenings as h
from harch.hub.audit import drafts
from harch.hub.desk import Desk
from harch.hub.endings import decide_ending
from harch.hub.spill import returns
from harch.hub.spill.board import GivenLease
from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload


def lend(desk: Desk, workload: Workload, offer: PeerOffer) -> Grant:
    """From here on the work is the peer's, until it ends, comes back, or its lease has surely run out."""
    board = desk.spill
    desk.scheduler.withdraw(workload.id)
    desk.carbon.forget(workload.id)
    if workload.carbon is not None:  # if it comes back, home comes first
        workload.carbon = replace(workload.carbon, asked_there=True)
    workload.attempt += 1
    workload.epoch += 1
    workload.leased, workload.lease_s = True, board.terms.length_s(workload.spec)
    workload.runner_hub = offer.hub_id
    workload.runner_placement = ()
    workload.ranks_running = frozenset()
    workload.task_ends = ()
    workload.error_message = ""
    place = "held for it" if offer.bid.start_in_s == 0 else f"in about {offer.bid.start_in_s:.0f} s (estimated)"
    desk.move(workload, State.SCHEDULED, f"goes to {offer.hub_id}, {place}", kind="workload.lent")
    (country,) = desk.countries_of((offer.hub_id,)) or ("",)
    desk.audit(drafts.lent(workload, country, policy_version=desk.policy_version))
    grant = Grant(
        bid_id=offer.bid.bid_id,
        lease=Lease(workload.id, workload.epoch),
        lease_s=workload.lease_s,
        attempt=workload.attempt,
        tenant=workload.tenant,
        spec=workload.spec,
        created_at=workload.created_at,
        restarts=workload.restarts,
        data=desk.guard.ask_of(workload).reads if workload.data_ids else (),
        annotations=workload.annotations,
        trace=workload.trace,
    )
    board.given[workload.id] = GivenLease(offer.hub_id, workload.epoch, desk.boot_s, grant)
    board.settled(workload.id)
    return grant


def granted(desk: Desk, hub_id: str, answer: Granted) -> None:
    for lease in answer.taken:
        given = _given(desk, hub_id, lease)
        if given is not None:
            given.grant, given.told_s = None, desk.boot_s
    for lease, why in answer.refused:
        if _given(desk, hub_id, lease) is not None:
            workload = desk.registry.workloads[lease.workload_id]
            desk.spill.answers.setdefault(workload.id, {})[hub_id] = why[:200]
            returns.take_back(desk, workload, f"{hub_id} did not take it: {why[:200]}")


def reported(desk: Desk, hub_id: str, message: Reports) -> None:
    booked: list[Lease] = []
    for report in message.reports:
        given = _given(desk, hub_id, report.lease)
        if given is not None:
            given.told_s = desk.boot_s
            workload = desk.registry.workloads[report.lease.workload_id]
            returns.heard(desk, workload, report)
            _remind(desk, workload, report)
        else:
            returns.heard_late(desk, hub_id, report)
        if report.is_last:
            booked.append(report.lease)
    if booked:
        desk.emit(h.SendPeer(hub_id, Booked(tuple(booked))))


def _remind(desk: Desk, workload: Workload, report: Report) -> None:
    """An order may have been lost on its way; the report shows it."""
    if report.is_last or not workload.leased:
        return
    if workload.stop_as is not None:
        desk.order(workload, OrderKind.STOP, workload.stop_reason)
    elif workload.state is State.PAUSED and report.state is not State.PAUSED:
        desk.order(workload, OrderKind.PAUSE)
    elif workload.state is not State.PAUSED and report.state is State.PAUSED:
        desk.order(workload, OrderKind.RESUME)


def renew(desk: Desk, hub_id: str, message: Renewal) -> None:
    """Needs no disk: after a restart the owner counts every lease anew from its start."""
    good: list[Lease] = []
    stale: list[Lease] = []
    for lease in message.leases:
        given = _given(desk, hub_id, lease)
        if given is None:
            stale.append(lease)
        else:
            given.heard_s = desk.boot_s
            good.append(lease)
    desk.emit(h.SendPeer(hub_id, Renewed(number=message.number, leases=tuple(good), stale=tuple(stale))))


def repeat_grants(desk: Desk, hub_id: str | None = None) -> None:
    """Those that were never answered, e.g. because the link broke; the runner takes each once or never."""
    open_grants: dict[str, list[Grant]] = defaultdict(list)
    for given in desk.spill.given.values():
        if given.grant is not None and hub_id in (None, given.runner):
            open_grants[given.runner].append(given.grant)
    for runner, grants in open_grants.items():
        for start in range(0, len(grants), NEEDS_PER_ASK_MAX):
            desk.emit(h.SendPeer(runner, Grants(tuple(grants[start : start + NEEDS_PER_ASK_MAX]))))


def end_leases(desk: Desk) -> None:
    """Nothing was heard for a whole lease and its grace: the runner has stopped the work, so it may start again."""
    board = desk.spill
    for workload_id, given in list(board.given.items()):
        desk.subject = workload_id
        workload = desk.registry.workloads[workload_id]
        if desk.boot_s < given.heard_s + board.terms.owner_waits_s(workload.lease_s):
            continue
        silence = f"hub {given.runner} was not heard for {desk.boot_s - given.heard_s:.0f} s, its lease has ended"
        desk.note("federation.lease_ended", workload_id, f"epoch {given.epoch} at {given.runner}: {silence}")
        lost = TaskEnd(rank=0, reason=ExitReason.LOST, detail=silence, ended_at=desk.now)
        workload.task_ends = (lost,)
        ending = decide_ending(workload)
        if ending.counts_as_restart:
            workload.restarts += 1
        if ending.state is State.PENDING:
            returns.take_back(desk, workload, ending.message)
        else:
            returns.let_go(desk, workload)
            workload.error_message = ending.message
            desk.end(workload, ending.state, ending.message)


def _given(desk: Desk, hub_id: str, lease: Lease) -> GivenLease | None:
    given = desk.spill.given.get(lease.workload_id)
    if given is None or given.epoch != lease.epoch or given.runner != hub_id:
        return None
    return given
