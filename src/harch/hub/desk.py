"""What does the job machine work on? Its memory, and the few moves that every rule is made of.

Each event begins with `begin`, mutates through these moves, and ends with `finish`, which hands over all effects.
"""

from __future__ import annotations

import heapq
from datetime import UTC, datetime
from enum import IntEnum

from harch.base.elapsed import Adopted, elapsed
from harch.base.errors import HarchError, InvariantBroken
from harch.execution.protocol import PauseTask, ResumeTask, StartTask, StopTask, TaskKey, TaskSpec
from harch.federation.offers import Lease, Order, OrderKind
from harch.fleet.model import Fleet, Hub, Provenance
from harch.hub import happenings as h
from harch.hub.admission import Admission
from harch.hub.agents import AgentBook
from harch.hub.audit import drafts
from harch.hub.catalog import Catalog
from harch.hub.faults import FaultBook
from harch.hub.guard import Guard
from harch.hub.registry import Registry
from harch.hub.routing.memory import CarbonMemory
from harch.hub.spill.board import Board
from harch.placement.preview import Preview, preview
from harch.placement.request import Request
from harch.placement.scheduler import Scheduler
from harch.placement.turns.settings import TurnSettings
from harch.sovereignty.audit.entry import POLICY_BUILTIN, Draft
from harch.sovereignty.compiled import Rules
from harch.sovereignty.tags import DataObject
from harch.sovereignty.terrain import Terrain
from harch.workloads.lifecycle import MOVES, State, TaskPlacement, Workload
from harch.workloads.spec import WorkloadSpec


class Closed(IntEnum):
    """Whether a hub takes work. Each also means what those before it mean."""

    OPEN = 0
    CORDONED = 1  # starts nothing new, here or for others; what runs goes on
    DRAINING = 2  # what runs is asked to go elsewhere
    RETIRED = 3  # leaves the federation


