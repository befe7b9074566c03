"""How is a sink spoken to? Orders with their deadlines, gates that are asked last, adapters that may fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.pipelines.act.counters import Counters
from harch.pipelines.act.ledger import Entry
from harch.pipelines.act.settings import ActionSettings
from harch.pipelines.act.sinks.base import Effect, Gate, Order, Outcome, Prepared, Sink, closed

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Requests:
    """`stopped` tells why an action may not be sent now, or nothing. `settle_ms`: see ActSettings."""

    sinks: Mapping[str, Sink]
    now_ms: Callable[[], int]
    stopped: Callable[[ActionSettings], str]
    settle_ms: int
    counters: Counters

    def sink(self, entry: Entry, index: int) -> Sink | None:
        return self.sinks.get(entry.command.steps[index].sink)

    async def prepare(self, entry: Entry, index: int) -> Prepared:
        step, sink = entry.command.steps[index], self.sink(entry, index)
        if sink is None:
            return Prepared(f"there is no sink `{step.sink}`", retry=False)
        try:
            found = await sink.prepare(self._order(entry, index, sink))
        except Exception as error:  # noqa: BLE001 - an adapter's fault; nothing was sent yet
            return Prepared(f"{step.sink}: {type(error).__name__}")
        return found if step.undo is None else Prepared(found.refusal, found.retry, step.undo)

    async def send(self, entry: Entry, index: int, action: ActionSettings | None) -> Outcome:
        """Carries out a step; without an action, takes it back. The gate is asked here and again by the adapter."""
        step, sink, undo = entry.command.steps[index], self.sink(entry, index), action is None
        if entry.command.dry_run:
            self.counters.dry_runs += 1
            return Outcome(Effect.YES, "dry run: nothing was sent", verified=True)
        if sink is None:
            return Outcome(Effect.NO, f"there is no sink `{step.sink}`", retry=False)
        gate = self._gate(entry, sink, action)
        if reason := gate():
            return closed(reason)
        self.counters.requests += 1
        try:
            return await sink.execute(self._order(entry, index, sink, undo=undo), gate)
        except Exception as error:
            # An adapter's fault: what it did before is anybody's guess.
            log.exception("sink %s failed", step.sink)
            return Outcome(Effect.MAYBE, f"{step.sink}: {type(error).__name__}")

    async def probe(self, entry: Entry, index: int) -> Outcome:
        sink = self.sinks[entry.command.steps[index].sink]
        try:
            return await sink.probe(self._order(entry, index, sink))
        except Exception as error:  # noqa: BLE001 - an adapter's fault; nothing is known then
            return Outcome(Effect.MAYBE, f"could not be read back: {type(error).__name__}")

    def busy_until_ms(self, entry: Entry, now_ms: int) -> int:
        """Every step may take its request and its question, each up to its timeout, and then it has to settle."""
        timeouts_s = sum(self.sinks[step.sink].timeout_s for step in entry.command.steps if step.sink in self.sinks)
        return now_ms + self.settle_ms + round(2 * 1000 * timeouts_s) + 1

    def _order(self, entry: Entry, index: int, sink: Sink, *, undo: bool = False) -> Order:
        command = entry.command
        left_s = (command.expires_ms - self.now_ms()) / 1000
        return Order(
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

    def _gate(self, entry: Entry, sink: Sink, action: ActionSettings | None) -> Gate:
        # A request must be over before somebody else may take the command over.
        latest_ms = entry.busy_until_ms - self.settle_ms - round(sink.timeout_s * 1000)

        def gate() -> str:
            now_ms = self.now_ms()
            if now_ms > latest_ms:
                return "the worker was too slow"
            if action is None:  # taking back makes safe: neither the command's time nor a stop holds it up
                return ""
            if entry.command.expired(now_ms):
                return "its time was over"
            try:
                return self.stopped(action)
            except HarchError as error:
                return error.message

        return gate
