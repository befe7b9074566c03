"""One turn of one worker: what it asks of a sink, what it writes, how long it waits, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from harch.base.errors import HarchError
from harch.pipelines.act import attempt, ledger
from harch.pipelines.act.attempt import ActCounters, Requests, Worker
from harch.pipelines.act.guards import Guards, delay_ms
from harch.pipelines.act.ledger import CommandState, CommandStep, LedgerEntry
from harch.pipelines.act.settings import ActionSettings, Mode
from harch.pipelines.act.sinks.base import Effect, PreparedRequest, SendGate, SinkOutcome, SinkRequest
from harch.pipelines.act.store import LedgerConflict, StoredEntry
from unit.pipelines.act.act_builders import Chain, MemoryLedger, RecordingSink, act, command

S = CommandState
NOW = 5_000  # commands expire at 30,000
SETTLE_MS = 2_000
BUSY_MS = SETTLE_MS + 2 * 1_000 + 1  # one step at a sink of one second: its request and its question
VALUE_0 = {"value": 0.0}
TWO_STEPS = (CommandStep("valve", {"value": 1.0}, {"value": 0.0}), CommandStep("pump", {"value": 5.0}))


class Written(MemoryLedger):
    """Remembers how each entry was written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[CommandState, bool]] = []  # state, durable

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        stored = await super().put(entry, revision=revision, durable=durable)
        self.writes.append((entry.state, durable))
        return stored


@dataclass
class Valve(RecordingSink):
    """May do something first: take time, or break."""

    before: Callable[[], object] = lambda: None

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        self.before()
        return await super().prepare(order)

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        self.before()
        return await super().execute(order, gate)

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        self.before()
        return await super().probe(order)


def breaks() -> None:
    raise RuntimeError


@dataclass
class Site:
    """One worker with its valve, its pump and its ledger."""

    valve: Valve = field(default_factory=Valve)
    pump: Valve = field(default_factory=Valve)
    now_ms: int = NOW
    stop: str = ""
    action: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store, self.chain, self.counters = Written(), Chain(), ActCounters()
        actions = act(**{"retries": {"attempts": 3, "base_s": 1, "factor": 2, "jitter": 0}, **self.action}).actions
        requests = Requests(
            sinks={"valve": self.valve, "pump": self.pump},
            now_ms=lambda: self.now_ms,
            stopped=self.stopped,
            settle_ms=SETTLE_MS,
            counters=self.counters,
        )
        self.worker = Worker(
            name="w1",
            store=self.store,
            requests=requests,
            actions={one.name: one for one in actions},
            guards=Guards(),
            now_ms=lambda: self.now_ms,
            audit=self.chain,
            counters=self.counters,
        )

    def stopped(self, _: ActionSettings) -> str:
        return self.stop

    def later(self, ms: int) -> None:
        self.now_ms += ms

    async def turn(self, before: LedgerEntry) -> LedgerEntry:
        """What the ledger says after one turn."""
        self.store.rows[before.cmd_id] = StoredEntry(before, 1)
        after = await self.worker.advance(StoredEntry(before, 1))
        if after.revision > 1:
            assert self.store.rows[before.cmd_id] == after
        return after.entry


def entry(state: CommandState = S.AUTHORISED, *, mode: Mode = Mode.TRANSACTIONAL, **now: Any) -> LedgerEntry:
    """A command that was proposed and has come so far."""
    made = {name: now.pop(name) for name in ("steps", "dry_run", "trace", "juris_mask") if name in now}
    return structs.replace(ledger.proposed(command(mode=mode, **made), now_ms=100), state=state, **now)


def no(detail: str = "busy", *, retry: bool = True) -> SinkOutcome:
    return SinkOutcome(Effect.NO, detail, retry=retry)


def maybe(detail: str = "no answer", *, retry: bool = True) -> SinkOutcome:
    return SinkOutcome(Effect.MAYBE, detail, retry=retry)


def end_of(one: LedgerEntry) -> tuple[CommandState, bool, str]:
    return one.state, one.maybe_sent, one.reason


# Sending


