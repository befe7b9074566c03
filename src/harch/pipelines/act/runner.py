"""How does ACT run? Model outputs in, commands into the ledger, workers that carry them on: a loop around a pure core.

`submit` returns when every command of the batch is in the ledger: then the batch may be acknowledged. A batch that
comes again finds its commands there. Nothing is thrown away: a full queue makes the sender wait, and a jurisdiction
that does not allow this place is told to the caller, with nothing kept.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.act import audit, ledger
from harch.pipelines.act.agenda import Agenda
from harch.pipelines.act.attempt import AuditCallback, Worker
from harch.pipelines.act.command import Command
from harch.pipelines.act.counters import Counters
from harch.pipelines.act.decisions import DecisionBatch, Planner
from harch.pipelines.act.first_look import FirstLook, unmade
from harch.pipelines.act.guards import Guards
from harch.pipelines.act.ledger import Entry, State
from harch.pipelines.act.requests import Requests
from harch.pipelines.act.settings import ActionSettings, ActSettings, Mode
from harch.pipelines.act.sinks.base import Sink
from harch.pipelines.act.store import SCAN_MAX, UNRESOLVED, Conflict, LedgerStore, Stored

log = logging.getLogger(__name__)

POLL_S = 1.0  # how soon approvals and commands of dead workers are found
POLL_ROWS = 1000
STEP_BACK_MS_MAX = 10_000
PRUNE_S = 60.0
STORE_FAILURE_WAIT_MS = 1000


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a batch. With `refused` the batch itself may not be here: nothing of it was kept."""

    commands: int = 0
    duplicates: int = 0
    refused: Rejection | None = None


