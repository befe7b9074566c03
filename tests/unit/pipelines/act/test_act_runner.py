"""The ACT stage on simulated time: batches in, commands in the ledger, and what reaches a sink."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from harch.base.errors import HarchError
from harch.pipelines.act import review
from harch.pipelines.act.decisions import DecisionBatch, decision_batch
from harch.pipelines.act.ledger import ActionCommand, CommandState, CommandStep, LedgerEntry
from harch.pipelines.act.settings import ActSettings
from harch.pipelines.act.sinks.base import Effect, PreparedRequest, SinkOutcome
from harch.pipelines.act.stage import POLL_ROWS, ActStage
from harch.pipelines.act.store import StoredEntry
from harch.pipelines.think.messages import DecodedOutputs, Origin
from harch.pipelines.think.models import VersionRef
from harch.testing.clock import SimClock
from unit.pipelines.act.act_builders import MA, SN, Chain, MemoryLedger, RecordingSink, act, batch

CONFIRM = {"mode": "confirm-and-execute"}


class Field:
    """A stage with everything it needs."""

    def __init__(self, settings: ActSettings, *, store: MemoryLedger | None = None, **sinks: RecordingSink) -> None:
        self.clock, self.store, self.chain = SimClock(), store or MemoryLedger(), Chain()
        self.valve = sinks.setdefault("valve", RecordingSink())
        self.stage = ActStage(
            settings,
            store=self.store,
            sinks=sinks,
            clock=self.clock,
            worker="w1",
            audit=self.chain,
            local_bit=MA,
            country_bits={"MA": MA, "SN": SN},
        )

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @property
    def now_ms(self) -> int:
        return round(self.now.timestamp() * 1000)

    def batch(self, *scores: float, **changes: Any) -> DecisionBatch:
        return batch(*scores, **{"at_ms": self.now_ms, **changes})

    def entries(self) -> list[LedgerEntry]:
        return [row.entry for row in self.store.rows.values()]

    def states(self) -> list[CommandState]:
        return [entry.state for entry in self.entries()]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.stage.run())
        try:
            yield
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_row_that_fits_the_rule_becomes_one_action() -> None:
    field = Field(act())
    async with field.running():
        taken = await field.stage.submit(field.batch(0.9, 0.2, 0.6))
        await field.stage.drain()
    assert taken.commands == 2
    assert [(order.device, order.args) for order in field.valve.orders] == [
        ("d0", {"value": 90.0}),
        ("d2", {"value": 60.0}),
    ]
    assert field.states() == [CommandState.DONE, CommandState.DONE]
    for entry in field.entries():
        assert field.chain.kinds(entry.cmd_id) == ["action.intent allowed", "action.outcome done"]
        told = [state for cmd_id, state in field.store.history if cmd_id == entry.cmd_id]
        assert told == [CommandState.AUTHORISED, CommandState.INTENT, CommandState.DONE]


async def test_a_thousand_deliveries_of_one_batch_are_one_effect_each() -> None:
    field = Field(act())
    one = field.batch(0.9, 0.8, 0.7)
    async with field.running():
        for _ in range(1000):
            await field.stage.submit(one)
        await field.stage.drain()
        await field.stage.submit(one)
    assert len(field.valve.orders) == 3
    assert field.stage.counters.duplicates == 3000


class LosesTheLastAnswer(MemoryLedger):
    """The end of a command is written, and nobody says so; then reads fail for a while, too."""

    def __init__(self, reads_lost: int) -> None:
        super().__init__()
        self.reads_lost, self.is_lost = reads_lost, False

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        stored = await super().put(entry, revision=revision, durable=durable)
        if entry.closed and not self.is_lost:
            self.is_lost = True
            raise HarchError("E0775", "the ledger did not answer", hint="")
        return stored

    async def get(self, cmd_id: str) -> StoredEntry | None:
        if self.is_lost and self.reads_lost:
            self.reads_lost -= 1
            raise HarchError("E0775", "the ledger did not answer", hint="")
        return await super().get(cmd_id)


@pytest.mark.parametrize("reads_lost", [0, 1, 2])
async def test_an_end_whose_acknowledgement_was_lost_is_counted_once(reads_lost: int) -> None:
    field = Field(act(), store=LosesTheLastAnswer(reads_lost))
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        draining = asyncio.create_task(field.stage.drain())
        while not draining.done():
            await field.clock.advance(1.0)
        await draining
    assert field.stage.counters.ends == {"done": 1}
    assert len(field.valve.orders) == 1


async def test_nothing_is_audited_with_its_arguments() -> None:
    field = Field(act(args={"value": "{score * 100}", "note": "secret-{device}"}))
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.stage.drain()
    assert "secret" not in repr(field.chain.drafts)


async def test_what_may_not_be_here_is_neither_kept_nor_sent() -> None:
    field = Field(act())
    async with field.running():
        for mask in (SN, 0):
            taken = await field.stage.submit(field.batch(0.9, mask=mask))
            assert taken.refused is not None
            assert taken.refused.rule == "residency"
    assert field.entries() == []
    assert field.stage.counters.foreign == 2


async def test_a_sink_abroad_is_refused_unless_the_data_may_go_there() -> None:
    sinks = {"valve": {"kind": "http", "url": "http://127.0.0.1:1/x", "honours_key": True, "country": "SN"}}
    field = Field(act(sinks=sinks))
    async with field.running():
        await field.stage.submit(field.batch(0.9, mask=MA))
        await field.stage.submit(field.batch(0.9, mask=MA | SN, window=2))
        await field.stage.drain()
    assert field.states() == [CommandState.REJECTED, CommandState.DONE]
    assert "is in SN" in field.entries()[0].reason


async def test_a_command_that_comes_too_late_never_fires() -> None:
    field = Field(act(ttl_s=5))
    async with field.running():
        await field.stage.submit(field.batch(0.9, at_ms=field.now_ms - 5_000))
        await field.clock.advance(3)
    assert field.valve.orders == []
    assert field.states() == [CommandState.EXPIRED]


async def test_a_command_that_expires_while_it_waits_for_a_retry_never_fires_again() -> None:
    field = Field(act(ttl_s=5, retries={"attempts": 10, "base_s": 3, "jitter": 0}))
    field.valve.answers = [SinkOutcome(Effect.NO, "busy")] * 10
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.clock.advance(60)
    assert len(field.valve.orders) == 2, "at 0 s and 3 s; 9 s would be too late"
    assert field.states() == [CommandState.DEAD]


async def test_the_gate_is_closed_when_the_time_is_over_between_claim_and_request() -> None:
    """A sink that takes long to connect asks again right before it sends."""
    field = Field(act(ttl_s=2))

    class SlowToConnect(RecordingSink):
        async def execute(self, order: Any, gate: Any) -> SinkOutcome:
            field.clock.jump(3)
            return await super().execute(order, gate)

    slow = SlowToConnect()
    field = Field(act(ttl_s=2), valve=slow)
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.stage.drain()
    assert slow.orders == []
    assert field.states() == [CommandState.EXPIRED]


async def test_a_poisonous_command_becomes_one_letter_and_goes_no_further() -> None:
    field = Field(act(retries={"attempts": 3, "base_s": 1}))
    field.valve.answers = [SinkOutcome(Effect.NO, "no such valve")] * 10
    async with field.running():
        for _ in range(20):
            await field.stage.submit(field.batch(0.9, at_ms=1_767_225_600_000))
            await field.clock.advance(1)
    assert len(field.valve.orders) == 3
    found = await review.letters(field.store)
    assert [(letter.reason, letter.attempts, letter.juris_mask) for letter in found] == [("no such valve", 3, MA)]
    assert not found[0].maybe_sent


async def test_a_letter_is_replayed_under_the_same_id_and_dropped() -> None:
    field = Field(act(retries={"attempts": 1}))
    field.valve.answers = [SinkOutcome(Effect.NO, "busy", retry=False)] * 2
    async with field.running():
        await field.stage.submit(field.batch(0.9, 0.8))
        await field.stage.drain()
        first, second = await review.letters(field.store)
        await review.replay(field.store, first.cmd_id, now=field.now)
        await review.drop(field.store, second.cmd_id, now=field.now)
        field.stage.wake()
        await field.clock.advance(2)
        assert await review.letters(field.store) == []
        assert sorted(field.states()) == [CommandState.DEAD, CommandState.DONE]
        assert field.valve.orders[-1].cmd_id == first.cmd_id
        await field.stage.submit(field.batch(0.9, 0.8, at_ms=field.now_ms - 2_000))
        with pytest.raises(HarchError) as caught:
            await review.drop(field.store, second.cmd_id, now=field.now)
        assert caught.value.code == "E0772"
    assert len(field.valve.orders) == 3, "the dropped one is still known"


async def test_a_letter_whose_time_is_over_is_not_replayed() -> None:
    field = Field(act(ttl_s=5, retries={"attempts": 1}))
    field.valve.answers = [SinkOutcome(Effect.NO, "busy")]
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.stage.drain()
        (letter,) = await review.letters(field.store)
        await field.clock.advance(5)
        with pytest.raises(HarchError) as caught:
            await review.replay(field.store, letter.cmd_id, now=field.now)
    assert caught.value.code == "E0772"
    assert len(field.valve.orders) == 1


async def test_a_letter_of_unknown_outcome_needs_a_person_who_looked() -> None:
    field = Field(act(mode="fire-and-forget"), valve=RecordingSink(keeps_keys=False))
    field.valve.answers = [SinkOutcome(Effect.MAYBE, "no answer")]
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.clock.advance(10)
        (letter,) = await review.letters(field.store)
        assert letter.maybe_sent
        with pytest.raises(HarchError) as caught:
            await review.replay(field.store, letter.cmd_id, now=field.now)
        assert caught.value.code == "E0774"
        await review.replay(field.store, letter.cmd_id, now=field.now, not_carried_out=True)
        await field.clock.advance(3)
    assert len(field.valve.orders) == 2
    assert field.states() == [CommandState.DONE]


async def test_a_row_without_its_argument_becomes_a_letter_once() -> None:
    field = Field(act(args={"value": "{level}"}))
    async with field.running():
        for _ in range(3):
            await field.stage.submit(field.batch(0.9))
    (letter,) = await review.letters(field.store)
    assert "no output `level`" in letter.reason
    with pytest.raises(HarchError):
        await review.replay(field.store, letter.cmd_id, now=field.now)


async def test_a_rule_about_an_output_that_is_not_there_becomes_a_letter() -> None:
    field = Field(act(when="score > 0.5 and risk > 1"))
    async with field.running():
        await field.stage.submit(field.batch(0.9, 0.8))
    (letter,) = await review.letters(field.store)
    assert "no output `risk`" in letter.reason


# Confirm


async def test_nothing_is_sent_before_a_person_approves_exactly_that() -> None:
    field = Field(act(**CONFIRM))
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.clock.advance(5)
        (one,) = await review.waiting(field.store, now=field.now)
        assert one.steps == (CommandStep("valve", {"value": 90.0}),)
        assert field.valve.orders == []
        with pytest.raises(HarchError) as caught:
            await review.approve(field.store, one.cmd_id, "0" * 64, by="amina", now=field.now, audit_to=field.chain)
        assert caught.value.code == "E0773"
        await field.clock.advance(5)
        assert field.valve.orders == []
        await review.approve(field.store, one.cmd_id, one.digest, by="amina", now=field.now, audit_to=field.chain)
        await field.clock.advance(2)
    assert len(field.valve.orders) == 1
    assert field.states() == [CommandState.DONE]
    assert field.chain.kinds(one.cmd_id)[0] == "action.approved allowed"
    assert field.entries()[0].approved_by == "amina"


async def test_a_thousand_that_wait_do_not_hide_the_one_that_was_approved() -> None:
    field = Field(act(**CONFIRM, ttl_s=600))
    async with field.running():
        await field.stage.submit(field.batch(*[0.9] * (POLL_ROWS + 50)))
        await field.clock.advance(1)
        one = (await review.waiting(field.store, now=field.now))[0]
        await review.approve(field.store, one.cmd_id, one.digest, by="a", now=field.now, audit_to=field.chain)
        await field.clock.advance(3)
    assert [order.cmd_id for order in field.valve.orders] == [one.cmd_id]


async def test_an_approval_that_comes_too_late_is_refused_and_the_command_expires() -> None:
    field = Field(act(**CONFIRM, ttl_s=5))
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        (one,) = await review.waiting(field.store, now=field.now)
        await field.clock.advance(6)
        assert await review.waiting(field.store, now=field.now) == []
        with pytest.raises(HarchError) as caught:
            await review.approve(field.store, one.cmd_id, one.digest, by="a", now=field.now, audit_to=field.chain)
        assert caught.value.code == "E0772"
        await field.clock.advance(2)
    assert field.states() == [CommandState.EXPIRED]
    assert field.valve.orders == []


async def test_interlocks_are_checked_again_after_the_approval(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    field = Field(act(**CONFIRM, interlocks={"stop_file": str(stop)}))
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        (one,) = await review.waiting(field.store, now=field.now)
        await review.approve(field.store, one.cmd_id, one.digest, by="a", now=field.now, audit_to=field.chain)
        stop.touch()
        await field.clock.advance(2)
    assert field.states() == [CommandState.REJECTED]
    assert field.valve.orders == []


async def test_a_person_says_no() -> None:
    field = Field(act(**CONFIRM))
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        (one,) = await review.waiting(field.store, now=field.now)
        await review.reject(field.store, one.cmd_id, by="b", reason="rain", now=field.now, audit_to=field.chain)
        await field.clock.advance(2)
        with pytest.raises(HarchError):
            await review.approve(field.store, one.cmd_id, one.digest, by="a", now=field.now, audit_to=field.chain)
    assert field.states() == [CommandState.REJECTED]
    assert field.valve.orders == []


@pytest.mark.parametrize(
    "change",
    [
        {"steps": (CommandStep("valve", {"value": 99.0}),)},
        {"expires_ms": 10**15},
        {"device": "d9"},
        {"dry_run": True},
    ],
)
async def test_a_command_that_was_altered_after_the_approval_never_fires(change: dict[str, Any]) -> None:
    field = Field(act(**CONFIRM))
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        (one,) = await review.waiting(field.store, now=field.now)
        await review.approve(field.store, one.cmd_id, one.digest, by="a", now=field.now, audit_to=field.chain)
        row = field.store.rows[one.cmd_id]
        forged: ActionCommand = structs.replace(row.entry.command, **change)
        field.store.rows[one.cmd_id] = StoredEntry(structs.replace(row.entry, command=forged), row.revision)
        await field.clock.advance(2)
    assert field.valve.orders == []
    assert field.states() == [CommandState.REJECTED]


async def test_an_entry_forged_as_authorised_without_an_approval_never_fires() -> None:
    field = Field(act(**CONFIRM))
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        (row,) = field.store.rows.values()
        forged = structs.replace(row.entry, state=CommandState.AUTHORISED)
        field.store.rows[row.entry.cmd_id] = StoredEntry(forged, row.revision)
        await field.clock.advance(2)
    assert field.valve.orders == []
    assert field.entries()[0].reason == "this exact command was not approved"


# Interlocks, rates, stops, dry runs


async def test_a_stop_in_the_ledger_stops_everybody_and_going_on_lets_new_commands_through() -> None:
    field = Field(act())
    await field.store.set_stop("maintenance")
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        assert field.states() == [CommandState.REJECTED]
        await field.store.set_stop("")
        await field.stage.submit(field.batch(0.9, window=2))
        await field.stage.drain()
    assert len(field.valve.orders) == 1


async def test_a_rate_limit_makes_commands_wait_and_not_vanish() -> None:
    field = Field(act(rate={"per_s": 1, "burst": 2}))
    async with field.running():
        for window in range(6):
            await field.stage.submit(field.batch(0.9, window=window))
        await field.clock.advance(0.5)
        assert len(field.valve.orders) == 2
        await field.clock.advance(2)
        assert len(field.valve.orders) == 4
        await field.clock.advance(3)
    assert len(field.valve.orders) == 6
    assert set(field.states()) == {CommandState.DONE}


async def test_a_dry_run_goes_through_everything_but_the_sink() -> None:
    for settings in (act(dry_run=True), act(**CONFIRM, dry_run=True)):
        field = Field(settings)
        async with field.running():
            await field.stage.submit(field.batch(0.9))
            for one in await review.waiting(field.store, now=field.now):
                assert one.dry_run
                await review.approve(field.store, one.cmd_id, one.digest, by="a", now=field.now, audit_to=field.chain)
            await field.clock.advance(3)
        assert field.valve.orders == []
        assert field.states() == [CommandState.DONE]
        assert all(draft.details["dry_run"] is True for draft in field.chain.drafts)


async def test_without_the_audit_chain_nothing_is_sent() -> None:
    field = Field(act(retries={"attempts": 2, "base_s": 1}))

    async def broken(_: object) -> None:
        raise HarchError("E1003", "the disk is full")

    field.stage._worker.audit = broken
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.clock.advance(10)
    assert field.valve.orders == []
    assert field.states() == [CommandState.DEAD]


# Transactions

STEPS: dict[str, Any] = {
    "sinks": {
        "valve": {
            "kind": "http",
            "url": "http://127.0.0.1:1/a",
            "honours_key": True,
            "undo_url": "http://127.0.0.1:1/b",
        },
        "pump": {"kind": "http", "url": "http://127.0.0.1:1/c", "honours_key": True},
    },
    "steps": [
        {"sink": "valve", "args": {"value": 1}, "undo": {"value": 0}},
        {"sink": "pump", "args": {"value": 5}},
    ],
    "retries": {"attempts": 2, "base_s": 1},
}


async def test_steps_run_in_order_under_keys_of_their_own() -> None:
    pump = RecordingSink()
    field = Field(act(**STEPS), pump=pump)
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.stage.drain()
    (cmd_id,) = field.store.rows
    assert [order.key for order in field.valve.orders + pump.orders] == [f"{cmd_id}:0", f"{cmd_id}:1"]


async def test_a_step_that_cannot_be_prepared_keeps_all_others_from_being_sent() -> None:
    pump = RecordingSink(prepared=PreparedRequest("out of order", retry=False))
    field = Field(act(**STEPS), pump=pump)
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.stage.drain()
    assert field.valve.orders == []
    assert field.states() == [CommandState.DEAD]


async def test_a_step_that_fails_for_good_takes_the_earlier_ones_back() -> None:
    pump = RecordingSink(answers=[SinkOutcome(Effect.NO, "broken", retry=False)])
    field = Field(act(**STEPS), pump=pump)
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.stage.drain()
    assert [(order.undo, order.args) for order in field.valve.orders] == [(False, {"value": 1}), (True, {"value": 0})]
    (letter,) = await review.letters(field.store)
    assert letter.reason == "undone; broken"
    with pytest.raises(HarchError, match="keys are used up"):
        await review.replay(field.store, letter.cmd_id, now=field.now)


@pytest.mark.parametrize(
    ("effect", "undone", "reason"),
    [(Effect.NO, 2, "undone; broken"), (Effect.MAYBE, 1, "step 0 not undone: lost; broken")],
)
async def test_what_may_have_been_taken_back_is_not_taken_back_twice(effect: Effect, undone: int, reason: str) -> None:
    valve = RecordingSink(keeps_keys=False, reads_back=False)
    valve.answers = [SinkOutcome(Effect.YES), SinkOutcome(effect, "lost", retry=True)]
    field = Field(
        act(**STEPS), valve=valve, pump=RecordingSink(answers=[SinkOutcome(Effect.NO, "broken", retry=False)])
    )
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.clock.advance(10)
    assert sum(order.undo for order in valve.orders) == undone
    (letter,) = await review.letters(field.store)
    assert letter.reason == reason


async def test_an_unanswered_request_is_read_back_before_anything_is_sent_again() -> None:
    field = Field(act(), valve=RecordingSink(keeps_keys=False, reads_back=True))
    field.valve.answers = [SinkOutcome(Effect.MAYBE, "no answer")]
    field.valve.probes = [SinkOutcome(Effect.YES)]
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.clock.advance(10)
    assert len(field.valve.orders) == 1
    assert len(field.valve.probed) == 1
    assert field.states() == [CommandState.DONE]


async def test_while_a_device_is_in_doubt_no_other_command_goes_to_it() -> None:
    field = Field(act(settle_s=5), valve=RecordingSink(keeps_keys=False, reads_back=True))
    field.valve.answers = [SinkOutcome(Effect.MAYBE, "no answer")]
    async with field.running():
        await field.stage.submit(field.batch(0.9))
        await field.clock.advance(1)
        await field.stage.submit(field.batch(0.8, window=2))
        await field.stage.submit(field.batch(0.7, window=2, devices=["other"]))
        await field.clock.advance(3)
        assert [order.device for order in field.valve.orders] == ["d0", "other"]
        await field.clock.advance(3)
    assert [order.args["value"] for order in field.valve.orders] == [90.0, 70.0, 80.0]
    assert set(field.states()) == {CommandState.DONE}


async def test_commands_of_a_dead_worker_are_taken_over_after_their_time_and_asked_about_first() -> None:
    first = Field(act(), valve=RecordingSink(keeps_keys=False, reads_back=True))

    class Dies(RecordingSink):
        async def execute(self, order: Any, gate: Any) -> SinkOutcome:
            self.orders.append(order)
            raise asyncio.CancelledError

    dying = Dies()
    first = Field(act(), valve=dying)
    task = asyncio.create_task(first.stage.run())
    await first.stage.submit(first.batch(0.9))
    await first.clock.advance(0)
    assert first.states() == [CommandState.INTENT]
    task.cancel()
    await asyncio.wait([task])

    second = Field(act(), store=first.store, valve=RecordingSink(keeps_keys=False, reads_back=True))
    async with second.running():
        await second.clock.advance(3)
        assert second.valve.probed == [], "a request may still be under way"
        await second.clock.advance(3)
    assert len(second.valve.probed) == 1
    assert second.valve.orders == []
    assert second.states() == [CommandState.DONE]


# Queues


async def test_a_full_queue_tells_the_sender_and_takes_nothing() -> None:
    field = Field(act(queue_max=2))
    with pytest.raises(HarchError) as caught:
        await field.stage.submit(field.batch(0.9, 0.9, 0.9), wait=False)
    assert caught.value.code == "E0777"
    assert field.entries() == []
    assert field.stage.counters.refused_full == 1


async def test_a_sender_that_waits_gets_all_of_a_large_batch_through_a_small_queue() -> None:
    field = Field(act(queue_max=2))
    async with field.running():
        async with asyncio.timeout(20):
            await field.stage.submit(field.batch(*[0.9] * 25))
            await field.stage.drain()
    assert len(field.valve.orders) == 25


async def test_an_urgent_command_gets_in_while_others_wait_for_room() -> None:
    settings = act(queue_max=20)
    urgent = structs.replace(settings.actions[0], name="alarm", priority=0, when="score > 0.8")
    field = Field(structs.replace(settings, actions=(settings.actions[0], urgent)))
    flood = asyncio.create_task(field.stage.submit(field.batch(*[0.6] * 30)))
    await field.clock.advance(0)
    assert len(field.entries()) == 18
    taken = asyncio.create_task(field.stage.submit(field.batch(0.9, devices=["hot"])))
    await field.clock.advance(0)
    assert [entry.command.action for entry in field.entries()].count("alarm") == 1
    async with field.running():
        await asyncio.wait_for(asyncio.gather(flood, taken), 20)
        await field.stage.drain()
    assert len(field.valve.orders) == 32
    assert field.valve.orders[0].action == "alarm"


async def test_a_clock_that_is_set_back_does_not_make_commands_younger() -> None:
    field = Field(act())
    before = field.stage._now_ms()
    field.clock._elapsed_s -= 5
    assert field.stage._now_ms() == before
    field.clock._elapsed_s -= 3600
    assert field.stage._now_ms() < before


async def test_the_most_urgent_goes_first() -> None:
    settings = act()
    urgent = structs.replace(settings.actions[0], name="alarm", priority=0, when="score > 0.8")
    field = Field(structs.replace(settings, actions=(settings.actions[0], urgent), concurrency=1))
    await field.stage.submit(field.batch(0.6, 0.9))
    async with field.running():
        await field.stage.drain()
    assert [order.action for order in field.valve.orders] == ["alarm", "open", "open"]


async def test_an_action_about_another_model_is_not_asked() -> None:
    for settings in (act(model="frost"), act(when="cold > 0.5", args={})):
        field = Field(settings)
        async with field.running():
            assert (await field.stage.submit(field.batch(0.9))).commands == 0
        assert field.entries() == []


async def test_what_think_decided_is_taken_as_it_comes() -> None:
    origin = Origin(pipeline="irrigation", partition=0, window_end_ns=77, juris_mask=MA, policy_version=3)
    field = Field(act(model="soil"))
    decided = DecodedOutputs(
        origin=origin,
        ref=VersionRef(model="soil", version="1", sha256="ab" * 32),
        at_ms=field.now_ms,
        devices=np.array([1, 0], dtype=np.uint32),
        outputs={"score": np.array([0.9, 0.1])},
    )
    async with field.running():
        await field.stage.submit(decision_batch(decided, ["north", "south"]))
        await field.stage.drain()
    (entry,) = field.entries()
    assert (entry.command.device, entry.command.window, entry.command.model) == ("south", 77, "ab" * 32)
    assert entry.command.policy_version == 3


async def test_rows_that_are_no_numbers_are_counted() -> None:
    field = Field(act())
    async with field.running():
        await field.stage.submit(field.batch(float("nan"), 0.9))
        await field.stage.drain()
    counts = field.stage.counters.as_dict()
    assert (counts["rows"], counts["rows_unfit"], counts["ended_done"]) == (2, 1, 1)


async def test_windows_and_times_may_differ_by_row() -> None:
    field = Field(act())
    mixed = field.batch(0.9, 0.9, devices=["d", "d"])
    mixed = DecisionBatch(
        pipeline=mixed.pipeline,
        devices=mixed.devices,
        columns=mixed.columns,
        windows=np.array([1, 2]),
        at_ms=np.array([field.now_ms, field.now_ms - 100]),
        juris_mask=MA,
    )
    async with field.running():
        assert (await field.stage.submit(mixed)).commands == 2
        await field.stage.drain()
    assert sorted(entry.command.window for entry in field.entries()) == [1, 2]