async def test_a_command_is_claimed_on_disk_sent_once_and_done() -> None:
    site = Site()
    before = entry(trace="tr", juris_mask=3)
    after = await site.turn(before)
    assert after == structs.replace(
        before,
        state=S.DONE,
        changed_ms=NOW,
        worker="w1",
        fence=1,
        attempts=1,
        busy_until_ms=NOW + BUSY_MS,
        undo=(None,),
        steps_done=1,
        closed=True,
    )
    assert site.valve.orders == [
        SinkRequest(
            key=f"{before.cmd_id}:0",
            cmd_id=before.cmd_id,
            device="d0",
            action="open",
            args={"value": 80.0},
            fence=1,
            timeout_s=1.0,
            expires_ms=30_000,
            undo=False,
            trace="tr",
            juris_mask=3,
        )
    ]
    assert site.store.writes == [(S.INTENT, True), (S.DONE, True)]
    assert site.chain.kinds(before.cmd_id) == ["action.intent allowed", "action.outcome done"]
    counts = site.counters.as_dict()
    assert {name: count for name, count in counts.items() if count} == {"requests": 1, "ended_done": 1}
    assert "ends" not in counts


async def test_a_request_takes_no_longer_than_its_command_lives() -> None:
    for now_ms, timeout_s in ((28_999, 1.0), (29_000, 1.0), (29_750, 0.25), (29_999, 0.001)):
        site = Site(now_ms=now_ms)
        await site.turn(entry())
        assert [order.timeout_s for order in site.valve.orders] == [timeout_s]


async def test_a_question_after_the_end_of_a_command_has_all_the_time_of_its_sink() -> None:
    for now_ms, timeout_s in ((29_750, 0.25), (30_000, 1.0), (40_000, 1.0)):
        site = Site(valve=Valve(reads_back=True), now_ms=now_ms)
        await site.turn(entry(S.UNKNOWN, maybe_sent=True))
        assert [order.timeout_s for order in site.valve.probed] == [timeout_s]


async def test_a_worker_keeps_a_command_for_the_requests_and_questions_of_all_its_steps() -> None:
    site = Site(pump=Valve(timeout_s=0.25))
    claims: list[LedgerEntry] = []
    site.valve.before = lambda: claims.extend(row.entry for row in site.store.rows.values())
    await site.turn(entry(steps=(*TWO_STEPS, CommandStep("valve", {}))))
    assert claims[-1].busy_until_ms == NOW + SETTLE_MS + 2 * (1_000 + 250 + 1_000) + 1
    assert claims[-1].undo == (VALUE_0, None, None)


@pytest.mark.parametrize(
    ("late_ms", "stop", "reason"),
    [
        (1_001, "", ""),
        (1_002, "", "the worker took too long"),
        (1_000, "fire drill", "fire drill"),
    ],
)
async def test_the_gate_closes_before_somebody_else_could_take_the_command_over(
    late_ms: int, stop: str, reason: str
) -> None:
    """A request of one second that begins 1,001 ms after the claim is over when the two seconds of settling begin."""
    site = Site()

    def connects() -> None:
        if site.store.writes:  # not while it prepares
            site.later(late_ms)
            site.stop = stop

    site.valve.before = connects
    after = await site.turn(entry())
    assert (after.state, after.reason) == ((S.FAILED, reason) if reason else (S.DONE, ""))
    assert site.counters.requests == 1


async def test_the_gate_is_closed_for_what_has_expired_meanwhile_or_cannot_be_asked() -> None:
    site = Site(now_ms=29_500)

    def expires() -> None:
        site.later(500 if site.store.writes else 0)

    site.valve.before = expires
    assert end_of(await site.turn(entry())) == (S.EXPIRED, False, "expired before it was sent")
    assert site.valve.orders == []

    site = Site()

    def unheard(_: ActionSettings) -> str:
        if site.store.writes:
            raise HarchError("E0775", "the ledger did not answer")
        return ""

    site.worker.requests.stopped = unheard
    assert end_of(await site.turn(entry())) == (S.FAILED, False, "the ledger did not answer")
    assert site.counters.requests == 0, "the gate is asked before the sink is"


