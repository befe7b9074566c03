"""What does a runner's word mean for its owner? Work that runs, ends, or comes back; and words that come too late."""

from __future__ import annotations

from msgspec.structs import replace

from harch.federation.offers import Report
from harch.hub import happenings as h
from harch.hub.audit import data_drafts
from harch.hub.catalog import CatalogEntry
from harch.hub.desk import Desk
from harch.workloads.lifecycle import State, Workload


def let_go(desk: Desk, workload: Workload) -> None:
    """No peer has it any more."""
    workload.leased = False
    desk.spill.given.pop(workload.id, None)


def take_back(desk: Desk, workload: Workload, why: str) -> None:
    """It waits again at home, unless somebody wanted it stopped."""
    let_go(desk, workload)
    if workload.stop_as is State.CANCELLED:
        desk.end(workload, State.CANCELLED, workload.stop_reason)
    else:
        desk.requeue(workload, why)


def heard(desk: Desk, workload: Workload, report: Report) -> None:
    """The word of whoever holds the lease."""
    desk.spill.given[workload.id].grant = None  # answered, even if the answer itself was lost
    workload.restarts = report.restarts
    if report.handed_back:
        take_back(desk, workload, f"{workload.runner_hub} gave it back: {report.message}")
    elif report.state.is_final:
        _book_end(desk, workload, report)
    elif (report.placement, report.started_at) != (workload.runner_placement, workload.started_at):
        workload.runner_placement, workload.started_at = report.placement, report.started_at
        desk.changed(workload)
        if report.started_at is not None and workload.state is State.SCHEDULED:
            nodes = len({task.node_id for task in report.placement})
            desk.move(workload, State.RUNNING, f"runs at {workload.runner_hub} on {nodes} node(s)")


def heard_late(desk: Desk, hub_id: str, report: Report) -> None:
    """The word of a peer that holds no lease any more: listed, and resolved by rule.

    An end counts unless the work was started again since (a higher epoch exists). Everything else is void; the peer
    learns that from the answer to its next renewal and stops it.
    """
    lease = report.lease
    workload = desk.registry.workloads.get(lease.workload_id)
    if workload is None or workload.guest:
        if report.is_last:
            desk.note("federation.reconciled", lease.workload_id, f"{hub_id} tells an end of long ago; nothing changes")
        return
    current = workload.epoch == lease.epoch and workload.runner_hub == hub_id
    untouched = current and not workload.state.is_final and not workload.is_placed
    if untouched and report.state is State.COMPLETED and not report.handed_back:
        desk.scheduler.withdraw(workload.id)
        desk.note(
            "federation.reconciled", workload.id, f"{hub_id} had completed it under epoch {lease.epoch}: it counts"
        )
        _book_end(desk, workload, report)
        return
    if current and workload.state.is_final and not report.is_last:
        return
    said = "gave back" if report.handed_back else report.state.value
    desk.note(
        "federation.reconciled",
        workload.id,
        f"{hub_id} reports {said} under epoch {lease.epoch}; here it is {workload.state} under epoch {workload.epoch}:"
        " ours counts",
    )


def _book_end(desk: Desk, workload: Workload, report: Report) -> None:
    let_go(desk, workload)
    if report.placement:
        workload.runner_placement = report.placement
    if report.started_at is not None:
        workload.started_at = report.started_at
    workload.task_ends = report.task_ends
    workload.error_message = "" if report.state is State.COMPLETED else report.message
    for data in report.produced:
        entry = CatalogEntry(
            object=replace(data, tenant=workload.tenant), created_at=desk.now, updated_at=desk.now, made_by=workload.id
        )
        desk.catalog.put(entry)
        desk.emit(h.SaveData(entry))
        made = f"{data.kind} {data.name} by {workload.id} at {workload.runner_hub}"
        desk.record_data("data.produced", entry.object, made)
        (country,) = desk.countries_of((workload.runner_hub,)) or ("",)
        desk.audit(data_drafts.derived(entry.object, workload, country))
    desk.end(workload, report.state, report.message or f"all tasks ended well at {workload.runner_hub}")
