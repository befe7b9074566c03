"""How does the job machine touch the world? Effects to disk first, then out to the agents; after a failed write, anew.

If a write fails, memory is ahead of the disk. The driver then stops acting, drops the agents, waits until the disk
takes writes again, and rebuilds the machine from it: the same path as after a crash, so there is only one to trust.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import uuid4

from msgspec.structs import replace

from harch.base.clock import Clock
from harch.base.errors import HarchError, InvariantBroken
from harch.carbon.planning.settings import PlanSettings
from harch.execution.protocol import HubMessage, StartTask
from harch.federation.leases import LeaseTerms
from harch.federation.offers import SpillMessage
from harch.fleet.model import Fleet, Hub
from harch.hub import happenings as h
from harch.hub.audit.trail import AuditTrail
from harch.hub.machine import JobMachine
from harch.hub.registry import IDEMPOTENCY_WINDOW, RETRY_WINDOW
from harch.hub.store import data_rows, rows
from harch.hub.store.committer import Committer
from harch.hub.store.database import Database, storage_error
from harch.hub.store.rows import Statement
from harch.hub.tracing.watch import Watch
from harch.hub.views import EventRecord
from harch.placement.scheduler import Scheduler
from harch.placement.turns.settings import TurnSettings
from harch.sovereignty.audit.chain import Head
from harch.sovereignty.audit.entry import Draft
from harch.sovereignty.compiled import Rules
from harch.workloads.lifecycle import Workload

RETRY_DISK_S = 1.0
LOOK_AGAIN_S = 1.0
GATHER_S = 0.003  # under load a round then serves several requests, and costs hardly more than for one
SPILL_EVERY_S = 0.05
AUDIT_TAGS_S = 2.0  # how often running work is compared with the tags of its data, besides each change of a tag
TRIM_EVERY_EVENTS = 10_000

_log = logging.getLogger("harch.hub")


class Driver:
    """Owns the machine and the committer.

    `send` delivers to an agent, `watch` looks on, `on_restart` drops all agents, `on_broken` ends the process.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub: Hub,
        rules: Rules,
        settings: TurnSettings | None,
        database: Database,
        trail: AuditTrail,
        clock: Clock,
        send: Callable[[str, HubMessage], None],
        send_peer: Callable[[str, SpillMessage], None],
        open_secrets: Callable[[str, tuple[str, ...]], dict[str, str]],
        watch: Watch,
        on_restart: Callable[[str], None],
        on_broken: Callable[[InvariantBroken], None],
        leases: LeaseTerms | None = None,  # None: a hub on its own
    ) -> None:
        self._fleet, self._hub, self._rules, self._database, self._clock = fleet, hub, rules, database, clock
        self._settings = settings
        self._send, self._send_peer, self._open_secrets = send, send_peer, open_secrets
        self._watch, self._on_restart, self._on_broken = watch, on_restart, on_broken
        self._trail, self._committer = trail, Committer(database, on_failure=self._disk_failed)
        self._placement_planned = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._mending: asyncio.Task[None] | None = None
        self.equip: Callable[[Scheduler], None] | None = None  # called with each new machine's scheduler
        self._leases, self._plan_settings = leases, PlanSettings()
        self.not_ready = "starting"
        self.seq = database.last_event()  # given out
        self.seq_stored = self.seq  # on disk
        self.machine = JobMachine(fleet, hub, settings, rules)
        self._restore()

    def handle(self, *events: h.Event) -> asyncio.Future[None]:
        """Resolves when the consequences of all of them are on disk. Raises at once if the machine refuses one."""
        if self.not_ready:
            raise HarchError(
                "E0801", f"hub {self._hub.name} is not ready: {self.not_ready}", hint="try again", retry_after_s=2
            )
        effects: list[h.Effect] = []
        now, boot_s = self._clock.now(), self._clock.boot_s()
        try:
            for event in events:
                done = self.machine.handle(event, now=now, boot_s=boot_s)
                self._watch.handled(event, done, now)
                effects += done
        except InvariantBroken as broken:
            self.not_ready = str(broken)
            self._on_broken(broken)
            raise
        except HarchError:
            if effects:
                self._carry_out(effects, now)
            raise
        return self._carry_out(effects, now)

    def write(self, statements: list[Statement], drafts: list[Draft]) -> asyncio.Future[None]:
        """For what is not the machine's: keys, secrets, refusals; with what the audit chain says about it."""
        head = self._trail.head
        return self._submit([*statements, *self._trail.link(drafts)], head)

    def plan_placement(self) -> None:
        """Asks for a round of placement in a moment; what else arrives until then shares it."""
        if not self._placement_planned and not self.not_ready:
            self._placement_planned = True
            asyncio.get_running_loop().call_later(GATHER_S, self._place)

    async def keep_placing(self) -> None:
        """Until cancelled: what waits for time to pass, e.g. for its hour, or a gang that may shrink, is looked at."""
        while True:
            await self._clock.sleep(LOOK_AGAIN_S)
            if not self.not_ready and self.machine.is_carbon_due(self._clock.now(), self._clock.boot_s()):
                self.handle(h.CarbonDue())
            self.plan_placement()

    async def keep_spilling(self) -> None:
        """Until cancelled: what waits is offered to other hubs, leases and bids end."""
        while True:
            await self._clock.sleep(SPILL_EVERY_S)
            if not self.not_ready and self.machine.is_spill_due(self._clock.boot_s()):
                self.handle(h.SpillDue())
                self.plan_placement()

    def plan_by(self, settings: PlanSettings) -> None:
        """What the operator set about carbon; for this machine, and for one that takes its place."""
        self._plan_settings = self.machine.desk.carbon.settings = settings

    def heard_clock(self, agent_id: str, agent_boot_s: float) -> None:
        self.machine.heard_clock(agent_id, agent_boot_s, boot_s=self._clock.boot_s())

    async def keep_auditing(self) -> None:
        """Until cancelled: gate 4, for whatever nobody told the machine of."""
        while True:
            await self._clock.sleep(AUDIT_TAGS_S)
            if self.machine.desk.guard.has_readers and not self.not_ready:
                self.handle(h.TagsDue())

    async def wait_for_event(self, after: int, timeout_s: float) -> None:
        if self.seq_stored > after:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)

    async def close(self) -> None:
        self.not_ready = "stopping"
        if self._mending is not None:
            self._mending.cancel()
        await self._committer.close()

    def _place(self) -> None:
        self._placement_planned = False
        if self.not_ready or not self.machine.desk.scheduler.queue:
            return
        self.handle(h.PlacementDue())
        if self.machine.more_to_place:
            self.plan_placement()

    def _carry_out(self, effects: list[h.Effect], now: datetime) -> asyncio.Future[None]:
        saves: dict[str, Workload] = {}  # once each: what several events changed is written as it is in the end
        statements: list[Statement] = []
        drafts: list[Draft] = []
        messages: list[h.Send | h.SendPeer] = []
        first, head = self.seq, self._trail.head
        for effect in effects:
            match effect:
                case h.Save(workload):
                    saves[workload.id] = workload
                case h.Record():
                    statements.append(rows.save_event(self._numbered(effect, now)))
                case h.Send() | h.SendPeer():
                    messages.append(effect)
                case h.Audit(draft):
                    drafts.append(draft)
                case h.SaveCondition(kind, subject, value, why):
                    statements.append(rows.save_condition(kind, subject, value, why))
                case h.SaveData(data):
                    statements.append(data_rows.save(data))
                case h.SaveLabels(workload):
                    statements += rows.save_labels(workload)
                case h.SaveIdempotencyKey(entry):
                    statements.append(rows.save_idempotency_key(entry))
        if self.seq // TRIM_EVERY_EVENTS != first // TRIM_EVERY_EVENTS:
            statements.append(rows.drop_events_before(self.seq - rows.EVENTS_MAX))
            statements.append(rows.drop_idempotency_keys_before(now, IDEMPOTENCY_WINDOW))
        saved = [rows.save_workload(workload) for workload in saves.values()]
        done = self._submit([*saved, *statements, *self._trail.link(drafts)], head)
        seq = self.seq
        done.add_done_callback(lambda future: self._stored(future, seq, messages))
        return done

    def _submit(self, statements: list[Statement], head: Head) -> asyncio.Future[None]:
        """To the disk. What is turned away at once never was in the audit chain, which goes on from `head`."""
        done = self._committer.submit(statements)
        if done.done():
            self._trail.head = head
        return done

    def _numbered(self, record: h.Record, now: datetime) -> EventRecord:
        self.seq += 1
        self._watch.recorded(record, now)
        return EventRecord(
            seq=self.seq,
            at=now,
            kind=record.kind,
            subject=record.subject,
            tenant=record.tenant,
            message=record.message,
            data=record.data,
        )

    def _stored(self, done: asyncio.Future[None], seq: int, messages: list[h.Send | h.SendPeer]) -> None:
        if done.exception() is not None:
            return  # `_disk_failed` sees to it
        for effect in messages:
            if isinstance(effect, h.Send):
                self._send(effect.agent_id, self._with_secrets(effect.message))
            else:
                self._send_peer(effect.hub_id, effect.message)
        if seq > self.seq_stored:
            self.seq_stored = seq
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _with_secrets(self, message: HubMessage) -> HubMessage:
        if isinstance(message, StartTask) and message.task.secrets:
            task = message.task
            return StartTask(replace(task, secrets=self._open_secrets(task.tenant, tuple(task.secrets))))
        return message

    def _restore(self) -> None:
        now = self._clock.now()
        machine = JobMachine(self._fleet, self._hub, self._settings, self._rules)
        if self._leases is not None:
            machine.desk.spill.enabled, machine.desk.spill.terms = True, self._leases
        machine.desk.carbon.settings = self._plan_settings
        effects = machine.restore(
            self._database.workloads_to_restore(now - RETRY_WINDOW),
            self._database.idempotency_keys(now - timedelta(hours=24)),
            self._database.conditions(),
            data_rows.entries(self._database),
            now=now,
            boot_s=self._clock.boot_s(),
            lifetime=uuid4().hex[:12],
        )
        self.machine = machine
        self._watch.restored(machine)
        if self.equip is not None:
            self.equip(machine.desk.scheduler)
        self.seq = self.seq_stored = self._database.last_event()
        self._trail.reload()
        self.not_ready = ""
        self._carry_out(effects, now)
        self.plan_placement()

    def _disk_failed(self, error: HarchError) -> None:
        if self._mending is None and self.not_ready != "stopping":
            self.not_ready = error.message
            _log.error("storage failed, no new work until it recovers: %s", error.message)
            self._on_restart(error.message)
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    async def _mend(self) -> None:
        """Waits until the disk takes writes again, then starts over from what it holds."""
        while True:
            await self._clock.sleep(RETRY_DISK_S)
            try:
                self._database.write([("UPDATE schema_version SET version = version", ())])
                self._committer.reset()
                self._restore()
            except (sqlite3.Error, OSError) as error:
                self._committer.failed = storage_error(error, self._database.path)
                continue
            _log.warning("storage works again; restored from disk")
            self._mending = None
            self.handle(h.Noted("store.recovered", self._hub.id, "storage works again; restored from disk"))
            return
