"""What may a rule do to a hub's work? The few moves that every rule is made of, for the length of one event.

A transaction begins with an event and its context, changes the state through these moves, and ends with all effects.
"""

# harch: pure

from __future__ import annotations

import heapq

from msgspec.structs import replace

from harch.base.errors import InvariantBroken
from harch.execution.protocol import PauseTask, ResumeTask, StartTask, StopTask, TaskKey, TaskSpec
from harch.federation.offers import OrderKind, OwnerOrder, WorkLease
from harch.fleet.model import Provenance
from harch.hub.audit import drafts
from harch.hub.jobs import effects as fx
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.state import JobState
from harch.placement.request import PlacementRequest
from harch.sovereignty.audit.chain import Draft
from harch.sovereignty.tags import DataObject
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import MOVES, State, Workload


class Transaction:
    """One event at one hub's work: reads and changes `state`, gathers effects. `context` says when, and under what."""

    __slots__ = (
        "_changes_before",
        "_dirty",
        "_effects",
        "boot_s",
        "context",
        "now",
        "now_s",
        "policy_version",
        "state",
        "subject",
    )

    def __init__(self, state: JobState, context: EventContext) -> None:
        self.state, self.context = state, context
        self.now, self.now_s, self.boot_s = context.now, context.now_s, context.boot_s
        self.policy_version = context.policy_version
        self.subject = state.scheduler.subject = ""  # the workload that a round is at
        self._dirty: dict[str, Workload] = {}
        self._effects: list[fx.Effect] = []
        self._changes_before = state.scheduler.changes

    @property
    def is_changed(self) -> bool:
        """As far as effects and bookings tell: whoever refuses an event must have changed nothing."""
        return bool(self._dirty or self._effects) or self.state.scheduler.changes != self._changes_before

    @property
    def suspect(self) -> str:
        """The own or borrowed work that a round was at when it failed; empty if that is not known."""
        found = self.subject or self.state.scheduler.subject
        return found if found in self.state.registry.workloads else ""

    def effects(self) -> list[fx.Effect]:
        return [*[fx.Save(workload) for workload in self._dirty.values()], *self._effects]

    def emit(self, effect: fx.Effect) -> None:
        self._effects.append(effect)

    def note(self, kind: str, subject: str, message: str) -> None:
        self.emit(fx.Record(kind, subject, "", message))

    def audit(self, draft: Draft) -> None:
        """Whatever is decided here is decided under the policy that came with the event, and names it."""
        if draft.policy_version != self.policy_version:
            draft = replace(draft, policy_version=self.policy_version)
        self.emit(fx.Audit(draft))

    def record_data(self, kind: str, data: DataObject, message: str) -> None:
        facts: dict[str, object] = {"name": data.name, "kind": data.kind, "tag_revision": data.tag_revision}
        self.emit(fx.Record(kind, data.id, data.tenant, message, facts))

    def changed(self, workload: Workload, kind: str = "", message: str = "") -> None:
        workload.updated_at = self.now
        self._dirty[workload.id] = workload
        if workload.borrowed and (workload.report_due or not workload.state.is_final):
            self.state.lending.to_report[workload.id] = workload
        if kind:
            data: dict[str, object] = {"name": workload.spec.name, "state": workload.state, "attempt": workload.attempt}
            self.emit(fx.Record(kind, workload.id, workload.tenant, message, data))

    def move(self, workload: Workload, state: State, why: str, *, kind: str = "") -> None:
        if state not in MOVES[workload.state]:
            raise InvariantBroken(f"no move from {workload.state} to {state}", workload.id)
        workload.state = state
        self.changed(workload, kind or f"workload.{state}", why)

    def end(self, workload: Workload, state: State, why: str) -> None:
        """The last move of a workload."""
        known = self.state
        workload.completed_at = self.now
        workload.report_due = workload.borrowed
        self.move(workload, state, why)
        self.audit(drafts.ended(workload, known.hub.country, policy_version=self.policy_version))
        known.guard.unwatch(workload)
        known.carbon.forget(workload.id)
        known.faults.forget(workload.id)
        if workload.borrowed:
            known.lending.borrowed.pop(workload.id, None)
            known.lending.unbooked[workload.id] = workload
        else:
            known.registry.finished(workload)
            known.lending.settled(workload.id)

    def enqueue(self, workload: Workload, request: PlacementRequest | None = None) -> None:
        """Lets it wait for its turn, or for its power; if it may go elsewhere, other hubs hear of it in a moment.

        `request`: as `JobState.request` would make it, if the caller has it already.
        """
        state = self.state
        within_s = workload.spec.gang.start_within_s
        if within_s is not None and workload.attempt == 0:
            heapq.heappush(state.start_deadlines, (workload.created_at.timestamp() + within_s, workload.id))
        if state.faults.held(workload.id, self.boot_s) is not None:
            state.set_aside.add(workload.id)
            return
        state.set_aside.discard(workload.id)
        offers_elsewhere = state.lending.enabled and workload.home_fits
        waits = state.carbon.keeps_waiting(
            workload, home=state.hub.id, offers_elsewhere=offers_elsewhere, now=self.now, boot_s=self.boot_s
        )
        if workload.home_fits and not waits:
            state.scheduler.submit(request or state.request(workload), now_s=self.now_s)
        if workload.id not in state.carbon.held:
            state.lending.waits(workload.id, self.boot_s)

    def take_up_again(self) -> None:
        """Work that was set aside and may be tried again."""
        state = self.state
        for workload_id in sorted(state.set_aside):
            workload = state.registry.workloads.get(workload_id)
            waits = workload is not None and workload.state is State.PENDING and not workload.leased
            if not waits or state.faults.held(workload_id, self.boot_s) is None:
                state.set_aside.discard(workload_id)
            if workload is not None and waits and workload_id not in state.set_aside:
                self.subject = workload_id
                self.enqueue(workload)

    def too_late(self) -> list[Workload]:
        """Those that wait and were to have started by now, once each.

        Whoever began to wait several times is noted as often, also with a time that its specification no longer has.
        """
        state = self.state
        late: dict[str, Workload] = {}
        while state.start_deadlines and state.start_deadlines[0][0] <= self.now_s:
            _, workload_id = heapq.heappop(state.start_deadlines)
            workload = state.registry.workloads.get(workload_id)
            if workload is None or workload.state is not State.PENDING or workload.attempt:
                continue
            within_s = workload.spec.gang.start_within_s
            if within_s is not None and workload.created_at.timestamp() + within_s <= self.now_s:
                late[workload_id] = workload
        return list(late.values())

    def requeue(self, workload: Workload, why: str) -> None:
        """Back to waiting, its GPUs freed. A guest goes back to its owner instead."""
        state = self.state
        if workload.borrowed:
            self.hand_back(workload, why)
            return
        if workload.id in state.scheduler.running:
            self.free(workload)
        self.audit(drafts.requeued(workload, state.hub.country, policy_version=self.policy_version))
        workload.placement = ()
        workload.stop_reason = ""
        workload.stop_as = None
        workload.started_at = None
        workload.error_message = why
        if workload.state is State.PAUSED:  # somebody paused it: it waits until it is resumed
            self.changed(workload, "workload.requeued", why)
            return
        self.enqueue(workload)
        self.move(workload, State.PENDING, why, kind="workload.requeued")

    def hand_back(self, workload: Workload, why: str) -> None:
        """Ends a guest here without an end of its own: its owner decides again."""
        if workload.id in self.state.scheduler.running:
            self.free(workload)
        workload.handed_back = True
        workload.error_message = why
        self.end(workload, State.CANCELLED, why)

    def free(self, workload: Workload) -> None:
        self.state.scheduler.ended(workload.id, now_s=self.now_s)
        if workload.master_port is not None:
            self.state.agents.gang_ports_used.discard((workload.master_addr, workload.master_port))
            workload.master_port = None

    def adopt(self, workload: Workload) -> None:
        """Books what a placed workload already holds; for recovery."""
        state = self.state
        started = workload.started_at or workload.updated_at
        state.scheduler.resume(
            state.request(workload), workload.placement, started_s=started.timestamp(), now_s=self.now_s
        )
        if workload.master_port is not None:
            state.agents.gang_ports_used.add((workload.master_addr, workload.master_port))

    def order(self, workload: Workload, kind: OrderKind, reason: str = "", *, scrub: bool = False) -> None:
        """If it does not arrive, the next report shows that, or the lease ends."""
        lease = WorkLease(workload.id, workload.epoch)
        self.emit(fx.SendPeer(workload.runner_hub, OwnerOrder(lease=lease, kind=kind, reason=reason, scrub=scrub)))

    def to_agent(self, task: TaskPlacement, message: StartTask | StopTask | PauseTask | ResumeTask) -> None:
        """To the agent of the task's node, if connected; otherwise the reconciliation at its return makes up for it."""
        agent_id = self.state.agents.agent_of_node.get(task.node_id)
        if agent_id is not None:
            self.emit(fx.Send(agent_id, message))

    def start_task(self, workload: Workload, task: TaskPlacement) -> None:
        state = self.state
        spec = workload.spec
        allowed = spec.countries_allowed
        if allowed and state.hub.country not in allowed:  # checked again: this must never happen
            raise InvariantBroken("residency", workload.id, state.hub.id)
        order = TaskSpec(
            key=TaskKey(workload.id, workload.attempt, task.rank),
            name=spec.name,
            tenant=workload.tenant,
            node_id=task.node_id,
            gpu_ids=task.gpu_ids,
            gpu_indexes=tuple([state.gpu_index[gpu_id] for gpu_id in task.gpu_ids]),
            gpus_modelled=state.hub.provenance is Provenance.MODELLED,
            command=spec.command,
            modelled_duration_s=spec.modelled_duration_s,
            env=spec.env,
            secrets=dict.fromkeys(spec.secrets, ""),  # the runtime fills in the values when it sends
            working_dir=spec.working_dir,
            cpus=spec.resources.cpus,
            memory_gb=spec.resources.memory_gb,
            max_duration_s=spec.max_duration_s,
            stop_grace_s=spec.stop_grace_s,
            world_size=len(workload.placement),
            type=str(spec.type),
            master_addr=workload.master_addr or "127.0.0.1",
            master_port=workload.master_port,
            country=state.hub.country,
            countries_allowed=allowed,
            data=state.guard.before_start(workload) if workload.data_ids else (),
            scrub_after=bool(workload.data_ids) and state.guard.leaves_what_may_not_rest(workload),
            lease_until_s=state.lease_until_s(workload, task),
            trace=workload.trace,
            contents=state.guard.contents_of(workload) if workload.data_ids else (),
            environment=spec.environment,
            image=spec.image or "",
            artifacts=spec.artifacts if task.rank == 0 else (),
        )
        self.to_agent(task, StartTask(order))

    def stop_for_others(self, workload: Workload, why: str, *, kind: str) -> None:
        """TERM, grace, then it waits again: for preemption, draining, defragmentation."""
        workload.stop_reason, workload.stop_as = why, State.PENDING
        self.state.scheduler.stops(workload.id, now_s=self.now_s)
        self.changed(workload, kind, why)
        self.stop_tasks(workload)

    def stop_tasks(self, workload: Workload) -> None:
        for task in workload.placement:
            if task.rank not in workload.ranks_ended:
                self.to_agent(task, self.state.stop_order(workload, task.rank))