async def test_a_command_that_expires_while_it_is_prepared_is_not_claimed() -> None:
    site = Site(now_ms=29_999)
    site.valve.before = lambda: site.later(1)
    assert end_of(await site.turn(entry())) == (S.EXPIRED, False, "expired before it was sent")
    assert site.valve.orders == []
    assert site.store.writes == [(S.EXPIRED, True)]


async def test_what_takes_a_step_back_is_what_its_command_says_or_what_the_sink_found() -> None:
    for undo, expected in ((None, {"value": 7}), ({"value": 0}, {"value": 0})):
        site = Site(valve=Valve(prepared=PreparedRequest(undo={"value": 7})))
        after = await site.turn(entry(steps=(CommandStep("valve", {"value": 1.0}, undo),)))
        assert after.undo == (expected,)
    site = Site(valve=Valve(prepared=PreparedRequest(undo={"value": 7})))
    again = await site.turn(entry(S.FAILED, undo=({"value": 3},)))
    assert again.undo == ({"value": 3},), "prepared once: now it may be changed already"


@pytest.mark.parametrize(
    ("prepared", "end"),
    [
        (PreparedRequest("out of order", retry=False), (S.DEAD, False, "out of order")),
        (PreparedRequest("out of order"), (S.FAILED, False, "out of order")),
    ],
)
async def test_a_step_that_cannot_be_prepared_is_not_sent(
    prepared: PreparedRequest, end: tuple[CommandState, bool, str]
) -> None:
    site = Site(valve=Valve(prepared=prepared))
    assert end_of(await site.turn(entry())) == end
    assert site.valve.orders == []
    assert site.chain.kinds(entry().cmd_id)[:1] != ["action.intent allowed"]


async def test_an_adapter_that_breaks_says_nothing_of_what_it_did() -> None:
    site = Site(valve=Valve(before=breaks))
    assert end_of(await site.turn(entry())) == (S.FAILED, False, "valve: RuntimeError")
    assert end_of(await site.turn(entry(S.FAILED, undo=(None,)))) == (S.UNKNOWN, True, "valve: RuntimeError")
    site = Site(valve=Valve(before=breaks, reads_back=True, keeps_keys=False))
    after = await site.turn(entry(S.UNKNOWN, maybe_sent=True))
    assert end_of(after) == (S.UNKNOWN, True, "could not be read back: RuntimeError")


async def test_a_sink_that_is_gone_sends_nothing_and_takes_nothing_back() -> None:
    site = Site()
    gone = (CommandStep("gone", {}),)
    assert end_of(await site.turn(entry(steps=gone))) == (S.DEAD, False, "no sink `gone`")
    assert end_of(await site.turn(entry(S.FAILED, steps=gone, undo=(None,)))) == (S.DEAD, False, "no sink `gone`")
    taken = entry(S.FAILED, steps=gone, steps_done=1, undo=(VALUE_0,), undoing=True, reason="broken")
    assert end_of(await site.turn(taken)) == (S.DEAD, False, "step 0 not undone: no sink `gone`; broken")
    found = await site.turn(entry(S.UNKNOWN, steps=gone, maybe_sent=True))
    assert end_of(found) == (S.DEAD, True, "the sink can neither be queried nor deduplicate by key")
    assert site.counters.requests == 0


async def test_a_dry_run_prepares_nothing_and_sends_nothing() -> None:
    site = Site(valve=Valve(before=breaks))
    after = await site.turn(entry(dry_run=True))
    assert (after.state, after.undo) == (S.DONE, ())
    assert (site.counters.dry_runs, site.counters.requests) == (1, 0)


async def test_what_is_not_audited_is_not_sent() -> None:
    site = Site()

    async def full(_: object) -> None:
        raise HarchError("E1003", "the disk is full")

    site.worker.audit = full
    after = await site.turn(entry())
    assert end_of(after) == (S.FAILED, False, "not audited, so not executed: the disk is full")
    assert site.valve.orders == []
    assert site.counters.audits_failed == 0
    careless = await site.turn(entry(mode=Mode.FIRE_AND_FORGET))
    assert careless.state is S.DONE
    assert site.counters.audits_failed == 1, "its end could not be written to the chain"


