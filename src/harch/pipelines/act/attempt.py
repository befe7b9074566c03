"""How does one worker carry a command on by one turn? Claim it, send it, say what became of it; or find out first.

Awaits only what it is given: the store, the sinks, the audit. It starts no task and reads no clock of its own, so a
simulation can stop it, kill it and race it against another worker at every single await.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.act import audit, ledger
from harch.pipelines.act.counters import Counters
from harch.pipelines.act.guards import Guards, Wait
from harch.pipelines.act.ledger import Entry, State
from harch.pipelines.act.requests import Requests
from harch.pipelines.act.retries import delay_ms
from harch.pipelines.act.settings import ActionSettings, Mode
from harch.pipelines.act.sinks.base import Effect, Outcome
from harch.pipelines.act.store import Conflict, LedgerStore, Stored
from harch.pipelines.act.templates import Args
from harch.sovereignty.audit.entry import Draft

log = logging.getLogger(__name__)

AuditCallback = Callable[[Draft], Awaitable[None]]


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
    counters: Counters
    seed: int = 0

    async def advance(self, stored: Stored) -> Stored:
        """One turn. Gives back what the ledger says now; an entry that is not closed has a `due_ms` to come back at."""
        try:
            return await self._advance(stored)
        except Conflict:
            # Somebody else carried it on. What they wrote is the truth; look again when it is due.
            self.counters.conflicts += 1
            return await self.store.get(stored.entry.cmd_id) or stored

    async def _advance(self, stored: Stored) -> Stored:
        entry, now_ms = stored.entry, self.now_ms()
        if entry.closed:
            return stored
        if entry.state is State.AWAIT_CONFIRM:
            return await self._expire(stored) if entry.command.expired(now_ms) else stored
        if now_ms < max(entry.due_ms, entry.busy_until_ms):
            return stored
        action = self.actions.get(entry.command.action)
        if action is None:
            maybe = entry.state in (State.INTENT, State.SENT) or entry.maybe_sent
            return await self._give_up(stored, "the pipeline no longer has this action", letter=True, maybe_sent=maybe)
        if entry.undoing:
            return await self._take_back(stored, action, entry.reason)
        if entry.state in (State.INTENT, State.SENT, State.UNKNOWN):
            return await self._find_out(stored, action)
        return await self._attempt(stored, action)

    # Sending

    async def _attempt(self, stored: Stored, action: ActionSettings) -> Stored:
        entry, now_ms = stored.entry, self.now_ms()
        if why := ledger.altered(entry):
            return await self._refuse(stored, action, why)
        if entry.command.expired(now_ms):
            return await self._refuse(stored, action, "its time was over")
        answer = self.guards.admit(entry.command, action, now_ms=now_ms, stopped=self.requests.stopped(action))
        if isinstance(answer, Wait):  # for a token of the rate limit; nothing durable changes
            self.counters.rate_waits += 1
            return Stored(ledger.delayed(entry, due_ms=answer.until_ms), stored.revision)
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
                        return await self._failed(stored, action, Outcome(Effect.NO, step.refusal, retry=step.retry))
                undo = tuple(step.undo for step in prepared)
            try:
                await self.audit(audit.intent(entry, worker=self.name))
            except HarchError as error:
                return await self._failed(stored, action, Outcome(Effect.NO, f"no audit, no action: {error.message}"))
        now_ms = self.now_ms()  # preparing takes time
        if entry.command.expired(now_ms):
            return await self._refuse(stored, action, "its time was over")
        busy_ms = self.requests.busy_until_ms(entry, now_ms)
        claim = ledger.claimed(entry, self.name, now_ms=now_ms, busy_until_ms=busy_ms, undo=undo)
        return await self._execute(await self._put(stored, claim, durable=careful), action)

    async def _execute(self, stored: Stored, action: ActionSettings) -> Stored:
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

    async def _failed(self, stored: Stored, action: ActionSettings, outcome: Outcome) -> Stored:
        """The last request had no effect, or there was none."""
        now_ms = self.now_ms()
        reason = outcome.detail or "not carried out"
        failed = ledger.failed(stored.entry, reason, now_ms=now_ms, due_ms=now_ms)
        due_ms = now_ms + delay_ms(action.retries, attempt=failed.attempts, key=failed.cmd_id, seed=self.seed)
        again = outcome.retry and failed.attempts < action.retries.attempts
        if again and failed.command.mode is not Mode.FIRE_AND_FORGET and not failed.command.expired(due_ms):
            self.counters.retries += 1
            return await self._put(stored, ledger.delayed(failed, due_ms=due_ms))
        unsaved = Stored(failed, stored.revision)
        if failed.steps_done or failed.maybe_sent or failed.command.expired(now_ms):
            return await self._refuse(unsaved, action, reason)
        return await self._give_up(unsaved, reason, letter=action.dead_letter)

    # Finding out

    async def _find_out(self, stored: Stored, action: ActionSettings) -> Stored:
        """Nothing is sent again before the sink has said what became of the last time."""
        entry, now_ms = stored.entry, self.now_ms()
        if entry.command.mode is Mode.FIRE_AND_FORGET:
            reason = entry.reason or "the worker ended while it was under way"
            return await self._give_up(stored, reason, letter=action.dead_letter, maybe_sent=True)
        if entry.questions > action.retries.attempts:  # also when workers die of the question
            return await self._give_up(stored, entry.reason, letter=action.dead_letter, maybe_sent=True)
        busy_ms = self.requests.busy_until_ms(entry, now_ms)
        stored = await self._put(stored, ledger.questioned(entry, self.name, now_ms=now_ms, busy_until_ms=busy_ms))
        self.counters.questions += 1
        while not stored.entry.closed:
            sink = self.requests.sink(stored.entry, stored.entry.steps_done)
            outcome = Outcome(Effect.MAYBE, "the sink can neither be asked nor keeps keys", retry=False)
            if sink is not None and sink.reads_back:
                outcome = await self.requests.probe(stored.entry, stored.entry.steps_done)
            if outcome.effect is Effect.NO:
                return await self._not_carried_out(stored, action, outcome)
            if outcome.effect is Effect.MAYBE and sink is not None and sink.keeps_keys:
                return await self._ask_by_sending(stored, action)
            if outcome.effect is Effect.MAYBE:
                return await self._still_unknown(stored, action, outcome)
            stored = await self._step_done(stored)
        return stored

    async def _not_carried_out(self, stored: Stored, action: ActionSettings, outcome: Outcome) -> Stored:
        """So it may be tried at once, if there is an attempt left."""
        known, now_ms = Stored(ledger.cleared_up(stored.entry), stored.revision), self.now_ms()
        if known.entry.attempts >= action.retries.attempts:
            return await self._failed(known, action, outcome)
        return await self._put(known, ledger.failed(known.entry, outcome.detail, now_ms=now_ms, due_ms=now_ms))

    async def _ask_by_sending(self, stored: Stored, action: ActionSettings) -> Stored:
        """The far side keeps keys: the same key again is the way to ask. Too late for that, nobody can know."""
        entry, now_ms = stored.entry, self.now_ms()
        due_ms = now_ms
        if entry.reason:  # it did not answer; otherwise a worker died, and there is nothing to wait for
            due_ms += delay_ms(action.retries, attempt=entry.attempts, key=entry.cmd_id, seed=self.seed)
        if entry.attempts >= action.retries.attempts or entry.command.expired(due_ms):
            return await self._give_up(stored, entry.reason or "not answered", letter=action.dead_letter)
        return await self._put(stored, ledger.failed(entry, entry.reason, now_ms=now_ms, due_ms=due_ms))

    async def _still_unknown(self, stored: Stored, action: ActionSettings, outcome: Outcome) -> Stored:
        entry, now_ms = stored.entry, self.now_ms()
        if not outcome.retry or entry.questions >= action.retries.attempts:
            return await self._give_up(stored, outcome.detail, letter=action.dead_letter)
        due_ms = now_ms + delay_ms(action.retries, attempt=entry.questions, key=entry.cmd_id, seed=self.seed)
        return await self._put(stored, ledger.unknown(entry, outcome.detail, now_ms=now_ms, due_ms=due_ms))

    # Taking back

    async def _take_back(self, stored: Stored, action: ActionSettings, reason: str) -> Stored:
        """Undoes the steps that were carried out, last first. It may come after the command's time: it makes safe."""
        entry, now_ms = stored.entry, self.now_ms()
        if entry.undoing and not entry.steps_done:  # a worker died after the last one
            return await self._give_up(stored, f"taken back; {entry.reason}", letter=True)
        if entry.undoing and entry.state is State.INTENT and not self._repeatable(entry, entry.steps_done - 1):
            return await self._give_up(stored, f"may be taken back in part; {entry.reason}", letter=True)
        busy_ms = self.requests.busy_until_ms(entry, now_ms)
        claim = ledger.taking_back(entry, self.name, reason, now_ms=now_ms, busy_until_ms=busy_ms)
        stored = await self._put(stored, claim)
        while stored.entry.steps_done:
            entry, index = stored.entry, stored.entry.steps_done - 1
            if index >= len(entry.undo) or entry.undo[index] is None:
                return await self._give_up(stored, f"step {index} cannot be taken back; {entry.reason}", letter=True)
            outcome = await self.requests.send(entry, index, None)
            if outcome.effect is not Effect.YES:
                return await self._take_back_later(stored, action, index, outcome)
            stored = await self._put(stored, ledger.step_undone(entry, now_ms=self.now_ms()), durable=False)
        self.counters.taken_back += 1
        return await self._give_up(stored, f"taken back; {stored.entry.reason}", letter=True)

    async def _take_back_later(self, stored: Stored, action: ActionSettings, index: int, outcome: Outcome) -> Stored:
        entry, now_ms = stored.entry, self.now_ms()
        harmless = outcome.effect is Effect.NO or self._repeatable(entry, index)
        if not (outcome.retry and harmless and entry.undo_attempts < action.retries.attempts):
            reason = f"step {index} not taken back: {outcome.detail}; {entry.reason}"
            return await self._give_up(stored, reason, letter=True)
        wait_ms = delay_ms(action.retries, attempt=entry.undo_attempts, key=entry.cmd_id, seed=self.seed)
        return await self._put(stored, ledger.failed(entry, entry.reason, now_ms=now_ms, due_ms=now_ms + wait_ms))

    def _repeatable(self, entry: Entry, index: int) -> bool:
        """Whether taking back twice does no harm: the key is kept, or a value is set that can be read back."""
        sink = self.requests.sink(entry, index)
        return sink is not None and (sink.keeps_keys or sink.reads_back)

    # Ends

    async def _refuse(self, stored: Stored, action: ActionSettings, why: str) -> Stored:
        """It will not be sent, or not again. What that means depends on what was."""
        entry, now_ms = stored.entry, self.now_ms()
        if entry.steps_done:
            return await self._take_back(stored, action, why)
        if entry.maybe_sent:
            return await self._give_up(stored, why, letter=action.dead_letter)
        if entry.command.expired(now_ms):
            return await self._expire(stored)
        return await self._close(stored, ledger.rejected(entry, why, now_ms=now_ms))

    async def _expire(self, stored: Stored) -> Stored:
        return await self._close(stored, ledger.expired(stored.entry, now_ms=self.now_ms()))

    async def _give_up(self, stored: Stored, reason: str, *, letter: bool, maybe_sent: bool | None = None) -> Stored:
        maybe = stored.entry.maybe_sent if maybe_sent is None else maybe_sent
        end = ledger.given_up(stored.entry, reason, now_ms=self.now_ms(), letter=letter, maybe_sent=maybe)
        return await self._close(stored, end)

    async def _step_done(self, stored: Stored) -> Stored:
        done = ledger.step_done(stored.entry, now_ms=self.now_ms())
        return await self._close(stored, done) if done.closed else await self._put(stored, done, durable=False)

    async def _close(self, stored: Stored, end: Entry) -> Stored:
        """The audit hears of it first: a worker that dies in between tells it twice, never not at all."""
        try:
            await self.audit(audit.outcome(end, worker=self.name))
        except HarchError as error:
            self.counters.audits_failed += 1
            log.warning("outcome of %s is not in the audit chain: %s", end.cmd_id, error.message)
        stored = await self._put(stored, end, durable=end.command.mode is not Mode.FIRE_AND_FORGET or end.letter)
        self.counters.ended(end)
        return stored

    async def _put(self, stored: Stored, entry: Entry, *, durable: bool = True) -> Stored:
        return await self.store.put(entry, revision=stored.revision, durable=durable)