class ActStage:
    """One ACT worker process, or the ACT part of a fused one. `owns` splits devices between several."""

    def __init__(
        self,
        settings: ActSettings,
        *,
        store: LedgerStore,
        sinks: Mapping[str, Sink],
        clock: Clock,
        worker: str,
        audit: AuditCallback,
        local_bit: int,
        country_bits: Mapping[str, int] | None = None,
        owns: Callable[[Command], bool] = lambda _: True,
        on_closed: Callable[[Entry], None] | None = None,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self._latest_ms = 0
        self.counters = Counters()
        self.agenda = Agenda(settings.queue_max)
        self._store, self._clock, self._audit = store, clock, audit
        self._planner = Planner(settings)
        self._actions = {action.name: action for action in settings.actions}
        self._guards = Guards()
        self._first_look = FirstLook(settings, self._guards, country_bits or {}, self._stopped)
        self._local_bit, self._owns, self._on_closed = local_bit, owns, on_closed
        requests = Requests(
            sinks=sinks,
            now_ms=self._now_ms,
            stopped=self._stopped,
            settle_ms=round(settings.settle_s * 1000),
            counters=self.counters,
        )
        self._worker = Worker(
            name=worker,
            store=store,
            requests=requests,
            actions=self._actions,
            guards=self._guards,
            now_ms=self._now_ms,
            audit=audit,
            counters=self.counters,
            seed=seed,
        )
        self._changed = asyncio.Event()  # something became ready
        self._sooner = asyncio.Event()  # something has to be looked at earlier than planned
        self._room = asyncio.Condition()
        self._reserved = 0  # room for commands that are being written
        self._polled_ms = 0

    # In

    async def submit(self, batch: DecisionBatch, *, wait: bool = True) -> Taken:
        """Returns when all commands are in the ledger. Without `wait`, a full queue is E0777 and nothing was taken."""
        if not batch.juris_mask & self._local_bit:
            self.counters.foreign += 1
            detail = f"mask {batch.juris_mask:x} does not hold the bit of this place ({self._local_bit:x})"
            return Taken(refused=Rejection(batch.pipeline, "residency", detail, "send it to a hub that may have it"))
        plan = self._planner.plan(batch)
        self.counters.rows += plan.rows
        self.counters.rows_unfit += plan.rows_unfit
        self.counters.unmade += len(plan.unmade)
        now_ms = self._now_ms()
        entries = [self._first_look.entry(command, now_ms=now_ms) for command in plan.commands]
        entries += [unmade(one.command, one.reason, now_ms=now_ms) for one in plan.unmade]
        entries.sort(key=lambda entry: entry.command.priority)
        if not wait and entries and len(entries) > self._free(entries[-1].command.priority):
            self.counters.refused_full += 1
            raise HarchError("E0777", f"{len(self.agenda)} actions are open", hint="send it again", retry_after_s=1)
        duplicates = 0
        while entries:
            priority = entries[0].command.priority
            async with self._room:
                await self._room.wait_for(lambda: self._free(priority) > 0)  # noqa: B023 - awaited here
                fits = sum(entry.command.priority == priority for entry in entries[: self._free(priority)])
                chunk, entries = entries[:fits], entries[fits:]
                self._reserved += len(chunk)
            try:
                duplicates += sum(await asyncio.gather(*(self._write(entry) for entry in chunk)))
            finally:
                self._reserved -= len(chunk)
                async with self._room:
                    self._room.notify_all()
        self.counters.duplicates += duplicates
        return Taken(len(plan.commands) + len(plan.unmade) - duplicates, duplicates)

    def wake(self) -> None:
        """Something in the ledger changed, e.g. a person approved: look now and not at the next poll."""
        self._polled_ms = 0
        self._sooner.set()

    def _free(self, priority: int) -> int:
        return max(0, self.agenda.room(priority) - self._reserved)

    async def _write(self, entry: Entry) -> bool:
        """Whether the ledger knew it already. The audit hears of what ends here, before the ledger does."""
        self.counters.proposed += 1
        known = await self._store.get(entry.cmd_id) if entry.closed else None
        if known is not None:
            return True
        if entry.closed:
            await self._audit(audit.outcome(entry, worker=self._worker.name))
        try:
            behind = entry.command.mode is Mode.FIRE_AND_FORGET and not entry.letter
            stored = await self._store.put(entry, revision=0, durable=not behind)
        except Conflict:
            return True
        if entry.closed:
            self.counters.ended(entry)
        elif entry.state is not State.AWAIT_CONFIRM and self._owns(entry.command):
            self.agenda.add(stored, now_ms=self._now_ms())
            self._changed.set()
        return False

    # The loop

    async def run(self) -> None:
        """Until cancelled. What a dead worker left is found in the ledger, at the start and at every poll."""
        await self._remember()
        await self._poll(SCAN_MAX)  # before anybody works: what is unresolved goes first
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_after(), name="act-look-after")
            group.create_task(self._prune(), name="act-prune")
            for number in range(self.settings.concurrency):
                group.create_task(self._work(), name=f"act-{number}")

    async def drain(self) -> None:
        """Returns when nothing is open but what waits for a person. New batches are the caller's to hold back."""
        async with self._room:
            await self._room.wait_for(lambda: not len(self.agenda))

    async def _work(self) -> None:
        while True:
            stored = self.agenda.take()
            if stored is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                after = await self._worker.advance(stored)
            except HarchError as error:
                self.counters.store_failures += 1
                log.warning("command %s waits: %s", stored.entry.cmd_id, error.message)
                after = await self._read_again(stored)
            if after.entry.closed and self._on_closed is not None:
                self._on_closed(after.entry)
            if after.entry.state is State.AWAIT_CONFIRM and not after.entry.closed:
                self.agenda.forget(after)
            else:
                self.agenda.settle(after, now_ms=self._now_ms())
            self._changed.set()
            self._sooner.set()
            async with self._room:
                self._room.notify_all()

    async def _read_again(self, stored: Stored) -> Stored:
        """After a failed write nobody knows which revision is current. In doubt the old one: it will be refused."""
        due_ms = self._now_ms() + STORE_FAILURE_WAIT_MS
        try:
            stored = await self._store.get(stored.entry.cmd_id) or stored
        except HarchError:
            self.counters.store_failures += 1
        return Stored(ledger.delayed(stored.entry, due_ms=max(due_ms, stored.entry.due_ms)), stored.revision)

    async def _look_after(self) -> None:
        while True:
            if self.agenda.ripen(now_ms=self._now_ms()):
                self._changed.set()
            if self._now_ms() - self._polled_ms >= POLL_S * 1000:
                await self._poll()
                self._polled_ms = self._now_ms()
            due_ms = self.agenda.next_due_ms
            wait_s = POLL_S if due_ms is None else min(POLL_S, max(0.001, (due_ms - self._now_ms()) / 1000))
            await self._pause(wait_s)

    async def _pause(self, wait_s: float) -> None:
        waits = [asyncio.ensure_future(self._clock.sleep(wait_s)), asyncio.ensure_future(self._sooner.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            self._sooner.clear()

    async def _poll(self, limit: int = POLL_ROWS) -> None:
        """Finds what other processes changed: approvals, replays, and commands whose worker is gone."""
        try:
            # One by one: thousands that wait for a person must not hide the one that was approved just now.
            known = len(self.agenda)
            found = await self._store.scan(UNRESOLVED, limit=limit + known)
            found += await self._store.scan([State.AUTHORISED], limit=limit + known)
            found += await self._store.scan([State.AWAIT_CONFIRM], limit=limit)
        except HarchError as error:
            self.counters.store_failures += 1
            log.warning("the ledger could not be read: %s", error.message)
            return
        now_ms = self._now_ms()
        for stored in found:
            entry = stored.entry
            waits = entry.state is State.AWAIT_CONFIRM and not entry.command.expired(now_ms)
            fits = self.agenda.room(entry.command.priority) > 0
            if not waits and entry.cmd_id not in self.agenda and fits and self._owns(entry.command):
                self.agenda.add(stored, now_ms=now_ms)
                self._changed.set()

    async def _remember(self) -> None:
        """Intervals between commands hold over a restart."""
        try:
            found = await self._store.scan([State.INTENT, State.SENT, State.UNKNOWN], limit=SCAN_MAX)
            found += await self._store.last_done(limit=SCAN_MAX)
            self._guards.remember((stored.entry.command, stored.entry.changed_ms) for stored in found)
        except HarchError as error:
            log.warning("the ledger could not be read: %s", error.message)

    async def _prune(self) -> None:
        while True:
            await self._clock.sleep(PRUNE_S)
            before_ms = self._now_ms() - round(self.settings.retention_s * 1000)
            try:
                dropped = await self._store.prune(closed_before_ms=before_ms, letters_max=self.settings.letters_max)
                self.counters.letters_dropped += dropped
                if dropped:
                    log.warning("%d dead letters were dropped: more than %d", dropped, self.settings.letters_max)
            except HarchError as error:
                self.counters.store_failures += 1
                log.warning("the ledger could not be pruned: %s", error.message)

    def _stopped(self, action: ActionSettings) -> str:
        for path in (self.settings.stop_file, action.interlocks.stop_file):
            if path and os.path.lexists(path):
                return f"{path} exists"
        return self._store.stopped()

    def _now_ms(self) -> int:
        """A clock that is set back a little stands still instead: a command must not become younger in mid-turn."""
        now_ms = round(self._clock.now().timestamp() * 1000)
        if not 0 < self._latest_ms - now_ms <= STEP_BACK_MS_MAX:
            self._latest_ms = now_ms
        return self._latest_ms