@pytest.mark.parametrize(
    ("mode", "reads_back", "verified", "writes", "probed"),
    [
        (Mode.TRANSACTIONAL, True, False, [(S.INTENT, True), (S.SENT, False), (S.DONE, True)], 1),
        (Mode.TRANSACTIONAL, True, True, [(S.INTENT, True), (S.DONE, True)], 0),
        (Mode.TRANSACTIONAL, False, False, [(S.INTENT, True), (S.DONE, True)], 0),
        (Mode.FIRE_AND_FORGET, True, False, [(S.INTENT, False), (S.DONE, False)], 0),
    ],
)
async def test_a_transaction_is_read_back_where_the_sink_can_and_has_not_done_so_itself(
    mode: Mode, reads_back: bool, verified: bool, writes: list[tuple[CommandState, bool]], probed: int
) -> None:
    site = Site(valve=Valve(reads_back=reads_back, answers=[SinkOutcome(Effect.YES, verified=verified)]))
    assert (await site.turn(entry(mode=mode))).state is S.DONE
    assert site.store.writes == writes
    assert len(site.valve.probed) == probed


async def test_what_is_read_back_otherwise_is_not_done() -> None:
    site = Site(valve=Valve(reads_back=True, probes=[no("it is shut")]))
    assert end_of(await site.turn(entry())) == (S.FAILED, False, "it is shut")
    site = Site(valve=Valve(reads_back=True, probes=[maybe("silence")]))
    assert end_of(await site.turn(entry())) == (S.UNKNOWN, True, "silence")
    refused = Site(valve=Valve(reads_back=True, answers=[no("shut")]))
    assert end_of(await refused.turn(entry())) == (S.FAILED, False, "shut")
    assert refused.valve.probed == []


@pytest.mark.parametrize(
    ("keeps_keys", "reads_back", "waits_ms"),
    [(True, False, 0), (True, True, SETTLE_MS), (False, True, SETTLE_MS), (False, False, SETTLE_MS)],
)
async def test_what_was_not_answered_settles_first_unless_the_same_key_is_simply_sent_again(
    keeps_keys: bool, reads_back: bool, waits_ms: int
) -> None:
    site = Site(valve=Valve(keeps_keys=keeps_keys, reads_back=reads_back, answers=[maybe()]))
    after = await site.turn(entry())
    assert end_of(after) == (S.UNKNOWN, True, "no answer")
    assert (after.due_ms, after.busy_until_ms) == (NOW + waits_ms, NOW + waits_ms)


async def test_a_step_between_others_is_written_behind() -> None:
    site = Site()
    assert (await site.turn(entry(steps=TWO_STEPS))).state is S.DONE
    assert site.store.writes == [(S.INTENT, True), (S.INTENT, False), (S.DONE, True)]
    assert [order.key[-2:] for order in (*site.valve.orders, *site.pump.orders)] == [":0", ":1"]


# Who has a turn


async def test_an_entry_is_left_alone_until_its_time_and_behind_its_end() -> None:
    site = Site()
    for resting in (
        entry(S.FAILED, due_ms=NOW + 1),
        entry(S.INTENT, busy_until_ms=NOW + 1),
        entry(S.DONE, closed=True),
        entry(S.AWAIT_CONFIRM, mode=Mode.CONFIRM),
    ):
        assert await site.turn(resting) == resting
    assert site.store.writes == []
    assert (await site.turn(entry(S.FAILED, due_ms=NOW, busy_until_ms=NOW))).state is S.DONE


async def test_what_waits_for_a_person_expires_with_its_command() -> None:
    waits = entry(S.AWAIT_CONFIRM, mode=Mode.CONFIRM)
    assert await Site(now_ms=29_999).turn(waits) == waits
    site = Site(now_ms=30_000)
    assert (await site.turn(waits)).state is S.EXPIRED
    assert site.chain.kinds(waits.cmd_id) == ["action.outcome refused"]
    assert site.store.writes == [(S.EXPIRED, True)]


@pytest.mark.parametrize(
    ("state", "maybe_sent", "end"),
    [(S.AUTHORISED, False, False), (S.FAILED, True, True), (S.INTENT, False, True), (S.SENT, False, True)],
)
async def test_a_command_whose_action_is_gone_becomes_a_letter(
    state: CommandState, maybe_sent: bool, end: bool
) -> None:
    site = Site(action={"name": "shut"})
    after = await site.turn(entry(state, maybe_sent=maybe_sent))
    assert end_of(after) == (S.DEAD, end, "the pipeline no longer has this action")
    assert after.letter


