"""What do other hubs have to do with this hub's work? Their words to the right rule, and what time alone brings."""

from __future__ import annotations

from harch.federation import offers as o
from harch.hub.desk import Desk
from harch.hub.spill import auctions, guests, owner, runner
from harch.hub.spill.board import GivenLease, GuestLease
from harch.workloads.lifecycle import State, Workload

LOOK_EVERY_S = 1.0  # at leases, and at what was not answered


def listen(desk: Desk, hub_id: str, message: o.SpillMessage) -> None:
    match message:
        case o.Ask():
            runner.bid(desk, hub_id, message)
        case o.Bids():
            auctions.bids_came(desk, hub_id, message)
        case o.Drop():
            runner.dropped(desk, hub_id, message)
        case o.Grants():
            runner.take(desk, hub_id, message)
        case o.Granted():
            owner.granted(desk, hub_id, message)
        case o.Reports():
            owner.reported(desk, hub_id, message)
        case o.Booked():
            guests.booked(desk, hub_id, message)
        case o.Renewal():
            owner.renew(desk, hub_id, message)
        case o.Renewed():
            guests.renewed(desk, hub_id, message)
        case o.Order():
            guests.obey(desk, hub_id, message)


def is_due(desk: Desk, boot_s: float) -> bool:
    board = desk.spill
    busy = board.given or board.guests or board.unbooked
    return bool(board.bids or board.auctions or board.is_due(boot_s) or (busy and boot_s >= board.next_look_s))


def look_around(desk: Desk) -> None:
    """Every moment. Cheap where nothing is due."""
    board = desk.spill
    runner.expire_bids(desk)
    auctions.close_overdue(desk)
    auctions.offer_waiting(desk)
    desk.subject = ""
    if desk.boot_s >= board.next_look_s:
        board.next_look_s = desk.boot_s + LOOK_EVERY_S
        guests.forget_unanswered(desk)
        guests.ask_for_more(desk)
        guests.end_waiting(desk)
        guests.repeat_ends(desk)
        owner.repeat_grants(desk)
        owner.end_leases(desk)


def say_again(desk: Desk, hub_id: str) -> None:
    """The link is back: whatever was on its way may be lost."""
    owner.repeat_grants(desk, hub_id)
    guests.ask_for_more(desk, hub_id)
    guests.repeat_ends(desk, hub_id)


def restore_lent(desk: Desk, workload: Workload) -> None:
    """A full wait again: when the peer last had our word is not known, but it was before now."""
    desk.spill.given[workload.id] = GivenLease(workload.runner_hub, workload.epoch, desk.boot_s)


def restore_guest(desk: Desk, workload: Workload) -> None:
    """What runs goes on, until the deadline that its supervisor knows; nothing starts before the lease is confirmed."""
    board = desk.spill
    desk.registry.add_guest(workload)
    if workload.state.is_final:
        if workload.report_due:
            board.unbooked[workload.id] = workload
        else:
            desk.registry.finished(workload)
        return
    board.guests[workload.id] = GuestLease(workload.owner_hub)
    if not workload.is_placed:
        desk.hand_back(workload, f"{desk.hub.name} was restarted before it could start")
    elif not desk.has_hardware_of(workload):
        # Its tasks may still run. Told nothing, its owner waits until the lease has ended, and they with it.
        workload.state, workload.error_message = State.CANCELLED, "the fleet file no longer has its nodes"
        del board.guests[workload.id]
        desk.registry.finished(workload)
        desk.guard.unwatch(workload)
        desk.changed(workload)
    else:
        desk.adopt(workload)
