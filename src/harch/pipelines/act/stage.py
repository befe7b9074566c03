"""How does ACT run?

Model outputs in, commands into the ledger, workers that take them by urgency, one per device at a time: a loop around
a pure core.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.act import attempt, ledger
from harch.pipelines.act.attempt import ActCounters, AuditCallback, Requests, Worker
from harch.pipelines.act.decisions import ActionPlanner, DecisionBatch
from harch.pipelines.act.guards import Guards
from harch.pipelines.act.ledger import COMMAND_BYTES_MAX, ActionCommand, CommandState, LedgerEntry, unresolved
from harch.pipelines.act.settings import ActionSettings, ActSettings, Mode
from harch.pipelines.act.sinks.base import Sink
from harch.pipelines.act.store import SCAN_MAX, UNRESOLVED, LedgerConflict, LedgerStore, StoredEntry

URGENT_MAX = 1  # priorities 0 and 1


class Agenda:
    """What one worker has to look at. A command is ready, waits for its time, or is being worked on."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._stored: dict[str, StoredEntry] = {}
        self._ready: list[tuple[int, int, int, str]] = []  # priority, issued, order of arrival, id
        self._arrivals = count()
        self._later: list[tuple[int, str]] = []  # due, id
        self._held: dict[str, list[str]] = {}  # ready commands of a device that is not free
        self._working: dict[str, str] = {}  # device to the command whose turn it is
        self._unresolved: dict[str, set[str]] = {}  # device to the commands that have to be cleared up first

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, cmd_id: str) -> bool:
        return cmd_id in self._stored

    def room(self, priority: int) -> int:
        """How many more fit. The last tenth is kept for what is urgent, so that a flood of the rest cannot block it."""
        kept = 0 if priority <= URGENT_MAX else self.limit // 10
        return max(0, self.limit - kept - len(self._stored))

    @property
    def next_due_ms(self) -> int | None:
        return self._later[0][0] if self._later else None

    def depths(self) -> dict[int, int]:
        """How many are open, by priority."""
        return dict(Counter(stored.entry.command.priority for stored in self._stored.values()))

    def oldest_issued_ms(self) -> int | None:
        """When the oldest open command was decided; its age is the stage's lag."""
        return min((stored.entry.command.issued_ms for stored in self._stored.values()), default=None)

    def add(self, stored: StoredEntry, *, now_ms: int) -> None:
        """Takes a command on, or its newer state; one that is being worked on stays as it is."""
        entry = stored.entry
        if self._working.get(entry.command.device) == entry.cmd_id:
            return
        known = entry.cmd_id in self._stored
        self._keep(stored)
        if not known:
            self._schedule(stored, now_ms)

    def ripen(self, *, now_ms: int) -> int:
        """Moves what is due to what is ready."""
        ripe = 0
        while self._later and self._later[0][0] <= now_ms:
            _, cmd_id = heapq.heappop(self._later)
            self._push(self._stored[cmd_id])
            ripe += 1
        return ripe

    def take(self) -> StoredEntry | None:
        """The most urgent command whose device is free; the device is not, until `settle`."""
        while self._ready:
            _, _, _, cmd_id = heapq.heappop(self._ready)
            stored = self._stored[cmd_id]
            device = stored.entry.command.device
            if device in self._working or cmd_id not in self._unresolved.get(device, (cmd_id,)):
                self._held.setdefault(device, []).append(cmd_id)
                continue
            self._working[device] = cmd_id
            return stored
        return None

    def settle(self, stored: StoredEntry, *, now_ms: int) -> None:
        """The turn is over: a closed command leaves, any other comes back when it is due."""
        self.forget(stored)
        if not stored.entry.closed:
            self._keep(stored)
            self._schedule(stored, now_ms)

    def forget(self, stored: StoredEntry) -> None:
        """The turn is over, and the next is somebody else's, e.g. a person's."""
        cmd_id, device = stored.entry.cmd_id, stored.entry.command.device
        self._working.pop(device, None)
        self._stored.pop(cmd_id, None)
        others = self._unresolved.pop(device, set()) - {cmd_id}
        if others:
            self._unresolved[device] = others
        for held in self._held.pop(device, ()):  # those that must still wait are held again when they are taken
            self._push(self._stored[held])

    def _keep(self, stored: StoredEntry) -> None:
        self._stored[stored.entry.cmd_id] = stored
        if unresolved(stored.entry):
            self._unresolved.setdefault(stored.entry.command.device, set()).add(stored.entry.cmd_id)

    def _schedule(self, stored: StoredEntry, now_ms: int) -> None:
        due_ms = max(stored.entry.due_ms, stored.entry.busy_until_ms)
        if due_ms > now_ms:
            heapq.heappush(self._later, (due_ms, stored.entry.cmd_id))
        else:
            self._push(stored)

    def _push(self, stored: StoredEntry) -> None:
        command = stored.entry.command
        heapq.heappush(self._ready, (command.priority, command.issued_ms, next(self._arrivals), command.cmd_id))