async def test_a_command_that_finds_no_token_waits_and_nothing_is_written() -> None:
    site = Site(action={"rate": {"per_s": 1, "burst": 1}})
    await site.turn(entry())
    other = structs.replace(entry(), command=command(window=2))
    other = structs.replace(other, digest=ledger.digest(other.command))
    site.store.writes.clear()
    after = await site.turn(other)
    assert after == structs.replace(other, due_ms=NOW + 1_001)
    assert site.store.writes == []
    assert site.counters.rate_waits == 1


async def test_interlocks_a_stop_and_a_forged_entry_refuse_it_for_good() -> None:
    stopped = Site(stop="fire drill")
    assert end_of(await stopped.turn(entry())) == (S.REJECTED, False, "stop: all actions are halted: fire drill")
    assert stopped.chain.kinds(entry().cmd_id) == ["action.outcome refused"]
    forged = await Site().turn(entry(digest="other"))
    assert end_of(forged) == (S.REJECTED, False, "the command differs from the one proposed")
    late = await Site(now_ms=30_000).turn(entry())
    assert end_of(late) == (S.EXPIRED, False, "expired before it was sent")
    doubtful = await Site(now_ms=30_000).turn(entry(S.FAILED, maybe_sent=True))
    assert end_of(doubtful) == (S.DEAD, True, "expired")


# Failing


@pytest.mark.parametrize(("attempts", "waits_ms"), [(0, 1_000), (1, 2_000)])
async def test_a_failure_is_tried_again_after_its_delay(attempts: int, waits_ms: int) -> None:
    site = Site(valve=Valve(answers=[no()]))
    after = await site.turn(entry(S.FAILED, attempts=attempts, undo=(None,)))
    assert end_of(after) == (S.FAILED, False, "busy")
    assert (after.due_ms, after.attempts, after.closed) == (NOW + waits_ms, attempts + 1, False)
    assert site.counters.retries == 1


@pytest.mark.parametrize(
    ("attempts", "retry", "now_ms", "dead_letter", "end"),
    [
        (2, True, NOW, True, S.DEAD),  # the third was the last
        (2, True, NOW, False, S.FAILED),
        (0, False, NOW, True, S.DEAD),
        (0, True, 29_000, True, S.DEAD),  # a second later would be too late
        (0, True, 28_999, True, None),
    ],
)
async def test_the_last_failure_ends_a_command(
    attempts: int, retry: bool, now_ms: int, dead_letter: bool, end: CommandState | None
) -> None:
    site = Site(valve=Valve(answers=[no(retry=retry)]), now_ms=now_ms, action={"dead_letter": dead_letter})
    after = await site.turn(entry(S.FAILED, attempts=attempts, undo=(None,)))
    assert after.closed is (end is not None)
    assert end_of(after) == (end or S.FAILED, False, "busy")
    assert after.letter is (end is S.DEAD)
    assert site.counters.retries == (end is None)


async def test_a_refusal_without_words_has_some() -> None:
    site = Site(valve=Valve(answers=[no("")]))
    assert (await site.turn(entry())).reason == "not executed"


async def test_what_is_fired_and_forgotten_is_tried_once() -> None:
    site = Site(valve=Valve(answers=[no()]))
    after = await site.turn(entry(mode=Mode.FIRE_AND_FORGET))
    assert end_of(after) == (S.DEAD, False, "busy")
    assert site.store.writes == [(S.INTENT, False), (S.DEAD, True)], "a letter is kept on disk"
    assert site.chain.kinds(after.cmd_id) == ["action.outcome failed"]
    quiet = Site(valve=Valve(answers=[no()]), action={"dead_letter": False})
    await quiet.turn(entry(mode=Mode.FIRE_AND_FORGET))
    assert quiet.store.writes == [(S.INTENT, False), (S.FAILED, False)]


