"""What do other hubs have to do with this hub's work? Their words to the right rule, and what time alone brings."""

# harch: pure

from __future__ import annotations

from harch.federation import offers as o
from harch.hub.jobs.leases import BorrowedLease, GivenLease
from harch.hub.jobs.lending import auctions, borrowed, owner
from harch.hub.jobs.state import JobState
from harch.hub.jobs.transaction import Transaction
from harch.workloads.lifecycle import State, Workload

LOOK_EVERY_S = 1.0  # at leases, and at what was not answered


def receive(tx: Transaction, hub_id: str, message: o.LendingMessage) -> None:
    match message:
        case o.BidRequest():
            borrowed.bid(tx, hub_id, message)
        case o.Bids():
            auctions.bids_came(tx, hub_id, message)
        case o.DropBids():
            borrowed.dropped(tx, hub_id, message)
        case o.Grants():
            borrowed.take(tx, hub_id, message)
        case o.Granted():
            owner.granted(tx, hub_id, message)
        case o.Reports():
            owner.reported(tx, hub_id, message)
        case o.ReportsBooked():
            borrowed.booked(tx, hub_id, message)
        case o.LeaseRenewal():
            owner.renew(tx, hub_id, message)
        case o.LeaseRenewed():
            borrowed.renewed(tx, hub_id, message)
        case o.OwnerOrder():
            borrowed.obey(tx, hub_id, message)


def is_due(state: JobState, boot_s: float) -> bool:
    lending = state.lending
    busy = lending.given or lending.borrowed or lending.unbooked
    return bool(lending.bids or lending.auctions or lending.is_due(boot_s) or (busy and boot_s >= lending.next_look_s))


def run_due(tx: Transaction) -> None:
    """Every moment. Cheap where nothing is due."""
    lending = tx.state.lending
    borrowed.expire_bids(tx)
    auctions.close_overdue(tx)
    auctions.offer_waiting(tx)
    tx.subject = ""
    if tx.boot_s >= lending.next_look_s:
        lending.next_look_s = tx.boot_s + LOOK_EVERY_S
        borrowed.forget_unanswered(tx)
        borrowed.renew_due(tx)
        borrowed.end_waiting(tx)
        borrowed.repeat_ends(tx)
        owner.repeat_grants(tx)
        owner.end_leases(tx)


def repeat_unanswered(tx: Transaction, hub_id: str) -> None:
    """The link is back: whatever was on its way may be lost."""
    owner.repeat_grants(tx, hub_id)
    borrowed.renew_due(tx, hub_id)
    borrowed.repeat_ends(tx, hub_id)


def restore_lent(tx: Transaction, workload: Workload) -> None:
    """A full wait again: when the peer last had our word is not known, but it was before now."""
    tx.state.lending.given[workload.id] = GivenLease(workload.runner_hub, workload.epoch, tx.boot_s)


def restore_borrowed(tx: Transaction, workload: Workload) -> None:
    """What runs goes on, until the deadline that its supervisor knows; nothing starts before the lease is confirmed."""
    lending = tx.state.lending
    tx.state.registry.add_borrowed(workload)
    if workload.state.is_final:
        if workload.report_due:
            lending.unbooked[workload.id] = workload
        else:
            tx.state.registry.finished(workload)
        return
    lending.borrowed[workload.id] = BorrowedLease(workload.owner_hub)
    if not workload.is_placed:
        tx.hand_back(workload, f"{tx.state.hub.name} was restarted before it could start")
    elif not tx.state.has_hardware_of(workload):
        # Its tasks may still run. Told nothing, its owner waits until the lease has ended, and they with it.
        workload.state, workload.error_message = State.CANCELLED, "the fleet file no longer has its nodes"
        del lending.borrowed[workload.id]
        tx.state.registry.finished(workload)
        tx.state.guard.unwatch(workload)
        tx.changed(workload)
    else:
        tx.adopt(workload)
