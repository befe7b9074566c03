"""How are the guests of a hub kept? Their leases, what their owners order, and what is told of them.

A guest is told of until its owner has its end on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from harch.federation.leases import renew_at_s
from harch.federation.offers import (
    LEASES_PER_MESSAGE_MAX,
    Booked,
    Lease,
    Order,
    OrderKind,
    Renewal,
    Renewed,
    Report,
    Reports,
)
from harch.hub import asks, starts
from harch.hub import happenings as h
from harch.hub.data_asks import output_ids
from harch.hub.desk import Desk
from harch.sovereignty.tags import DataObject
from harch.workloads.lifecycle import State, Workload

RENEW_AGAIN_S = 2.0  # an unanswered renewal is repeated
ANSWER_WITHIN_S = 60.0


def ask_for_more(desk: Desk, owner: str | None = None) -> None:
    """Renews what is due; of one owner, at once (`owner`): after a restart, and when a link is back."""
    board = desk.spill
    due: dict[str, list[Workload]] = defaultdict(list)
    for workload_id, lease in board.guests.items():
        if lease.owner == owner or (owner is None and lease.renew_s <= desk.boot_s):
            lease.renew_s = desk.boot_s + RENEW_AGAIN_S
            due[lease.owner].append(desk.registry.workloads[workload_id])
    for hub_id, guests in due.items():
        for start in range(0, len(guests), LEASES_PER_MESSAGE_MAX):
            some = guests[start : start + LEASES_PER_MESSAGE_MAX]
            number, leases = board.number(), tuple(Lease(guest.id, guest.epoch) for guest in some)
            board.renewals[number] = (hub_id, desk.boot_s, leases)
            desk.emit(h.SendPeer(hub_id, Renewal(number, leases)))
            desk.emit(h.SendPeer(hub_id, Reports(tuple(report_of(desk, guest) for guest in some))))


def forget_unanswered(desk: Desk) -> None:
    """Renewals of which nothing was heard; newer ones have gone out since."""
    renewals = desk.spill.renewals
    while renewals:
        number, (_, sent_s, _) = next(iter(renewals.items()))
        if sent_s > desk.boot_s - ANSWER_WITHIN_S:
            return
        del renewals[number]


def renewed(desk: Desk, owner: str, answer: Renewed) -> None:
    board = desk.spill
    asked = board.renewals.pop(answer.number, None)
    if asked is None or asked[0] != owner:
        return
    _, sent_s, leases = asked
    for lease in answer.leases:
        guest = board.guests.get(lease.workload_id)
        workload = desk.registry.workloads.get(lease.workload_id)
        if guest is None or workload is None or workload.epoch != lease.epoch or lease not in leases:
            continue
        guest.until_s = max(guest.until_s, sent_s + workload.lease_s)
        guest.renew_s = renew_at_s(sent_s, workload.lease_s)
        starts.lengthen_leases(desk, workload)
    for lease in answer.stale:
        workload = desk.registry.workloads.get(lease.workload_id)
        if workload is not None and workload.id in board.guests and workload.epoch == lease.epoch:
            _give_up(desk, workload, f"{owner} no longer lends it")


def obey(desk: Desk, owner: str, order: Order) -> None:
    workload = desk.registry.workloads.get(order.lease.workload_id)
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
                desk.changed(workload)
                if workload.is_placed:
                    desk.stop_tasks(workload)
            asks.stop(desk, h.StopAsked(workload.id, order.reason or f"{owner} asked"))
        case OrderKind.RETURN:
            _give_up(desk, workload, order.reason or f"{owner} wants it back")
        case OrderKind.PAUSE:
            if workload.state is not State.PAUSED and not workload.stop_reason:
                asks.pause(desk, workload)
        case OrderKind.RESUME:
            if workload.state is State.PAUSED and not workload.scrub:
                asks.resume(desk, workload)


def _give_up(desk: Desk, workload: Workload, why: str) -> None:
    if not workload.is_placed:
        desk.scheduler.withdraw(workload.id)
        desk.hand_back(workload, why)
    elif not workload.stop_reason:
        desk.stop_for_others(workload, why, kind="workload.returning")


def end_waiting(desk: Desk) -> None:
    """Guests that wait here past their lease, or past their welcome. What runs is stopped by its own supervisor."""
    for workload_id, lease in list(desk.spill.guests.items()):
        workload = desk.registry.workloads[workload_id]
        if not workload.is_placed and (desk.closed or lease.until_s <= desk.boot_s):
            _give_up(desk, workload, "its lease has ended" if not desk.closed else f"{desk.hub.name} takes no work")


# Reports


def report_of(desk: Desk, workload: Workload) -> Report:
    final = workload.state.is_final
    return Report(
        lease=Lease(workload.id, workload.epoch),
        state=workload.state,
        placement=workload.placement,
        started_at=workload.started_at,
        task_ends=workload.task_ends if final else (),
        message=workload.error_message or workload.stop_reason,
        restarts=workload.restarts,
        handed_back=workload.handed_back,
        produced=_produced(desk, workload) if workload.state is State.COMPLETED and workload.spec.outputs else (),
    )


def _produced(desk: Desk, workload: Workload) -> tuple[DataObject, ...]:
    found = (desk.catalog.objects.get(data_id) for data_id in output_ids(workload))
    return tuple(data for data in found if data is not None)


def flush_reports(desk: Desk) -> None:
    """What changed in this event, to its owners."""
    board = desk.spill
    if board.to_report:
        _report(desk, board.to_report.values())
        board.to_report = {}


def repeat_ends(desk: Desk, owner: str | None = None) -> None:
    _report(desk, [guest for guest in desk.spill.unbooked.values() if owner in (None, guest.owner_hub)])


def _report(desk: Desk, guests: Iterable[Workload]) -> None:
    by_owner: dict[str, list[Report]] = defaultdict(list)
    for guest in guests:
        by_owner[guest.owner_hub].append(report_of(desk, guest))
    for owner, reports in by_owner.items():
        for start in range(0, len(reports), LEASES_PER_MESSAGE_MAX):
            desk.emit(h.SendPeer(owner, Reports(tuple(reports[start : start + LEASES_PER_MESSAGE_MAX]))))


def booked(desk: Desk, owner: str, message: Booked) -> None:
    for lease in message.leases:
        workload = desk.spill.unbooked.get(lease.workload_id)
        if workload is not None and workload.owner_hub == owner and workload.epoch == lease.epoch:
            del desk.spill.unbooked[lease.workload_id]
            workload.report_due = False
            desk.changed(workload)
            desk.registry.finished(workload)
