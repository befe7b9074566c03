"""What happens to the work of a hub? The job machine: events in, effects out; no clock, no disk, no network.

The runtime writes the `Save`, `Record` and `Audit` effects of an event in one transaction and only then releases its
`Send` effects. So whatever reached an agent is on disk, and a crash between any two steps is harmless: on restart the
machine is rebuilt from disk, and every agent reports what it really runs.
"""

# harch: pure

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from harch.base.errors import HarchError
from harch.federation.offers import LeaseTerms
from harch.fleet.model import Fleet, Hub
from harch.hub.jobs import commands, data_commands, hardware, placement, task_reports
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_routing import apply
from harch.hub.jobs.faults import FaultBook
from harch.hub.jobs.lending import borrowed, messages
from harch.hub.jobs.state import Closed, JobState
from harch.hub.jobs.transaction import Transaction
from harch.hub.store.records import CatalogEntry, Condition, ConditionKind, IdempotencyEntry
from harch.placement.queueing.settings import QueueSettings
from harch.placement.scheduler import Preview, preview
from harch.sovereignty.compiled import Rules
from harch.workloads.lifecycle import State, Workload

ROUND_HOLDS_S = 1.0  # how long a preview of the next round is reused


class JobMachine:
    """The only writer of workloads. `apply` either raises before anything changed, or returns all effects."""

    def __init__(
        self,
        fleet: Fleet,
        hub: Hub,
        settings: QueueSettings | None = None,
        rules: Rules | None = None,
        *,
        leases: LeaseTerms | None = None,
        faults: FaultBook | None = None,
    ) -> None:
        self.state = JobState(fleet, hub, settings, rules, leases=leases, faults=faults)
        self.revision = 0  # grows with every event that may change anything but the view of peers
        self._last: Transaction | None = None  # the newest
        self._next_round: tuple[float, Preview] | None = None  # until something happens

    def restore(
        self,
        workloads: Iterable[Workload],
        keys: Iterable[IdempotencyEntry],
        conditions: Iterable[Condition] = (),
        data: Iterable[CatalogEntry] = (),
        *,
        context: ev.EventContext,
        lifetime: str = "",
    ) -> list[fx.Effect]:
        """Takes over what the store holds: unfinished workloads, and those finished within the retry window.

        `lifetime` is a name that no earlier run of this hub had.
        """
        tx = self._begin(context)
        tx.state.lending.lifetime = lifetime
        tx.state.registry.remember_keys(keys)
        tx.state.catalog.restore(data)
        for workload in sorted(workloads, key=lambda workload: workload.created_at):
            tx.subject = workload.id
            if not workload.state.is_final:
                tx.state.guard.watch(workload)
            if workload.borrowed:
                messages.restore_borrowed(tx, workload)
                continue
            tx.state.registry.add(workload)
            if workload.leased:
                messages.restore_lent(tx, workload)
            elif workload.is_placed and not tx.state.has_hardware_of(workload):
                tx.requeue(workload, "the fleet file no longer has its nodes")
            elif workload.is_placed:
                tx.adopt(workload)
            elif workload.state is State.PENDING:
                choice = workload.carbon
                tx.enqueue(workload)
                if workload.carbon is not choice:  # its hour came while the hub was away
                    tx.changed(workload)
        tx.subject = ""
        for condition in conditions:
            with contextlib.suppress(HarchError):  # the fleet file no longer has it
                hardware.apply(tx, condition)
        data_commands.sweep(tx)  # the fleet file may declare less than before
        borrowed.flush_reports(tx)
        return tx.effects()

    def apply(self, event: ev.Event, context: ev.EventContext) -> list[fx.Effect]:
        tx = self._begin(context)
        self.revision += not isinstance(event, ev.PeersSeen)
        match event:
            case ev.Submitted():
                commands.submit(tx, event)
            case ev.PlacementDue():
                placement.place_round(tx)
            case ev.TaskStartSeen(key, agent_id):
                if not task_reports.is_of_another(tx, key, agent_id):
                    task_reports.task_started(tx, key)
            case ev.TaskEndSeen(agent_id, end):
                if not task_reports.is_of_another(tx, end.key, agent_id):
                    task_reports.task_ended(tx, event)
            case ev.StopRequested():
                commands.stop(tx, event)
            case ev.PauseRequested(workload_id):
                commands.pause(tx, tx.state.unfinished(workload_id))
            case ev.ResumeRequested(workload_id):
                commands.resume(tx, tx.state.unfinished(workload_id))
            case ev.RestartRequested(workload_id, reason):
                commands.restart(tx, tx.state.unfinished(workload_id), reason)
            case ev.SpecReplaced():
                commands.replace_spec(tx, event)
            case ev.Relabelled():
                commands.relabel(tx, event)
            case ev.DataAdded():
                data_commands.add(tx, event)
            case ev.DataRetagged():
                data_commands.retag(tx, event)
            case ev.DataRemoved():
                data_commands.remove(tx, event)
            case ev.DataKept():
                data_commands.keep(tx, event)
            case ev.DataMoved():
                data_commands.moved(tx, event)
            case ev.CopiesReported():
                data_commands.copies_reported(tx, event)
            case ev.TagsDue():
                data_commands.sweep(tx)
            case ev.AgentJoined():
                task_reports.agent_joined(tx, event)
            case ev.AgentBarred():
                task_reports.agent_barred(tx, event)
            case ev.AgentLeft():
                task_reports.agent_left(tx, event)
            case ev.LendingDue():
                messages.run_due(tx)
            case ev.PeerMessageReceived(hub_id, message):
                messages.receive(tx, hub_id, message)
            case ev.PeersSeen(peers):
                tx.state.lending.peers = {peer.hub_id: peer for peer in peers}
            case ev.PeerBack(hub_id):
                messages.repeat_unanswered(tx, hub_id)
            case ev.CarbonPreferencesChanged():
                apply.change_preferences(tx, event)
            case ev.CarbonPlanned(plan):
                apply.apply_plan(tx, plan)
            case ev.CarbonDue():
                apply.release_due(tx)
            case ev.HardwareChanged(kind, subject, value, why):
                condition = Condition(kind=ConditionKind(kind), subject=subject, value=value, why=why)
                hardware.set_condition(tx, condition)
            case ev.NodeDrained(node_id, why):
                hardware.drain(tx, node_id, why)
            case ev.HubClosed(closed, why):
                hardware.close_hub(tx, Closed(closed), why)
            case ev.DefragmentationRequested(workload_id):
                placement.defragment(tx, workload_id)
            case ev.Noted(kind, subject, message):
                tx.note(kind, subject, message)
            case ev.FaultSeen():
                _record_fault(tx, event)
        borrowed.flush_reports(tx)
        return tx.effects()

    def _begin(self, context: ev.EventContext) -> Transaction:
        self._next_round = self._last = None
        self._last = Transaction(self.state, context)
        return self._last

    @property
    def is_changed(self) -> bool:
        """By the newest event, as far as effects and bookings tell."""
        return self._last is not None and self._last.is_changed

    @property
    def suspect(self) -> str:
        """The work that the newest event was at, if that is known."""
        return "" if self._last is None else self._last.suspect

    def next_round(self, now_s: float) -> Preview:
        """What the next round of placement would do. Costs a copy of the books, once per event and second."""
        if self._next_round is None or abs(now_s - self._next_round[0]) >= ROUND_HOLDS_S:
            self._next_round = (now_s, preview(self.state.scheduler, now_s=now_s))
        return self._next_round[1]

    def is_lending_due(self, boot_s: float) -> bool:
        """Whether `LendingDue` would find anything to do."""
        return messages.is_due(self.state, boot_s)

    def is_carbon_due(self, now: datetime, boot_s: float) -> bool:
        """Whether `CarbonDue` would find anything to do."""
        return self.state.carbon.is_due(now.timestamp(), boot_s)

    def note_agent_clock(self, agent_id: str, agent_boot_s: float, *, boot_s: float) -> None:
        """A reading of an agent's clock has come; leases of its tasks are counted from it."""
        agent = self.state.agents.agents.get(agent_id)
        if agent is not None:
            agent.clock = (agent_boot_s, boot_s)


def _record_fault(tx: Transaction, event: ev.FaultSeen) -> None:
    """Said in the history, once the machine is sound again."""
    tx.note("hub.fault", tx.state.hub.id, f"failed at `{event.what}` ({event.error}): undone, and restored from disk")
    workload = tx.state.registry.workloads.get(event.workload_id)
    fault = tx.state.faults.held(event.workload_id, tx.boot_s)
    if workload is not None and fault is not None and not workload.state.is_final:
        wait_s = fault.until_s - tx.boot_s
        tx.changed(
            workload,
            "workload.held_back",
            f"`{event.what}` failed on it ({event.error}): it is set aside, and retried in {wait_s:.0f} s",
        )


class JobObserver(Protocol):
    """Looks on while the machine works. It must not raise: memory is ahead of the disk then."""

    def restored(self, machine: JobMachine) -> None: ...

    def handled(self, event: ev.Event, effects: list[fx.Effect], now: datetime) -> None: ...

    def recorded(self, record: fx.Record, now: datetime) -> None: ...