# What does the ledger hear of a new command? That it may go on, or why not. Asked again right before it is sent.


@dataclass(frozen=True, slots=True)
class FirstLook:
    """`country_bits`: the bit of each country in a jurisdiction mask; a sink's country that is not in it is refused."""

    settings: ActSettings
    guards: Guards
    country_bits: Mapping[str, int]
    stopped: Callable[[ActionSettings], str]

    def entry(self, command: ActionCommand, *, now_ms: int) -> LedgerEntry:
        """The first entry of a command: authorised, waiting for a person, rejected or expired."""
        entry = ledger.proposed(command, now_ms=now_ms)
        if command.expired(now_ms):
            return ledger.expired(entry, now_ms=now_ms)
        action = next(action for action in self.settings.actions if action.name == command.action)
        refusal = (
            self._residency(command)  # first: nothing else may be learnt about data that must not go there
            or _too_large(command)
            or self.guards.interlock(command, action, now_ms=now_ms, stopped=self.stopped(action))
        )
        if refusal is not None:
            return ledger.rejected(entry, f"{refusal.rule}: {refusal.detail}", now_ms=now_ms)
        return ledger.authorised(entry, now_ms=now_ms)

    def _residency(self, command: ActionCommand) -> Rejection | None:
        for step in command.steps:
            country = self.settings.sinks[step.sink].country
            if country and not command.juris_mask & self.country_bits.get(country, 0):
                detail = f"sink `{step.sink}` is in {country}, which mask {command.juris_mask:x} does not hold"
                return Rejection(command.cmd_id, "residency", detail, "use a sink in an allowed country")
        return None


def unmade(command: ActionCommand, reason: str, *, now_ms: int) -> LedgerEntry:
    """A letter about an action that was called for and could not be made into a command."""
    entry = ledger.proposed(command, now_ms=now_ms)
    return ledger.given_up(entry, f"could not create a command: {reason}", now_ms=now_ms, letter=True, maybe_sent=False)


def _too_large(command: ActionCommand) -> Rejection | None:
    size = sum(len(name) + len(str(value)) for step in command.steps for name, value in step.args.items())
    if size <= COMMAND_BYTES_MAX:
        return None
    return Rejection(command.cmd_id, "size", f"{size} bytes of arguments, at most {COMMAND_BYTES_MAX}", "send less")