async def test_a_failure_after_a_doubtful_request_ends_in_doubt() -> None:
    site = Site(valve=Valve(answers=[no(retry=False)]))
    after = await site.turn(entry(S.FAILED, maybe_sent=True, undo=(None,)))
    assert end_of(after) == (S.DEAD, True, "busy")


# Finding out


async def test_before_anything_is_sent_again_the_sink_says_what_became_of_it() -> None:
    site = Site(valve=Valve(reads_back=True, keeps_keys=False))
    before = entry(S.INTENT, attempts=1, fence=1, busy_until_ms=NOW)
    after = await site.turn(before)
    assert after == structs.replace(
        before,
        state=S.DONE,
        changed_ms=NOW,
        worker="w1",
        fence=2,
        questions=1,
        busy_until_ms=NOW + BUSY_MS,
        steps_done=1,
        closed=True,
    )
    assert site.valve.orders == []
    assert site.counters.questions == 1
    assert site.store.writes == [(S.UNKNOWN, True), (S.DONE, True)]


async def test_what_was_not_carried_out_is_tried_at_once_while_an_attempt_is_left() -> None:
    site = Site(valve=Valve(reads_back=True, probes=[no("it is shut")] * 2))
    again = await site.turn(entry(S.SENT, attempts=2))
    assert (*end_of(again), again.due_ms, again.closed) == (S.FAILED, False, "it is shut", NOW, False)
    over = await site.turn(entry(S.SENT, attempts=3))
    assert (*end_of(over), over.closed) == (S.DEAD, False, "it is shut", True)


async def test_a_far_side_that_keeps_keys_is_asked_by_sending_again() -> None:
    site = Site()
    died = await site.turn(entry(S.SENT, attempts=2))
    assert (*end_of(died), died.due_ms) == (S.FAILED, True, "", NOW)
    silent = await site.turn(entry(S.UNKNOWN, attempts=2, reason="no answer"))
    assert (*end_of(silent), silent.due_ms) == (S.FAILED, True, "no answer", NOW + 2_000)
    for before, reason in (
        (entry(S.SENT, attempts=3), "no response"),
        (entry(S.UNKNOWN, attempts=3, reason="no answer"), "no answer"),
    ):
        assert end_of(await site.turn(before)) == (S.DEAD, True, reason)
    for now_ms, state in ((28_999, S.FAILED), (29_000, S.DEAD)):
        late = await Site(now_ms=now_ms).turn(entry(S.UNKNOWN, attempts=1, reason="no answer"))
        assert late.state is state


async def test_a_sink_that_does_not_answer_is_asked_again_after_a_while_and_not_for_ever() -> None:
    def site() -> Site:
        return Site(valve=Valve(reads_back=True, keeps_keys=False, probes=[maybe("silence")]))

    again = await site().turn(entry(S.UNKNOWN, questions=1, reason="lost"))
    assert (*end_of(again), again.due_ms, again.questions) == (S.UNKNOWN, True, "silence", NOW + 2_000, 2)
    last = await site().turn(entry(S.UNKNOWN, questions=2, reason="lost"))
    assert (*end_of(last), last.questions) == (S.DEAD, True, "silence", 3)
    ended = await site().turn(entry(S.UNKNOWN, questions=4, reason="lost"))
    assert (*end_of(ended), ended.questions) == (S.DEAD, True, "lost", 4)
    useless = Site(valve=Valve(reads_back=True, keeps_keys=False, probes=[maybe("no such key", retry=False)]))
    assert end_of(await useless.turn(entry(S.UNKNOWN))) == (S.DEAD, True, "no such key")


async def test_both_ways_to_find_out_are_tried_and_the_look_goes_first() -> None:
    site = Site(valve=Valve(reads_back=True, keeps_keys=True, probes=[maybe("silence")]))
    after = await site.turn(entry(S.UNKNOWN, attempts=1, reason="no answer"))
    assert (*end_of(after), after.due_ms) == (S.FAILED, True, "no answer", NOW + 1_000)
    assert len(site.valve.probed) == 1


