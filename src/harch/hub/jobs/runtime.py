"""How does the job machine touch the world? Effects to disk first, then out to the agents; after a fault, anew.

If an event or a write fails, memory may be ahead of the disk. The runtime then stops acting, drops the agents, waits
until what was promised is on disk and the disk takes writes, and rebuilds the machine from it: the same path as after a
crash, so there is only one to trust. What failed rests before it is tried again (`faults`). A broken invariant is
another matter: it ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from uuid import uuid4

from msgspec import structs

from harch.base.clock import SteadyClock, sleep_unless
from harch.base.errors import HarchError, InvariantBroken
from harch.carbon.planning.settings import PlanSettings
from harch.execution.protocol import HubMessage, StartTask, TaskEnded
from harch.federation.offers import LeaseTerms, LendingMessage
from harch.fleet.model import Fleet, Hub
from harch.hub.audit.table import AuditTrail
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import BidPower, EventContext, JobLimits, PolicyInForce, is_taken_on_a_full_disk
from harch.hub.jobs.faults import FaultBook, kind_of, words_of
from harch.hub.jobs.machine import JobMachine, JobObserver
from harch.hub.jobs.registry import IDEMPOTENCY_WINDOW, RETRY_WINDOW
from harch.hub.jobs.supervision import kept_up, survived
from harch.hub.store import rows
from harch.hub.store.committer import Committer, Mark, too_slow
from harch.hub.store.database import Database, storage_error
from harch.hub.store.rows import Statement
from harch.placement.queueing.settings import QueueSettings
from harch.placement.scheduler import Scheduler
from harch.sovereignty.audit.chain import ChainHead, Draft
from harch.sovereignty.compiled import Rules
from harch.wire.events import EventRecord
from harch.workloads.lifecycle import ExitReason, State, Workload

RETRY_S, RETRY_S_MAX = 1.0, 30.0  # a disk that fails, and a machine that cannot be rebuilt from it
LOOK_AGAIN_S = 1.0
GATHER_S = 0.003  # under load a round then serves several requests, and costs hardly more than for one
LENDING_EVERY_S = 0.05
AUDIT_TAGS_S = 2.0  # how often running work is compared with the tags of its data, besides each change of a tag
TRIM_EVERY_EVENTS = 10_000
RESERVE_EVERY_S = 5.0
EQUIP_FAULTS_MAX = 3  # rounds in a row that failed

_log = logging.getLogger("harch.hub")


class JobRuntime:
    """Owns the machine and the committer.

    `send` delivers to an agent, `observer` looks on, `on_restart` drops all agents, `on_broken` ends the process.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub: Hub,
        rules: Rules,
        settings: QueueSettings | None,
        database: Database,
        trail: AuditTrail,
        clock: SteadyClock,
        send: Callable[[str, HubMessage], None],
        send_peer: Callable[[str, LendingMessage], None],
        open_secrets: Callable[[str, tuple[str, ...]], dict[str, str]],
        observer: JobObserver,
        policy: PolicyInForce,
        on_restart: Callable[[str], None],
        on_broken: Callable[[InvariantBroken], None],
        leases: LeaseTerms | None = None,  # None: a hub on its own
        note_head: Callable[[ChainHead, int], None] | None = None,  # what is on disk now; called from another thread
        held: HarchError | None = None,  # why nothing may be written
    ) -> None:
        self._fleet, self._hub, self._rules, self._database, self._clock = fleet, hub, rules, database, clock
        self._settings = settings
        self._send, self._send_peer, self._open_secrets = send, send_peer, open_secrets
        self._observer, self._on_restart, self._on_broken = observer, on_restart, on_broken
        self._trail, self._committer = (
            trail,
            Committer(
                database,
                on_failure=self._disk_failed,
                on_committed=None if note_head is None else lambda mark: note_head(mark.head, mark.events),
            ),
        )
        self.held, self.opened = held, asyncio.Event()
        self._placement_planned = False
        self._happened = asyncio.Event()  # since lending was looked at
        self._waiters: set[asyncio.Future[None]] = set()
        self._mending: asyncio.Task[None] | None = None
        self._notes: list[ev.Event] = []  # for the history, once the machine is sound again
        self.equip: Callable[[Scheduler], None] | None = None  # called with each new machine's scheduler
        self.faults = FaultBook()
        self._leases, self._policy, self._limits, self._power = leases, policy, JobLimits(), BidPower()
        self.not_ready = "starting"
        self.short_of_space: HarchError | None = None  # then only what ends work is taken
        self.seq = database.last_event()  # given out
        self.seq_stored = self.seq  # on disk
        self.machine = self._new_machine()
        self._restore()
        self._post_notes()

    def handle(self, *events: ev.Event) -> asyncio.Future[None]:
        """Resolves when the consequences of all of them are on disk. Raises at once if the machine refuses one.

        What comes of several goes to disk together. E1010: the hub failed at one, and nothing of any of them is kept.
        """
        if self.held is not None:
            raise HarchError(self.held.code, self.held.message, hint=self.held.hint)
        if self.not_ready:
            raise self._committer.failed or HarchError(  # one cause, one error
                "E0801", f"hub {self._hub.name} is not ready: {self.not_ready}", hint="try again", retry_after_s=2
            )
        if self.short_of_space is not None and not all(map(is_taken_on_a_full_disk, events)):
            raise self.short_of_space
        if not self._committer.has_room:  # before anything changes: memory would be ahead of the disk for good
            raise too_slow()
        self._happened.set()
        context = self.context()
        now = context.now
        if self.faults.has_causes:
            for event in events:
                if (rest_s := self.faults.rest_s(event, context.boot_s)) > 0:
                    raise _fault_error(event, rest_s)
        effects: list[fx.Effect] = []
        refusal: HarchError | None = None
        event = events[0]
        try:
            for event in events:
                try:
                    done = self.machine.apply(event, context)
                except HarchError as error:
                    if self.machine.is_changed:  # a refusal that comes too late is a fault, too
                        raise
                    refusal = error
                    break
                self._observer.handled(event, done, now)
                effects += done
            if refusal is not None and not effects:
                raise refusal
            stored = self._carry_out(effects, now)
        except InvariantBroken as broken:
            self._broken(broken)
            raise
        except Exception as error:
            if error is refusal:
                raise
            raise self._failed(event, error) from error
        if refusal is not None:
            raise refusal
        if self.faults.has_causes:
            for event in events:
                self.faults.went_well(event)
        return stored

    def post(self, *events: ev.Event) -> bool:
        """For what nobody waits for. False: not all of it was taken, because the hub is not ready or failed at it.

        Whoever posts says it again, or the reconciliation with agents and peers makes up for it.
        """
        taken = events
        if self.faults.has_causes:
            boot_s = self._clock.boot_s()
            taken = tuple([event for event in taken if self.faults.rest_s(event, boot_s) <= 0])
        if self.short_of_space is not None:
            taken = tuple(filter(is_taken_on_a_full_disk, taken))
        if self.not_ready or not taken:
            return False
        try:
            self.handle(*taken)
        except HarchError as error:
            _log.warning("%s: %s", ", ".join(dict.fromkeys(map(words_of, taken))), error.message)
            return False
        return len(taken) == len(events)

    def note(self, kind: str, subject: str, message: str) -> None:
        """A line of the hub's history."""
        self.post(ev.Noted(kind, subject, message))

    def record(self, draft: Draft) -> asyncio.Future[None]:
        """A line of the audit chain, about what is not the machine's."""
        return self.write([], [draft])

    def write(self, statements: list[Statement], drafts: list[Draft]) -> asyncio.Future[None]:
        """For what is not the machine's: keys, secrets, refusals; with what the audit chain says about it."""
        if self.short_of_space is not None:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(self.short_of_space)
            return refused
        head = self._trail.head
        return self._submit([*statements, *self._trail.link(drafts)], head, self.seq)

    def plan_placement(self) -> None:
        """Asks for a round of placement in a moment; what else arrives until then shares it."""
        if not self._placement_planned and not self.not_ready:
            self._placement_planned = True
            asyncio.get_running_loop().call_later(GATHER_S, self._place)

    async def keep_placing(self) -> None:
        """Until cancelled: what waits for time to pass, e.g. for its hour, or a gang that may shrink, is looked at."""
        while True:
            await self._clock.sleep(LOOK_AGAIN_S)
            with self.survived("scheduling"):
                if not self.not_ready and self.machine.is_carbon_due(self._clock.now(), self._clock.boot_s()):
                    self.post(ev.CarbonDue())
                self.plan_placement()

    async def keep_lending(self) -> None:
        """Until cancelled: what waits is offered to other hubs, leases and bids end."""
        while True:
            if self.machine.state.lending.is_idle:
                await sleep_unless(self._happened, self._clock, LOOK_AGAIN_S)
                self._happened.clear()
            await self._clock.sleep(LENDING_EVERY_S)
            with self.survived("offering work to other hubs"):
                if not self.not_ready and self.machine.is_lending_due(self._clock.boot_s()):
                    self.post(ev.LendingDue())
                    self.plan_placement()

    def plan_by(self, settings: PlanSettings) -> None:
        """What the operator set about carbon; for every event from now on."""
        self._limits = structs.replace(self._limits, carbon=settings)

    def bid_with(self, power: BidPower) -> None:
        """Carbon and price of one more kWh here; for every bid from now on."""
        self._power = power

    def context(self) -> EventContext:
        """What is in force now, for an event that is decided now."""
        return EventContext(
            now=self._clock.now(),
            boot_s=self._clock.boot_s(),
            policy_version=self._policy.version,
            adopted=self._clock.adopted,
            limits=self._limits,
            power=self._power,
        )

    def note_agent_clock(self, agent_id: str, agent_boot_s: float) -> None:
        self.machine.note_agent_clock(agent_id, agent_boot_s, boot_s=self._clock.boot_s())

    async def keep_auditing(self) -> None:
        """Until cancelled: gate 4, for whatever no event has announced."""
        while True:
            await self._clock.sleep(AUDIT_TAGS_S)
            if self.machine.state.guard.has_readers:
                self.post(ev.TagsDue())

    async def keep_reserve(self) -> None:
        """Until cancelled: on a full disk there is room left to stop work; see `store.reserve`."""
        while True:
            with self.survived("keeping a reserve on the disk"):
                await self.look_at_space()
            await self._clock.sleep(RESERVE_EVERY_S)

    async def look_at_space(self) -> None:
        try:
            await asyncio.to_thread(self._database.renew_reserve)
        except OSError as error:
            full = storage_error(error, self._database.path)
            if full.code != "E1002":
                raise
            if self.short_of_space is None:
                _log.error("%s: no new work until there is space; work can be stopped", full.message)
                self.short_of_space = full
                await self._committer.drain()
                self._database.save_space(True)
            return
        if self.short_of_space is not None:
            await self._committer.drain()
            self._database.save_space(False)
            self.short_of_space = None
            self.post(ev.Noted("store.recovered", self._hub.id, "there is space on the disk again"))
            self.plan_placement()

    async def until_ready(self, timeout_s: float) -> None:
        """A fault or a full disk is over, or the time is."""
        until_s = self._clock.monotonic_s() + timeout_s
        while self.not_ready and self._clock.monotonic_s() < until_s:
            await self._clock.sleep(LOOK_AGAIN_S / 10)

    async def wait_for_event(self, after: int, timeout_s: float) -> None:
        if self.seq_stored > after:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)

    def hold(self, why: HarchError) -> None:
        """From now on nothing is decided and nothing is written: the records cannot be trusted. Reading goes on."""
        first, self.held, self.not_ready = self.held is None, why, f"{why.message}; {why.hint}"
        self._committer.refuse(why)
        if first:
            self.opened.clear()
            self._on_restart(why.message)

    def release(self) -> None:
        """Starts over from what is on disk."""
        self.held = None
        self._committer.reset()
        self._restore()

    @property
    def is_writing(self) -> bool:
        return self._committer.is_busy

    async def close(self) -> None:
        self.not_ready = "stopping"
        if self._mending is not None:
            self._mending.cancel()
        await self._committer.close()

    def survived(self, what: str) -> AbstractContextManager[None]:
        """The edge of a turn of one of this hub's loops."""
        return survived(what, self.faults)

    async def kept_up(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        """One of this hub's loops, begun anew whenever an error ends it."""
        await kept_up(what, run, self.faults, self._clock)

    def _place(self) -> None:
        self._placement_planned = False
        state = self.machine.state
        if self.not_ready or self.short_of_space is not None or not (state.scheduler.queue or state.set_aside):
            return
        if self.post(ev.PlacementDue()) and state.more_to_place:
            self.plan_placement()

    def _carry_out(self, effects: list[fx.Effect], now: datetime) -> asyncio.Future[None]:
        messages: list[fx.Send | fx.SendPeer] = []
        first, head = self.seq, self._trail.head
        try:
            done = self._submit(self._statements(effects, messages, now), head, first)
        except BaseException:
            self.seq, self._trail.head = first, head  # what others write meanwhile goes on from there
            raise
        seq = self.seq
        done.add_done_callback(lambda future: self._stored(future, seq, messages))
        return done

    def _statements(
        self, effects: list[fx.Effect], messages: list[fx.Send | fx.SendPeer], now: datetime
    ) -> list[Statement]:
        """For the disk; what is to be sent afterwards is added to `messages`."""
        saves: dict[str, Workload] = {}  # once each: what several events changed is written as it is in the end
        statements: list[Statement] = []
        drafts: list[Draft] = []
        first = self.seq
        for effect in effects:
            # `type`: a third of the time of `match`, for what nearly every event has
            if type(effect) is fx.Save:
                saves[effect.workload.id] = effect.workload
            elif type(effect) is fx.Record:
                statements.append(rows.save_event(self._numbered(effect, now)))
            elif type(effect) is fx.Audit:
                drafts.append(effect.draft)
            elif type(effect) is fx.Send or type(effect) is fx.SendPeer:
                messages.append(effect)
            else:
                statements += _rare_statements(effect)
        if self.seq // TRIM_EVERY_EVENTS != first // TRIM_EVERY_EVENTS:
            statements.append(rows.drop_events_before(self.seq - rows.EVENTS_MAX))
            statements.append(rows.drop_idempotency_keys_before(now, IDEMPOTENCY_WINDOW))
        saved = [rows.save_workload(workload) for workload in saves.values()]
        return [*saved, *statements, *self._trail.link(drafts, now)]

    def _submit(self, statements: list[Statement], head: ChainHead, seq: int) -> asyncio.Future[None]:
        """To the disk. What is turned away at once never was: the chain and the events go on from where they were."""
        done = self._committer.submit(statements, Mark(self._trail.head, self.seq))
        if done.done():
            self._trail.head, self.seq = head, seq
        return done

    def _numbered(self, record: fx.Record, now: datetime) -> EventRecord:
        self.seq += 1
        self._observer.recorded(record, now)
        return EventRecord(
            seq=self.seq,
            at=now,
            kind=record.kind,
            subject=record.subject,
            tenant=record.tenant,
            message=record.message,
            data=record.data,
        )

    def _stored(self, done: asyncio.Future[None], seq: int, messages: list[fx.Send | fx.SendPeer]) -> None:
        if done.exception() is not None:
            return  # `_disk_failed` sees to it
        left = deque(messages)
        while left:  # one that cannot be sent keeps no other back
            with self.survived("sending committed messages"):
                while left:
                    self._deliver(left.popleft())
        if seq > self.seq_stored:
            self.seq_stored = seq
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _deliver(self, effect: fx.Send | fx.SendPeer) -> None:
        """Raises if it cannot be sent."""
        if isinstance(effect, fx.SendPeer):
            self._send_peer(effect.hub_id, effect.message)
            return
        try:
            message = self._with_secrets(effect.message)
        except Exception as error:
            if isinstance(effect.message, StartTask):  # nobody else would ever say that it does not start
                detail = f"its secrets cannot be opened ({kind_of(error)})"
                key, now = effect.message.task.key, self._clock.now()
                end = TaskEnded(key=key, reason=ExitReason.NOT_STARTED, at=now, detail=detail)
                asyncio.get_running_loop().call_soon(self.post, ev.TaskEndSeen(effect.agent_id, end))
            raise
        self._send(effect.agent_id, message)

    def _with_secrets(self, message: HubMessage) -> HubMessage:
        if isinstance(message, StartTask) and message.task.secrets:
            task = message.task
            return StartTask(structs.replace(task, secrets=self._open_secrets(task.tenant, tuple(task.secrets))))
        return message

    def _restore(self) -> None:
        """From what is on disk. Waiting work that makes this fail is set aside, so that it does not keep the rest."""
        while True:
            context, machine = self.context(), self._new_machine()
            now = context.now
            try:
                effects = machine.restore(
                    self._database.workloads_to_restore(now - RETRY_WINDOW),
                    self._database.idempotency_keys(now - timedelta(hours=24)),
                    self._database.conditions(),
                    self._database.data_entries(),
                    context=context,
                    lifetime=uuid4().hex[:12],
                )
            except (InvariantBroken, HarchError, sqlite3.Error, OSError):
                raise
            except Exception as error:
                if not self._may_do_without(machine, error):
                    raise
            else:
                break
        self.machine = machine
        self._observer.restored(machine)
        self._equip(machine)
        self.seq = self.seq_stored = self._database.last_event()
        self._trail.reload()
        if self.held is not None:
            self.not_ready = f"{self.held.message}; {self.held.hint}"
            self._committer.refuse(self.held)
            return
        self.not_ready = ""
        self.opened.set()
        self._carry_out(effects, now)
        self.plan_placement()

    def _equip(self, machine: JobMachine) -> None:
        """With the learned policy, unless rounds fail with it: best fit needs nothing that could be wrong."""
        if self.equip is None:
            return
        if self.faults.times(ev.PlacementDue()) >= EQUIP_FAULTS_MAX:
            _log.warning("placing by best fit: the last rounds have failed")
            return
        with self.survived("equipping the scheduler"):
            self.equip(machine.state.scheduler)

    def _new_machine(self) -> JobMachine:
        return JobMachine(self._fleet, self._hub, self._settings, self._rules, leases=self._leases, faults=self.faults)

    def _may_do_without(self, machine: JobMachine, error: Exception) -> bool:
        """Whether the machine failed at work that holds nothing, and could be rebuilt with that set aside."""
        boot_s = self._clock.boot_s()
        workload = machine.state.registry.workloads.get(machine.suspect)
        if workload is None or workload.state is not State.PENDING or self.faults.held(workload.id, boot_s) is not None:
            return False
        self.faults.total += 1
        self.faults.hold(workload.id, error, boot_s)
        self._notes.append(ev.FaultSeen("restoring", kind_of(error), workload.id))
        _log.error("workload %s cannot be loaded from disk: set aside", workload.id, exc_info=error)
        return True

    # When something fails

    def _broken(self, broken: InvariantBroken) -> None:
        self.not_ready = str(broken)
        self._on_broken(broken)

    def _failed(self, event: ev.Event, error: Exception) -> HarchError:
        """The error for whoever asked. What was booked for it, or half booked, is gone with this machine."""
        boot_s, suspect = self._clock.boot_s(), self.machine.suspect
        fault = self.faults.failed(event, error, boot_s)
        if suspect:
            self.faults.hold(suspect, error, boot_s)
        _log.error("the hub failed at `%s`; it restores its state from disk", words_of(event), exc_info=error)
        self._notes.append(ev.FaultSeen(words_of(event), fault.error, suspect))
        self._start_over(f"it failed at `{words_of(event)}` and restores its state from disk")
        return _fault_error(event, max(0.0, fault.until_s - boot_s))

    def _disk_failed(self, error: HarchError) -> None:
        if self._mending is None and self.not_ready != "stopping":
            _log.error("storage failed, no new work until it recovers: %s", error.message)
        self._notes.append(ev.Noted("store.recovered", self._hub.id, "storage works again; restored from disk"))
        self._start_over(error.message)

    def _start_over(self, why: str) -> None:
        if self.not_ready == "stopping":
            return
        self.not_ready = why
        self._on_restart(why)
        if self._mending is None:
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    async def _mend(self) -> None:
        """Until everything that was promised is on disk and the disk takes writes; then starts over from what it holds.

        Whoever was promised something before the fault gets it: that is on its way to the disk already.
        """
        wait_s = RETRY_S
        while True:
            try:
                if self._committer.failed is None:
                    await self._committer.drain()
                if self._committer.failed is not None:
                    await self._clock.sleep(wait_s)
                    if self._committer.failed.code == "E1002":
                        self.short_of_space = self._committer.failed  # until the reserve can be renewed
                        self._database.save_space(True)
                    self._database.write([("UPDATE schema_version SET version = version", ())])
                    self._committer.reset()
                self._restore()
                break
            except InvariantBroken as broken:
                self._broken(broken)
                return
            except (sqlite3.Error, OSError) as error:
                self._committer.failed = storage_error(error, self._database.path)
            except HarchError as error:  # of the drain: the disk failed on the way
                self._committer.failed = self._committer.failed or error
            except Exception as error:  # noqa: BLE001 - the hub stays closed, says why, and tries again
                self.faults.total += 1
                self.not_ready = f"it cannot be restored from disk ({kind_of(error)})"
                _log.exception("the hub cannot be restored from disk; retrying in %.0f s", wait_s)
                await self._clock.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_S_MAX)
        self._mending = None
        _log.warning("restored from disk")
        self._post_notes()

    def _post_notes(self) -> None:
        notes, self._notes = dict.fromkeys(self._notes), []
        for note in notes:
            self.post(note)


def _rare_statements(effect: fx.Effect) -> list[Statement]:
    match effect:
        case fx.SaveCondition(kind, subject, value, why):
            return [rows.save_condition(kind, subject, value, why)]
        case fx.SaveData(data):
            return [rows.save_data(data)]
        case fx.DropData(data_id):
            return [rows.drop_data(data_id)]
        case fx.SaveName(workload):
            return [rows.save_name(workload)]
        case fx.SaveLabels(workload):
            return rows.save_labels(workload)
        case fx.SaveIdempotencyKey(entry):
            return [rows.save_idempotency_key(entry)]
        case _:
            return []


def _fault_error(event: ev.Event, rest_s: float) -> HarchError:
    return HarchError(
        "E1010",
        f"the hub failed at `{words_of(event)}`; nothing of it was kept",
        hint="`harch events` shows when the hub failed (hub.fault), and its log shows why; please report it",
        retry_after_s=math.ceil(rest_s) or 1,
    )