class Desk:
    """The state of one hub's work, in memory."""

    def __init__(
        self, fleet: Fleet, hub: Hub, settings: TurnSettings | None = None, rules: Rules | None = None
    ) -> None:
        """Without `rules` nothing is known of any place, so no data may be used."""
        self.hub = hub
        self.catalog = Catalog()
        self.guard = Guard(rules or Rules(Terrain((), ())), hub.id, self.catalog)
        self.registry = Registry()
        self.scheduler = Scheduler(hub, settings or TurnSettings())
        self.agents = AgentBook(hub)
        self.admission = Admission(fleet, hub.id)
        self.policy_version = POLICY_BUILTIN  # in force now; every audited decision names it
        self.now = datetime.min.replace(tzinfo=UTC)
        self.adopted: tuple[Adopted, ...] = ()
        self.boot_s = 0.0  # for leases: how long, whatever the time
        self.spill = Board()
        self.carbon = CarbonMemory()
        self.closed = Closed.OPEN
        self.faults = FaultBook()  # of the process: the next machine is given the same
        self.set_aside: set[str] = set()  # pending work that made a round fail, until it is tried again
        self.subject = ""  # the workload that a round is at
        self._changes_before = 0
        self._gpu_index = {gpu.id: gpu.index for node in hub.nodes for gpu in node.gpus}
        self._start_deadlines: list[tuple[float, str]] = []
        self._dirty: dict[str, Workload] = {}
        self._effects: list[h.Effect] = []
        self._preview: Preview | None = None  # of the next round, until something happens

    @property
    def now_s(self) -> float:
        return self.now.timestamp()

    def begin(self, now: datetime, boot_s: float) -> None:
        self.now, self.boot_s = now, boot_s
        self._dirty = {}
        self._effects = []
        self._preview = None
        self.subject = self.scheduler.subject = ""
        self._changes_before = self.scheduler.changes

    @property
    def is_changed(self) -> bool:
        """Since `begin`, as far as effects and bookings tell: whoever refuses an event must have changed nothing."""
        return bool(self._dirty or self._effects) or self.scheduler.changes != self._changes_before

    @property
    def suspect(self) -> str:
        """The own or borrowed work that a round was at when it failed; empty if that is not known."""
        found = self.subject or self.scheduler.subject
        return found if found in self.registry.workloads else ""

    def set_jumps(self, adopted: tuple[Adopted, ...]) -> None:
        """Times that the clock was set, and stayed so: durations are told without them."""
        self.adopted = self.registry.adopted = adopted

    def elapsed_s(self, since: datetime) -> float:
        """How long ago that really was."""
        return elapsed(since, self.now, self.adopted).total_seconds()

    def finish(self) -> list[h.Effect]:
        return [*(h.Save(workload) for workload in self._dirty.values()), *self._effects]

    def emit(self, effect: h.Effect) -> None:
        self._effects.append(effect)

    def note(self, kind: str, subject: str, message: str) -> None:
        self.emit(h.Record(kind, subject, "", message))

    def audit(self, draft: Draft) -> None:
        self.emit(h.Audit(draft))

    def record_data(self, kind: str, data: DataObject, message: str) -> None:
        facts: dict[str, object] = {"name": data.name, "kind": data.kind, "tag_revision": data.tag_revision}
        self.emit(h.Record(kind, data.id, data.tenant, message, facts))

    def next_round(self) -> Preview:
        """What the next round of placement would do. Costs a copy of the books, once per event."""
        if self._preview is None:
            self._preview = preview(self.scheduler, now_s=self.now_s)
        return self._preview

    def countries_of(self, hubs: tuple[str, ...]) -> tuple[str, ...]:
        """Where these hubs stand, in their order."""
        sites = (self.guard.rules.terrain.site(hub) for hub in hubs)
        return tuple(dict.fromkeys(site.country for site in sites if site is not None and site.country is not None))

    # Workloads

    def known(self, workload_id: str) -> Workload:
        workload = self.registry.workloads.get(workload_id)
        if workload is None:
            raise HarchError("E0304", f"workload {workload_id} ended long ago", hint="`harch ps --all-states` shows it")
        return workload

    def unfinished(self, workload_id: str) -> Workload:
        workload = self.known(workload_id)
        if workload.state.is_final:
            raise wrong_state(workload, "it has already ended")
        return workload

    def current(self, key: TaskKey) -> Workload | None:
        """The workload of this execution, if it is its present attempt and still unfinished."""
        workload = self.registry.workloads.get(key.workload_id)
        if workload is None or workload.attempt != key.attempt or not workload.is_placed:
            return None
        return workload

    def changed(self, workload: Workload, kind: str = "", message: str = "") -> None:
        workload.updated_at = self.now
        self._dirty[workload.id] = workload
        if workload.guest and (workload.report_due or not workload.state.is_final):
            self.spill.to_report[workload.id] = workload
        if kind:
            data: dict[str, object] = {"name": workload.spec.name, "state": workload.state, "attempt": workload.attempt}
            self.emit(h.Record(kind, workload.id, workload.tenant, message, data))

    def move(self, workload: Workload, state: State, why: str, *, kind: str = "") -> None:
        if state not in MOVES[workload.state]:
            raise InvariantBroken(f"no move from {workload.state} to {state}", workload.id)
        workload.state = state
        self.changed(workload, kind or f"workload.{state}", why)

    def end(self, workload: Workload, state: State, why: str) -> None:
        """The last move of a workload."""
        workload.completed_at = self.now
        workload.report_due = workload.guest
        self.move(workload, state, why)
        self.audit(drafts.ended(workload, self.hub.country, policy_version=self.policy_version))
        self.guard.unwatch(workload)
        self.carbon.forget(workload.id)
        self.faults.forget(workload.id)
        if workload.guest:
            self.spill.guests.pop(workload.id, None)
            self.spill.unbooked[workload.id] = workload
        else:
            self.registry.finished(workload)
            self.spill.settled(workload.id)

    def enqueue(self, workload: Workload) -> None:
        """Lets it wait for its turn, or for its power; if it may go elsewhere, other hubs hear of it in a moment."""
        within_s = workload.spec.gang.start_within_s
        if within_s is not None and workload.attempt == 0:
            heapq.heappush(self._start_deadlines, (workload.created_at.timestamp() + within_s, workload.id))
        if self.faults.held(workload.id, self.boot_s) is not None:
            self.set_aside.add(workload.id)
            return
        self.set_aside.discard(workload.id)
        asks_others = self.spill.enabled and workload.home_fits
        waits = self.carbon.keeps_waiting(
            workload, home=self.hub.id, asks_others=asks_others, now=self.now, boot_s=self.boot_s
        )
        if workload.home_fits and not waits:
            self.scheduler.submit(self.request(workload), now_s=self.now_s)
        if workload.id not in self.carbon.held:
            self.spill.waits(workload.id, self.boot_s)

    def take_up_again(self) -> None:
        """Work that was set aside and may be tried again."""
        for workload_id in sorted(self.set_aside):
            workload = self.registry.workloads.get(workload_id)
            waits = workload is not None and workload.state is State.PENDING and not workload.leased
            if not waits or self.faults.held(workload_id, self.boot_s) is None:
                self.set_aside.discard(workload_id)
            if workload is not None and waits and workload_id not in self.set_aside:
                self.subject = workload_id
                self.enqueue(workload)

    def too_late(self) -> list[Workload]:
        """Those that wait and were to have started by now, once each.

        Whoever began to wait several times is noted as often, also with a time that its specification no longer has.
        """
        late: dict[str, Workload] = {}
        while self._start_deadlines and self._start_deadlines[0][0] <= self.now_s:
            _, workload_id = heapq.heappop(self._start_deadlines)
            workload = self.registry.workloads.get(workload_id)
            if workload is None or workload.state is not State.PENDING or workload.attempt:
                continue
            within_s = workload.spec.gang.start_within_s
            if within_s is not None and workload.created_at.timestamp() + within_s <= self.now_s:
                late[workload_id] = workload
        return list(late.values())

    def requeue(self, workload: Workload, why: str) -> None:
        """Back to waiting, its GPUs freed. A guest goes back to its owner instead."""
        if workload.guest:
            self.hand_back(workload, why)
            return
        if workload.id in self.scheduler.running:
            self.free(workload)
        self.audit(drafts.requeued(workload, self.hub.country, policy_version=self.policy_version))
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
        if workload.id in self.scheduler.running:
            self.free(workload)
        workload.handed_back = True
        workload.error_message = why
        self.end(workload, State.CANCELLED, why)

    def free(self, workload: Workload) -> None:
        self.scheduler.ended(workload.id, now_s=self.now_s)
        if workload.master_port is not None:
            self.agents.gang_ports_used.discard((workload.master_addr, workload.master_port))
            workload.master_port = None

    def adopt(self, workload: Workload) -> None:
        """Books what a placed workload already holds; for recovery."""
        started = workload.started_at or workload.updated_at
        self.scheduler.resume(
            self.request(workload), workload.placement, started_s=started.timestamp(), now_s=self.now_s
        )
        if workload.master_port is not None:
            self.agents.gang_ports_used.add((workload.master_addr, workload.master_port))

    def has_hardware_of(self, workload: Workload) -> bool:
        """False if the fleet file no longer has a node or GPU that the workload was placed on."""
        rows = self.scheduler.room.row_of
        return all(
            task.node_id in rows and all(gpu_id in self._gpu_index for gpu_id in task.gpu_ids)
            for task in workload.placement
        )

    def request(self, workload: Workload) -> Request:
        return Request.of(
            workload.id,
            workload.spec,
            tenant=workload.tenant,
            submitted_s=workload.created_at.timestamp(),
            hubs_allowed=self.guard.hubs_allowed(self.guard.ask_of(workload)) if workload.data_ids else None,
        )

    # The hub that runs it

    def order(self, workload: Workload, kind: OrderKind, reason: str = "", *, scrub: bool = False) -> None:
        """If it does not arrive, the next report shows that, or the lease ends."""
        lease = Lease(workload.id, workload.epoch)
        self.emit(h.SendPeer(workload.runner_hub, Order(lease=lease, kind=kind, reason=reason, scrub=scrub)))

    # Agents

    def to_agent(self, task: TaskPlacement, message: StartTask | StopTask | PauseTask | ResumeTask) -> None:
        """To the agent of the task's node, if connected; otherwise the reconciliation at its return makes up for it."""
        agent_id = self.agents.agent_of_node.get(task.node_id)
        if agent_id is not None:
            self.emit(h.Send(agent_id, message))

    def start_task(self, workload: Workload, task: TaskPlacement) -> None:
        spec = workload.spec
        allowed = spec.countries_allowed
        if allowed and self.hub.country not in allowed:  # checked again: this must never happen
            raise InvariantBroken("residency", workload.id, self.hub.id)
        order = TaskSpec(
            key=TaskKey(workload.id, workload.attempt, task.rank),
            name=spec.name,
            tenant=workload.tenant,
            node_id=task.node_id,
            gpu_ids=task.gpu_ids,
            gpu_indexes=tuple(self._gpu_index[gpu_id] for gpu_id in task.gpu_ids),
            gpus_modelled=self.hub.provenance is Provenance.MODELLED,
            command=spec.command,
            modelled_duration_s=spec.modelled_duration_s,
            env=spec.env,
            secrets=dict.fromkeys(spec.secrets, ""),  # the driver fills in the values when it sends
            working_dir=spec.working_dir,
            cpus=spec.resources.cpus,
            memory_gb=spec.resources.memory_gb,
            max_duration_s=spec.max_duration_s,
            stop_grace_s=spec.stop_grace_s,
            world_size=len(workload.placement),
            type=str(spec.type),
            master_addr=workload.master_addr or "127.0.0.1",
            master_port=workload.master_port,
            country=self.hub.country,
            countries_allowed=allowed,
            data=self.guard.before_start(workload) if workload.data_ids else (),
            scrub_after=bool(workload.data_ids) and self.guard.leaves_what_may_not_rest(workload),
            lease_until_s=self.lease_until_s(workload, task),
            trace=workload.trace,
        )
        self.to_agent(task, StartTask(order))

    def lease_until_s(self, workload: Workload, task: TaskPlacement) -> float | None:
        """When a guest's lease ends on the clock of the task's agent; None for own work.

        Counted from an earlier reading of that clock, so whatever a message takes only makes it earlier.
        """
        if not workload.guest:
            return None
        agent = self.agents.agents.get(self.agents.agent_of_node.get(task.node_id, ""))
        lease = self.spill.guests.get(workload.id)
        if agent is None or lease is None:
            return 0.0  # long over
        agent_boot_s, own_boot_s = agent.clock
        return max(0.0, agent_boot_s + (lease.until_s - own_boot_s))

    def stop_for_others(self, workload: Workload, why: str, *, kind: str) -> None:
        """TERM, grace, then it waits again: for preemption, draining, defragmentation."""
        workload.stop_reason, workload.stop_as = why, State.PENDING
        self.scheduler.stops(workload.id, now_s=self.now_s)
        self.changed(workload, kind, why)
        self.stop_tasks(workload)

    def stop_tasks(self, workload: Workload) -> None:
        for task in workload.placement:
            if task.rank not in workload.ranks_ended:
                self.to_agent(task, self.stop_order(workload, task.rank))

    @staticmethod
    def stop_order(workload: Workload, rank: int) -> StopTask:
        """Work that broke a rule about data gets no grace, and leaves nothing behind."""
        grace_s = 0.0 if workload.scrub else workload.spec.stop_grace_s
        return StopTask(TaskKey(workload.id, workload.attempt, rank), grace_s, scrub=workload.scrub)


def may_leave(spec: WorkloadSpec) -> bool:
    """Secrets stay where they were stored, and so does what needs them."""
    return not spec.stay_home and not spec.secrets


def wrong_state(workload: Workload, why: str) -> HarchError:
    return HarchError(
        "E0304",
        f"workload {workload.id} is {workload.state}: {why}",
        hint=f"`harch why {workload.id}` tells more",
    )
