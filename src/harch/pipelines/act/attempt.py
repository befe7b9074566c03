"""How does one worker carry a command on by one turn?

Claim it, send it through its sink with its deadline, say what became of it in ledger, audit chain and counters; or
find out first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.act import ledger
from harch.pipelines.act.expressions import Args
from harch.pipelines.act.guards import Guards, Wait, delay_ms
from harch.pipelines.act.ledger import CommandState, LedgerEntry
from harch.pipelines.act.settings import ActionSettings, Mode
from harch.pipelines.act.sinks.base import Effect, PreparedRequest, SendGate, Sink, SinkOutcome, SinkRequest, closed
from harch.pipelines.act.store import LedgerConflict, LedgerStore, StoredEntry
from harch.sovereignty.audit.chain import Detail, Draft


@dataclass(slots=True)
class ActCounters:
    """Counts since the start of the process."""

    rows: int = 0  # rows of model outputs looked at
    rows_unfit: int = 0  # rows that no rule could judge: NaN and the like
    proposed: int = 0
    duplicates: int = 0  # commands that the ledger knew already
    foreign: int = 0  # batches whose jurisdiction does not allow this place; nothing of them was kept
    unmade: int = 0  # rows that called for an action whose arguments could not be filled
    requests: int = 0
    questions: int = 0
    retries: int = 0
    rate_waits: int = 0
    conflicts: int = 0
    taken_back: int = 0
    dry_runs: int = 0
    audits_failed: int = 0
    store_failures: int = 0
    refused_full: int = 0  # batches not taken because the queue was full; their sender was informed
    letters_dropped: int = 0  # oldest letters above the limit
    ends: Counter[str] = field(default_factory=Counter)

    def ended(self, entry: LedgerEntry) -> None:
        self.ends[str(entry.state)] += 1

    def as_dict(self) -> dict[str, int]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "ends"}
        return {**plain, **{f"ended_{state}": count for state, count in sorted(self.ends.items())}}


# How is a sink spoken to? Orders with their deadlines, gates that are asked last, adapters that may fail.


@dataclass(slots=True, kw_only=True)
class Requests:
    """`stopped` tells why an action may not be sent now, or nothing. `settle_ms`: see ActSettings."""

    sinks: Mapping[str, Sink]
    now_ms: Callable[[], int]
    stopped: Callable[[ActionSettings], str]
    settle_ms: int
    counters: ActCounters

    def sink(self, entry: LedgerEntry, index: int) -> Sink | None:
        return self.sinks.get(entry.command.steps[index].sink)

    async def prepare(self, entry: LedgerEntry, index: int) -> PreparedRequest:
        step, sink = entry.command.steps[index], self.sink(entry, index)
        if sink is None:
            return PreparedRequest(f"no sink `{step.sink}`", retry=False)
        try:
            found = await sink.prepare(self._order(entry, index, sink))
        except Exception as error:  # noqa: BLE001 - an adapter's fault; nothing was sent yet
            return PreparedRequest(f"{step.sink}: {type(error).__name__}")
        return found if step.undo is None else PreparedRequest(found.refusal, found.retry, step.undo)

    async def send(self, entry: LedgerEntry, index: int, action: ActionSettings | None) -> SinkOutcome:
        """Carries out a step; without an action, takes it back. The gate is asked here and again by the adapter."""
        step, sink, undo = entry.command.steps[index], self.sink(entry, index), action is None
        if entry.command.dry_run:
            self.counters.dry_runs += 1
            return SinkOutcome(Effect.YES, "dry run: nothing sent", verified=True)
        if sink is None:
            return SinkOutcome(Effect.NO, f"no sink `{step.sink}`", retry=False)
        gate = self._gate(entry, sink, action)
        if reason := gate():
            return closed(reason)
        self.counters.requests += 1
        try:
            return await sink.execute(self._order(entry, index, sink, undo=undo), gate)
        except Exception as error:
            # An adapter's fault: what it did before is anybody's guess.
            log.exception("sink %s failed", step.sink)
            return SinkOutcome(Effect.MAYBE, f"{step.sink}: {type(error).__name__}")

    async def probe(self, entry: LedgerEntry, index: int) -> SinkOutcome:
        sink = self.sinks[entry.command.steps[index].sink]
        try:
            return await sink.probe(self._order(entry, index, sink))
        except Exception as error:  # noqa: BLE001 - an adapter's fault; nothing is known then
            return SinkOutcome(Effect.MAYBE, f"could not be read back: {type(error).__name__}")

    def busy_until_ms(self, entry: LedgerEntry, now_ms: int) -> int:
        """Every step may take its request and its question, each up to its timeout, and then it has to settle."""
        timeouts_s = sum(self.sinks[step.sink].timeout_s for step in entry.command.steps if step.sink in self.sinks)
        return now_ms + self.settle_ms + round(2 * 1000 * timeouts_s) + 1

    def _order(self, entry: LedgerEntry, index: int, sink: Sink, *, undo: bool = False) -> SinkRequest:
        command = entry.command
        left_s = (command.expires_ms - self.now_ms()) / 1000
        return SinkRequest(
            key=command.key(index, undo=undo),
            cmd_id=command.cmd_id,
            device=command.device,
            action=command.action,
            args=(entry.undo[index] or {}) if undo else command.steps[index].args,
            fence=entry.fence,
            timeout_s=sink.timeout_s if undo or left_s <= 0 else min(sink.timeout_s, left_s),
            expires_ms=command.expires_ms,
            undo=undo,
            trace=command.trace,
            juris_mask=command.juris_mask,
        )

    def _gate(self, entry: LedgerEntry, sink: Sink, action: ActionSettings | None) -> SendGate:
        # A request must be over before somebody else may take the command over.
        latest_ms = entry.busy_until_ms - self.settle_ms - round(sink.timeout_s * 1000)

        def gate() -> str:
            now_ms = self.now_ms()
            if now_ms > latest_ms:
                return "the worker took too long"
            if action is None:  # taking back makes safe: neither the command's time nor a stop holds it up
                return ""
            if entry.command.expired(now_ms):
                return "expired"
            try:
                return self.stopped(action)
            except HarchError as error:
                return error.message

        return gate


# What does the audit chain hear of an action? Names, hashes and outcomes; never arguments, which may be personal.


INTENT = "action.intent"
OUTCOME = "action.outcome"
APPROVED = "action.approved"
REFUSED = "action.refused"

_VERDICTS = {CommandState.DONE: "done", CommandState.EXPIRED: "refused", CommandState.REJECTED: "refused"}


def intent_draft(entry: LedgerEntry, *, worker: str) -> Draft:
    """Before anything is sent. Where this cannot be written, nothing is sent."""
    return _action_draft(INTENT, entry, "allowed", actor=worker)


def outcome_draft(entry: LedgerEntry, *, worker: str) -> Draft:
    """What became of it; comes again when a worker dies between this and the ledger."""
    return _action_draft(OUTCOME, entry, _VERDICTS.get(entry.state, "failed"), actor=worker)


def person_draft(entry: LedgerEntry, *, by: str) -> Draft:
    """A person approved or refused it."""
    refused = entry.state is CommandState.REJECTED
    return _action_draft(REFUSED if refused else APPROVED, entry, "refused" if refused else "allowed", actor=by)


def _action_draft(kind: str, entry: LedgerEntry, verdict: str, *, actor: str) -> Draft:
    command = entry.command
    details: dict[str, Detail] = {
        "action": command.action,
        "attempts": entry.attempts,
        "device": command.device,
        "digest": entry.digest,
        "dry_run": command.dry_run,
        "juris_mask": f"{command.juris_mask:x}",
        "mode": str(command.mode),
        "model": command.model,
        "sinks": tuple(step.sink for step in command.steps),
        "state": str(entry.state),
        "trace": command.trace,
    }
    return Draft(
        kind,
        command.cmd_id,
        verdict,
        actor=actor,
        authority=command.pipeline,
        policy_version=str(command.policy_version),
        details=details,
    )


# How does one worker carry a command on by one turn? Claim it, send it, say what became of it; or find out first.
#
# Awaits only what it is given: the store, the sinks, the audit. It starts no task and reads no clock of its own, so a
# simulation can stop it, kill it and race it against another worker at every single await.


log = logging.getLogger(__name__)

AuditCallback = Callable[[Draft], Awaitable[None]]
UNACKNOWLEDGED_MAX = 10_000  # the oldest is forgotten: one end is then missing in the counters


@dataclass(slots=True, kw_only=True)
class Worker:
    """One worker of a pipeline's ACT stage."""

    name: str
    store: LedgerStore
    requests: Requests
    actions: Mapping[str, ActionSettings]
    guards: Guards
    now_ms: Callable[[], int]
    audit: AuditCallback
    counters: ActCounters
    seed: int = 0
    unacknowledged: dict[str, None] = field(default_factory=dict)  # commands whose end may be in the ledger

    async def advance(self, stored: StoredEntry) -> StoredEntry:
        """One turn. Gives back what the ledger says now; an entry that is not closed has a `due_ms` to come back at."""
        try:
            return await self._advance(stored)
        except LedgerConflict:
            # Somebody else carried it on, or our own write got through unacknowledged. What the ledger has is the
            # truth; look again when it is due.
            self.counters.conflicts += 1
            found = await self.store.get(stored.entry.cmd_id) or stored
            self.count_if_ended(found.entry)
            return found

    def count_if_ended(self, entry: LedgerEntry) -> None:
        """Counts an end of ours that was written although its acknowledgement got lost."""
        if entry.closed and entry.cmd_id in self.unacknowledged:
            del self.unacknowledged[entry.cmd_id]
            if entry.worker == self.name:
                self.counters.ended(entry)

    async def _advance(self, stored: StoredEntry) -> StoredEntry:
        entry, now_ms = stored.entry, self.now_ms()
        if entry.closed:
            return stored
        if entry.state is CommandState.AWAIT_CONFIRM:
            return await self._expire(stored) if entry.command.expired(now_ms) else stored
        if now_ms < max(entry.due_ms, entry.busy_until_ms):
            return stored
        action = self.actions.get(entry.command.action)
        if action is None:
            maybe = entry.state in (CommandState.INTENT, CommandState.SENT) or entry.maybe_sent
            return await self._give_up(stored, "the pipeline no longer has this action", letter=True, maybe_sent=maybe)
        if entry.undoing:
            return await self._take_back(stored, action, entry.reason)
        if entry.state in (CommandState.INTENT, CommandState.SENT, CommandState.UNKNOWN):
            return await self._find_out(stored, action)
        return await self._attempt(stored, action)

    # Sending

    async def _attempt(self, stored: StoredEntry, action: ActionSettings) -> StoredEntry:
        entry, now_ms = stored.entry, self.now_ms()
        if why := ledger.altered(entry):
            return await self._refuse(stored, action, why)
        if entry.command.expired(now_ms):
            return await self._refuse(stored, action, "expired")
        answer = self.guards.admit(entry.command, action, now_ms=now_ms, stopped=self.requests.stopped(action))
        if isinstance(answer, Wait):  # for a token of the rate limit; nothing durable changes
            self.counters.rate_waits += 1
            return StoredEntry(ledger.delayed(entry, due_ms=answer.until_ms), stored.revision)
        if isinstance(answer, Rejection):
            return await self._refuse(stored, action, f"{answer.rule}: {answer.detail}")
        undo: tuple[Args | None, ...] | None = None
        # The ledger says what was asked for; a spec that changed meanwhile does not make it less careful.
        careful = entry.command.mode is not Mode.FIRE_AND_FORGET
        if careful:
            if not entry.undo and not entry.command.dry_run:
                prepared = [await self.requests.prepare(entry, index) for index in range(len(entry.command.steps))]
                for step in prepared:
                    if step.refusal:
                        return await self._failed(
                            stored, action, SinkOutcome(Effect.NO, step.refusal, retry=step.retry)
                        )
                undo = tuple(step.undo for step in prepared)
            try:
                await self.audit(intent_draft(entry, worker=self.name))
            except HarchError as error:
                return await self._failed(
                    stored, action, SinkOutcome(Effect.NO, f"not audited, so not executed: {error.message}")
                )
        now_ms = self.now_ms()  # preparing takes time
        if entry.command.expired(now_ms):
            return await self._refuse(stored, action, "expired")
        busy_ms = self.requests.busy_until_ms(entry, now_ms)
        claim = ledger.claimed(entry, self.name, now_ms=now_ms, busy_until_ms=busy_ms, undo=undo)
        return await self._execute(await self._put(stored, claim, durable=careful), action)

    async def _execute(self, stored: StoredEntry, action: ActionSettings) -> StoredEntry:
        while not stored.entry.closed:
            entry, index = stored.entry, stored.entry.steps_done
            sink = self.requests.sink(entry, index)
            outcome = await self.requests.send(entry, index, action)
            reads_back = sink is not None and sink.reads_back and entry.command.mode is Mode.TRANSACTIONAL
            if outcome.effect is Effect.YES and not outcome.verified and reads_back:
                stored = await self._put(stored, ledger.sent(entry, now_ms=self.now_ms()), durable=False)
                outcome = await self.requests.probe(entry, index)
            if outcome.effect is Effect.MAYBE:
                # A request that was not answered may still arrive, so a look at the device now could mislead. Where the
                # same key is simply sent again there is nothing to wait for.
                now_ms, by_sending = self.now_ms(), sink is not None and sink.keeps_keys and not sink.reads_back
                due_ms = now_ms if by_sending else now_ms + self.requests.settle_ms
                return await self._put(
                    stored, ledger.unknown(stored.entry, outcome.detail, now_ms=now_ms, due_ms=due_ms)
                )
            if outcome.effect is Effect.NO:
                return await self._failed(stored, action, outcome)
            stored = await self._step_done(stored)
        return stored

    async def _failed(self, stored: StoredEntry, action: ActionSettings, outcome: SinkOutcome) -> StoredEntry:
        """The last request had no effect, or there was none."""
        now_ms = self.now_ms()
        reason = outcome.detail or "not executed"
        failed = ledger.failed(stored.entry, reason, now_ms=now_ms, due_ms=now_ms)
        due_ms = now_ms + delay_ms(action.retries, attempt=failed.attempts, key=failed.cmd_id, seed=self.seed)
        again = outcome.retry and failed.attempts < action.retries.attempts
        if again and failed.command.mode is not Mode.FIRE_AND_FORGET and not failed.command.expired(due_ms):
            self.counters.retries += 1
            return await self._put(stored, ledger.delayed(failed, due_ms=due_ms))
        unsaved = StoredEntry(failed, stored.revision)
        if failed.steps_done or failed.maybe_sent or failed.command.expired(now_ms):
            return await self._refuse(unsaved, action, reason)
        return await self._give_up(unsaved, reason, letter=action.dead_letter)

    # Finding out

    async def _find_out(self, stored: StoredEntry, action: ActionSettings) -> StoredEntry:
        """Nothing is sent again before the sink has said what became of the last time."""
        entry, now_ms = stored.entry, self.now_ms()
        if entry.command.mode is Mode.FIRE_AND_FORGET:
            reason = entry.reason or "the worker exited while it was in progress"
            return await self._give_up(stored, reason, letter=action.dead_letter, maybe_sent=True)
        if entry.questions > action.retries.attempts:  # also when workers die of the question
            return await self._give_up(stored, entry.reason, letter=action.dead_letter, maybe_sent=True)
        busy_ms = self.requests.busy_until_ms(entry, now_ms)
        stored = await self._put(stored, ledger.questioned(entry, self.name, now_ms=now_ms, busy_until_ms=busy_ms))
        self.counters.questions += 1
        while not stored.entry.closed:
            sink = self.requests.sink(stored.entry, stored.entry.steps_done)
            outcome = SinkOutcome(Effect.MAYBE, "the sink can neither be queried nor deduplicate by key", retry=False)
            if sink is not None and sink.reads_back:
                outcome = await self.requests.probe(stored.entry, stored.entry.steps_done)
            if outcome.effect is Effect.NO:
                return await self._not_carried_out(stored, action, outcome)
            if outcome.effect is Effect.MAYBE and sink is not None and sink.keeps_keys:
                return await self._probe_by_sending(stored, action)
            if outcome.effect is Effect.MAYBE:
                return await self._still_unknown(stored, action, outcome)
            stored = await self._step_done(stored)
        return stored

    async def _not_carried_out(self, stored: StoredEntry, action: ActionSettings, outcome: SinkOutcome) -> StoredEntry:
        """So it may be tried at once, if there is an attempt left."""
        known, now_ms = StoredEntry(ledger.cleared_up(stored.entry), stored.revision), self.now_ms()
        if known.entry.attempts >= action.retries.attempts:
            return await self._failed(known, action, outcome)
        return await self._put(known, ledger.failed(known.entry, outcome.detail, now_ms=now_ms, due_ms=now_ms))

    async def _probe_by_sending(self, stored: StoredEntry, action: ActionSettings) -> StoredEntry:
        """The far side keeps keys: the same key again is the way to ask. Too late for that, nobody can know."""
        entry, now_ms = stored.entry, self.now_ms()
        due_ms = now_ms
        if entry.reason:  # it did not answer; otherwise a worker died, and there is nothing to wait for
            due_ms += delay_ms(action.retries, attempt=entry.attempts, key=entry.cmd_id, seed=self.seed)
        if entry.attempts >= action.retries.attempts or entry.command.expired(due_ms):
            return await self._give_up(stored, entry.reason or "no response", letter=action.dead_letter)
        return await self._put(stored, ledger.failed(entry, entry.reason, now_ms=now_ms, due_ms=due_ms))

    async def _still_unknown(self, stored: StoredEntry, action: ActionSettings, outcome: SinkOutcome) -> StoredEntry:
        entry, now_ms = stored.entry, self.now_ms()
        if not outcome.retry or entry.questions >= action.retries.attempts:
            return await self._give_up(stored, outcome.detail, letter=action.dead_letter)
        due_ms = now_ms + delay_ms(action.retries, attempt=entry.questions, key=entry.cmd_id, seed=self.seed)
        return await self._put(stored, ledger.unknown(entry, outcome.detail, now_ms=now_ms, due_ms=due_ms))

    # Taking back

    async def _take_back(self, stored: StoredEntry, action: ActionSettings, reason: str) -> StoredEntry:
        """Undoes the steps that were carried out, last first. It may come after the command's time: it makes safe."""
        entry, now_ms = stored.entry, self.now_ms()
        if entry.undoing and not entry.steps_done:  # a worker died after the last one
            return await self._give_up(stored, f"undone; {entry.reason}", letter=True)
        if entry.undoing and entry.state is CommandState.INTENT and not self._repeatable(entry, entry.steps_done - 1):
            return await self._give_up(stored, f"possibly undone in part; {entry.reason}", letter=True)
        busy_ms = self.requests.busy_until_ms(entry, now_ms)
        claim = ledger.taking_back(entry, self.name, reason, now_ms=now_ms, busy_until_ms=busy_ms)
        stored = await self._put(stored, claim)
        while stored.entry.steps_done:
            entry, index = stored.entry, stored.entry.steps_done - 1
            if index >= len(entry.undo) or entry.undo[index] is None:
                return await self._give_up(stored, f"step {index} cannot be undone; {entry.reason}", letter=True)
            outcome = await self.requests.send(entry, index, None)
            if outcome.effect is not Effect.YES:
                return await self._take_back_later(stored, action, index, outcome)
            stored = await self._put(stored, ledger.step_undone(entry, now_ms=self.now_ms()), durable=False)
        self.counters.taken_back += 1
        return await self._give_up(stored, f"undone; {stored.entry.reason}", letter=True)

    async def _take_back_later(
        self, stored: StoredEntry, action: ActionSettings, index: int, outcome: SinkOutcome
    ) -> StoredEntry:
        entry, now_ms = stored.entry, self.now_ms()
        harmless = outcome.effect is Effect.NO or self._repeatable(entry, index)
        if not (outcome.retry and harmless and entry.undo_attempts < action.retries.attempts):
            reason = f"step {index} not undone: {outcome.detail}; {entry.reason}"
            return await self._give_up(stored, reason, letter=True)
        wait_ms = delay_ms(action.retries, attempt=entry.undo_attempts, key=entry.cmd_id, seed=self.seed)
        return await self._put(stored, ledger.failed(entry, entry.reason, now_ms=now_ms, due_ms=now_ms + wait_ms))

    def _repeatable(self, entry: LedgerEntry, index: int) -> bool:
        """Whether taking back twice does no harm: the key is kept, or a value is set that can be read back."""
        sink = self.requests.sink(entry, index)
        return sink is not None and (sink.keeps_keys or sink.reads_back)

    # Ends

    async def _refuse(self, stored: StoredEntry, action: ActionSettings, why: str) -> StoredEntry:
        """It will not be sent, or not again. What that means depends on what was."""
        entry, now_ms = stored.entry, self.now_ms()
        if entry.steps_done:
            return await self._take_back(stored, action, why)
        if entry.maybe_sent:
            return await self._give_up(stored, why, letter=action.dead_letter)
        if entry.command.expired(now_ms):
            return await self._expire(stored)
        return await self._close(stored, ledger.rejected(entry, why, now_ms=now_ms))

    async def _expire(self, stored: StoredEntry) -> StoredEntry:
        return await self._close(stored, ledger.expired(stored.entry, now_ms=self.now_ms()))

    async def _give_up(
        self, stored: StoredEntry, reason: str, *, letter: bool, maybe_sent: bool | None = None
    ) -> StoredEntry:
        maybe = stored.entry.maybe_sent if maybe_sent is None else maybe_sent
        end = ledger.given_up(stored.entry, reason, now_ms=self.now_ms(), letter=letter, maybe_sent=maybe)
        return await self._close(stored, end)

    async def _step_done(self, stored: StoredEntry) -> StoredEntry:
        done = ledger.step_done(stored.entry, now_ms=self.now_ms())
        return await self._close(stored, done) if done.closed else await self._put(stored, done, durable=False)

    async def _close(self, stored: StoredEntry, end: LedgerEntry) -> StoredEntry:
        """The audit hears of it first: a worker that dies in between tells it twice, never not at all."""
        try:
            await self.audit(outcome_draft(end, worker=self.name))
        except HarchError as error:
            self.counters.audits_failed += 1
            log.warning("could not audit the outcome of %s: %s", end.cmd_id, error.message)
        try:
            stored = await self._put(stored, end, durable=end.command.mode is not Mode.FIRE_AND_FORGET or end.letter)
        except HarchError:
            if len(self.unacknowledged) >= UNACKNOWLEDGED_MAX:
                del self.unacknowledged[next(iter(self.unacknowledged))]
            self.unacknowledged[end.cmd_id] = None
            raise
        self.unacknowledged.pop(end.cmd_id, None)
        self.counters.ended(end)
        return stored

    async def _put(self, stored: StoredEntry, entry: LedgerEntry, *, durable: bool = True) -> StoredEntry:
        return await self.store.put(entry, revision=stored.revision, durable=durable)