async def test_every_step_is_asked_about_until_one_was_not_carried_out() -> None:
    site = Site(valve=Valve(reads_back=True), pump=Valve(reads_back=True, probes=[no("dry")]))
    after = await site.turn(entry(S.INTENT, steps=TWO_STEPS, attempts=1, undo=(VALUE_0, None)))
    assert (*end_of(after), after.steps_done) == (S.FAILED, False, "dry", 1)
    assert (len(site.valve.probed), len(site.pump.probed)) == (1, 1)


@pytest.mark.parametrize(("reason", "said"), [("", "the worker exited while it was in progress"), ("lost", "lost")])
async def test_what_was_fired_and_forgotten_is_not_asked_about(reason: str, said: str) -> None:
    site = Site(valve=Valve(reads_back=True))
    after = await site.turn(entry(S.INTENT, mode=Mode.FIRE_AND_FORGET, reason=reason))
    assert end_of(after) == (S.DEAD, True, said)
    assert site.valve.probed == []


# Taking back


def half_done(**now: Any) -> LedgerEntry:
    """The valve is open, the pump has failed."""
    also = {"steps": TWO_STEPS, "steps_done": 1, "undo": (VALUE_0, None), "attempts": 1, **now}
    return entry(also.pop("state", S.FAILED), **also)


async def test_what_was_done_is_taken_back_with_its_own_key_although_time_is_over_and_a_stop_is_on() -> None:
    site = Site(pump=Valve(answers=[no("dry", retry=False)]))

    def halts() -> None:
        site.stop, site.now_ms = "fire drill", 31_000

    site.pump.before = halts
    site.now_ms = 29_990
    before = half_done()
    after = await site.turn(before)
    assert (*end_of(after), after.steps_done, after.letter) == (S.DEAD, False, "undone; expired", 0, True)
    assert site.pump.orders == []
    (order,) = site.valve.orders
    assert (order.key, order.undo, order.args, order.timeout_s) == (f"{before.cmd_id}:0:undo", True, VALUE_0, 1.0)
    assert site.counters.taken_back == 1
    assert site.store.writes == [(S.INTENT, True), (S.INTENT, True), (S.INTENT, False), (S.DEAD, True)]


async def test_steps_are_taken_back_from_the_last_to_the_first() -> None:
    site = Site()
    steps = (*TWO_STEPS, CommandStep("valve", {}))
    before = entry(
        S.FAILED, steps=steps, steps_done=3, undo=(VALUE_0, {"value": 1.0}, VALUE_0), undoing=True, reason="x"
    )
    after = await site.turn(before)
    assert (end_of(after), after.undo_attempts, after.fence) == ((S.DEAD, False, "undone; x"), 1, 1)
    assert [order.key[-6:] for order in site.valve.orders] == ["2:undo", "0:undo"]
    assert [order.key[-6:] for order in site.pump.orders] == ["1:undo"]
    assert site.counters.taken_back == 1


async def test_a_worker_that_died_while_it_took_back_is_followed_by_one_that_goes_on() -> None:
    over = await Site().turn(half_done(state=S.INTENT, steps_done=0, undoing=True, reason="dry"))
    assert (*end_of(over), over.letter) == (S.DEAD, False, "undone; dry", True)
    again = Site()
    assert end_of(await again.turn(half_done(state=S.INTENT, undoing=True, reason="dry")))[2] == "undone; dry"
    assert len(again.valve.orders) == 1
    for state, reason, orders in ((S.INTENT, "possibly undone in part; dry", 0), (S.FAILED, "undone; dry", 1)):
        once = Site(valve=Valve(keeps_keys=False))
        assert end_of(await once.turn(half_done(state=state, undoing=True, reason="dry")))[2] == reason
        assert len(once.valve.orders) == orders
    seen = Site(valve=Valve(keeps_keys=False, reads_back=True))
    assert end_of(await seen.turn(half_done(state=S.INTENT, undoing=True, reason="dry")))[2] == "undone; dry"


@pytest.mark.parametrize("undo", [(), (None, None)])
async def test_a_step_that_has_no_way_back_is_left_to_a_person(undo: tuple[None, ...]) -> None:
    site = Site()
    after = await site.turn(half_done(undoing=True, undo=undo, reason="dry"))
    assert (*end_of(after), after.letter) == (S.DEAD, False, "step 0 cannot be undone; dry", True)
    assert site.valve.orders == []
    assert site.counters.taken_back == 0