# How does ACT run? Model outputs in, commands into the ledger, workers that carry them on: a loop around a pure core.
#
# `submit` returns when every command of the batch is in the ledger: then the batch may be acknowledged. A batch that
# comes again finds its commands there. Nothing is thrown away: a full queue makes the sender wait, and a jurisdiction
# that does not allow this place is reported to the caller, with nothing kept.


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
        owns: Callable[[ActionCommand], bool] = lambda _: True,
        on_closed: Callable[[LedgerEntry], None] | None = None,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self._latest_ms = 0
        self.counters = ActCounters()
        self.agenda = Agenda(settings.queue_max)
        self._store, self._clock, self._audit = store, clock, audit
        self._planner = ActionPlanner(settings)
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
            detail = f"mask {batch.juris_mask:x} does not include this hub's bit ({self._local_bit:x})"
            return Taken(refused=Rejection(batch.pipeline, "residency", detail, "send it to an allowed hub"))
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
            raise HarchError("E0777", f"{len(self.agenda)} actions are pending", hint="send it again", retry_after_s=1)
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

    async def _write(self, entry: LedgerEntry) -> bool:
        """Whether the ledger knew it already. The audit hears of what ends here, before the ledger does."""
        self.counters.proposed += 1
        known = await self._store.get(entry.cmd_id) if entry.closed else None
        if known is not None:
            return True
        if entry.closed:
            await self._audit(attempt.outcome_draft(entry, worker=self._worker.name))
        try:
            behind = entry.command.mode is Mode.FIRE_AND_FORGET and not entry.letter
            stored = await self._store.put(entry, revision=0, durable=not behind)
        except LedgerConflict:
            return True
        if entry.closed:
            self.counters.ended(entry)
        elif entry.state is not CommandState.AWAIT_CONFIRM and self._owns(entry.command):
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
                log.warning("command %s pending: %s", stored.entry.cmd_id, error.message)
                after = await self._read_again(stored)
                self._worker.count_if_ended(after.entry)
            if after.entry.closed and self._on_closed is not None:
                self._on_closed(after.entry)
            if after.entry.state is CommandState.AWAIT_CONFIRM and not after.entry.closed:
                self.agenda.forget(after)
            else:
                self.agenda.settle(after, now_ms=self._now_ms())
            self._changed.set()
            self._sooner.set()
            async with self._room:
                self._room.notify_all()

    async def _read_again(self, stored: StoredEntry) -> StoredEntry:
        """After a failed write nobody knows which revision is current. In doubt the old one: it will be refused."""
        due_ms = self._now_ms() + STORE_FAILURE_WAIT_MS
        try:
            stored = await self._store.get(stored.entry.cmd_id) or stored
        except HarchError:
            self.counters.store_failures += 1
        return StoredEntry(ledger.delayed(stored.entry, due_ms=max(due_ms, stored.entry.due_ms)), stored.revision)

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
            found += await self._store.scan([CommandState.AUTHORISED], limit=limit + known)
            found += await self._store.scan([CommandState.AWAIT_CONFIRM], limit=limit)
        except HarchError as error:
            self.counters.store_failures += 1
            log.warning("could not read the ledger: %s", error.message)
            return
        now_ms = self._now_ms()
        for stored in found:
            entry = stored.entry
            waits = entry.state is CommandState.AWAIT_CONFIRM and not entry.command.expired(now_ms)
            fits = self.agenda.room(entry.command.priority) > 0
            if not waits and entry.cmd_id not in self.agenda and fits and self._owns(entry.command):
                self.agenda.add(stored, now_ms=now_ms)
                self._changed.set()

    async def _remember(self) -> None:
        """Intervals between commands hold over a restart."""
        try:
            found = await self._store.scan(
                [CommandState.INTENT, CommandState.SENT, CommandState.UNKNOWN], limit=SCAN_MAX
            )
            found += await self._store.last_done(limit=SCAN_MAX)
            self._guards.remember((stored.entry.command, stored.entry.changed_ms) for stored in found)
        except HarchError as error:
            log.warning("could not read the ledger: %s", error.message)

    async def _prune(self) -> None:
        while True:
            await self._clock.sleep(PRUNE_S)
            before_ms = self._now_ms() - round(self.settings.retention_s * 1000)
            try:
                dropped = await self._store.prune(closed_before_ms=before_ms, letters_max=self.settings.letters_max)
                self.counters.letters_dropped += dropped
                if dropped:
                    log.warning("dropped %d dead letters: more than %d", dropped, self.settings.letters_max)
            except HarchError as error:
                self.counters.store_failures += 1
                log.warning("could not prune the ledger: %s", error.message)

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