@pytest.mark.parametrize(
    ("outcome", "keeps_keys", "reads_back", "undo_attempts", "waits_ms"),
    [
        (no("stuck"), False, False, 0, 1_000),
        (no("stuck"), False, False, 1, 2_000),
        (no("stuck"), False, False, 2, None),  # the third was the last
        (no("stuck", retry=False), True, True, 0, None),
        (maybe("stuck"), True, False, 0, 1_000),
        (maybe("stuck"), False, True, 0, 1_000),
        (maybe("stuck"), False, False, 0, None),
    ],
)
async def test_taking_back_is_tried_again_where_twice_does_no_harm(
    outcome: SinkOutcome, keeps_keys: bool, reads_back: bool, undo_attempts: int, waits_ms: int | None
) -> None:
    site = Site(valve=Valve(keeps_keys=keeps_keys, reads_back=reads_back, answers=[outcome]))
    after = await site.turn(half_done(undoing=True, undo_attempts=undo_attempts, reason="dry"))
    if waits_ms is None:
        assert (*end_of(after), after.letter) == (S.DEAD, False, "step 0 not undone: stuck; dry", True)
    else:
        assert (*end_of(after), after.due_ms, after.steps_done) == (S.FAILED, False, "dry", NOW + waits_ms, 1)


# Ends that nobody acknowledged


class Silent(Written):
    """Writes ends, and does not say so."""

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        stored = await super().put(entry, revision=revision, durable=durable)
        if entry.closed:
            raise HarchError("E0775", "the ledger did not answer")
        return stored


async def test_an_end_that_was_not_acknowledged_is_counted_when_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "UNACKNOWLEDGED_MAX", 2)
    site = Site()
    site.store = site.worker.store = Silent()
    ends = []
    for window in range(3):
        made = command(window=window)
        before = structs.replace(ledger.proposed(made, now_ms=0), state=S.AUTHORISED)
        with pytest.raises(HarchError):
            await site.turn(before)
        ends.append(site.store.rows[made.cmd_id].entry)
    assert site.counters.ends == {}
    assert list(site.worker.unacknowledged) == [end.cmd_id for end in ends[1:]], "the oldest is forgotten"
    site.worker.count_if_ended(structs.replace(ends[1], closed=False))
    assert site.counters.ends == {}
    for _ in range(2):
        site.worker.count_if_ended(ends[1])
    assert site.counters.ends == {"done": 1}, "once"
    site.worker.count_if_ended(structs.replace(ends[2], worker="w2"))
    assert site.counters.ends == {"done": 1}, "somebody else's"
    assert site.worker.unacknowledged == {}


async def test_who_finds_that_somebody_else_wrote_first_takes_what_the_ledger_has() -> None:
    site = Site()
    before = entry()
    theirs = StoredEntry(structs.replace(before, state=S.DONE, closed=True, worker="w1"), 7)
    site.store.rows[before.cmd_id] = theirs
    site.worker.unacknowledged[before.cmd_id] = None
    assert await site.worker.advance(StoredEntry(before, 1)) == theirs
    assert site.counters.conflicts == 1
    assert site.counters.ends == {"done": 1}

    class Forgetful(Written):
        async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
            raise LedgerConflict(entry.cmd_id)

    site.worker.store = Forgetful()
    assert await site.worker.advance(StoredEntry(before, 1)) == StoredEntry(before, 1), (
        "what is not there stays as it was"
    )


async def test_an_end_that_is_acknowledged_at_last_leaves_nothing_behind() -> None:
    site = Site()
    site.worker.unacknowledged[entry().cmd_id] = None
    await site.turn(entry())
    assert site.worker.unacknowledged == {}
    assert site.counters.ends == {"done": 1}


async def test_delays_follow_from_the_seed_of_the_worker() -> None:
    site = Site(valve=Valve(answers=[no()]), action={"retries": {"attempts": 3, "base_s": 1, "jitter": 0.5}})
    site.worker.seed = 42
    after = await site.turn(entry())
    retries = site.worker.actions["open"].retries
    assert after.due_ms == NOW + delay_ms(retries, attempt=1, key=after.cmd_id, seed=42)
