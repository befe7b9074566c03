"""Every way between the states of the ledger: from where it leads, what it changes, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from harch.base.errors import HarchError, InvariantBroken
from harch.pipelines.act import ledger
from harch.pipelines.act.ledger import CommandState, CommandStep, LedgerEntry
from harch.pipelines.act.settings import Mode
from unit.pipelines.act.act_builders import command

S = CommandState
NOW = 5_000  # commands of these tests expire at 30,000
UNDER_WAY = {S.INTENT, S.SENT, S.UNKNOWN}
Way = Callable[[LedgerEntry], LedgerEntry]


def entry(
    state: CommandState = S.PROPOSED, *, steps: int = 1, mode: Mode = Mode.TRANSACTIONAL, **now: Any
) -> LedgerEntry:
    """An open entry in this state, with what else is `now` true of it."""
    made = command(mode=mode, steps=tuple(CommandStep("valve", {"value": float(place)}) for place in range(steps)))
    return structs.replace(ledger.proposed(made, now_ms=100), state=state, **now)


WAYS: dict[str, tuple[Way, set[CommandState], dict[str, Any]]] = {
    "authorised": (lambda one: ledger.authorised(one, now_ms=NOW), {S.PROPOSED}, {}),
    "claimed": (
        lambda one: ledger.claimed(one, "w", now_ms=NOW, busy_until_ms=9_000),
        {S.AUTHORISED, S.FAILED},
        {},
    ),
    "questioned": (lambda one: ledger.questioned(one, "w", now_ms=NOW, busy_until_ms=9_000), UNDER_WAY, {}),
    "sent": (lambda one: ledger.sent(one, now_ms=NOW), {S.INTENT}, {}),
    "step done": (lambda one: ledger.step_done(one, now_ms=NOW), UNDER_WAY, {}),
    "step undone": (lambda one: ledger.step_undone(one, now_ms=NOW), {S.INTENT}, {"undoing": True, "steps_done": 1}),
    "failed": (
        lambda one: ledger.failed(one, "busy", now_ms=NOW, due_ms=6_000),
        {S.AUTHORISED, S.FAILED, *UNDER_WAY},
        {},
    ),
    "unknown": (lambda one: ledger.unknown(one, "no answer", now_ms=NOW, due_ms=6_000), UNDER_WAY, {}),
    "given up": (
        lambda one: ledger.given_up(one, "enough", now_ms=NOW, letter=True, maybe_sent=False),
        set(CommandState),
        {},
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_way_begins_in_its_own_states_and_never_behind_an_end(name: str) -> None:
    way, begins, also = WAYS[name]
    for state in CommandState:
        if state in begins:
            way(entry(state, **also))
        else:
            with pytest.raises(InvariantBroken, match="no such way between states"):
                way(entry(state, **also))
        with pytest.raises(InvariantBroken):
            way(entry(state, closed=True, **also))


def test_a_command_is_proposed_with_its_hash_and_nothing_else() -> None:
    one = command(3)
    assert ledger.proposed(one, now_ms=7) == LedgerEntry(
        command=one, state=S.PROPOSED, digest=ledger.digest(one), changed_ms=7
    )


@pytest.mark.parametrize("mode", list(Mode))
def test_only_what_needs_a_person_waits_for_one(mode: Mode) -> None:
    before = entry(mode=mode)
    state = S.AWAIT_CONFIRM if mode is Mode.CONFIRM else S.AUTHORISED
    assert ledger.authorised(before, now_ms=NOW) == structs.replace(before, state=state, changed_ms=NOW)


def test_a_claim_counts_raises_the_fence_and_names_the_worker() -> None:
    before = entry(S.FAILED, fence=4, attempts=2, due_ms=NOW, reason="busy", undo=({"value": 1},))
    after = ledger.claimed(before, "w9", now_ms=NOW, busy_until_ms=9_000)
    assert after == structs.replace(
        before, state=S.INTENT, changed_ms=NOW, worker="w9", fence=5, attempts=3, busy_until_ms=9_000, reason=""
    )
    prepared = ledger.claimed(before, "w9", now_ms=NOW, busy_until_ms=9_000, undo=(None,))
    assert prepared.undo == (None,)


@pytest.mark.parametrize(
    ("also", "why"),
    [
        ({"undoing": True}, "claimed out of turn"),
        ({"due_ms": NOW + 1}, "claimed out of turn"),
        ({"digest": "other"}, "differs from the one proposed"),
    ],
)
def test_what_must_not_be_sent_cannot_be_claimed(also: dict[str, Any], why: str) -> None:
    with pytest.raises(InvariantBroken, match=why):
        ledger.claimed(entry(S.AUTHORISED, **also), "w", now_ms=NOW, busy_until_ms=9_000)


def test_a_command_is_claimed_until_the_moment_it_expires() -> None:
    assert ledger.claimed(entry(S.AUTHORISED), "w", now_ms=29_999, busy_until_ms=31_000).state is S.INTENT
    with pytest.raises(InvariantBroken, match="expired command is never sent"):
        ledger.claimed(entry(S.AUTHORISED), "w", now_ms=30_000, busy_until_ms=31_000)


def test_a_command_that_needs_a_person_is_claimed_only_with_the_hash_that_was_approved() -> None:
    waits = entry(S.AUTHORISED, mode=Mode.CONFIRM)
    for approved in ("", "0" * 64):
        forged = structs.replace(waits, approved_digest=approved)
        assert ledger.altered(forged) == "this exact command was not approved"
        with pytest.raises(InvariantBroken, match="not approved"):
            ledger.claimed(forged, "w", now_ms=NOW, busy_until_ms=9_000)
    approved = structs.replace(waits, approved_digest=waits.digest)
    assert ledger.altered(approved) == ""
    assert ledger.claimed(approved, "w", now_ms=NOW, busy_until_ms=9_000).state is S.INTENT


def test_what_is_not_what_was_proposed_is_altered_by_its_id_or_by_its_hash() -> None:
    before = entry(S.AUTHORISED)
    assert ledger.altered(before) == ""
    other = structs.replace(before.command, device="other")  # the id belongs to another device
    renewed = structs.replace(before, command=other, digest=ledger.digest(other))
    assert ledger.altered(renewed) == "the command differs from the one proposed"
    longer = structs.replace(before.command, expires_ms=10**12)  # the id stays, the hash does not
    assert ledger.altered(structs.replace(before, command=longer)) == "the command differs from the one proposed"


def test_a_command_under_way_is_taken_over_when_its_request_is_over() -> None:
    before = entry(S.SENT, fence=2, questions=1, busy_until_ms=NOW, worker="dead")
    assert ledger.questioned(before, "w", now_ms=NOW, busy_until_ms=9_000) == structs.replace(
        before,
        state=S.UNKNOWN,
        changed_ms=NOW,
        worker="w",
        fence=3,
        questions=2,
        busy_until_ms=9_000,
        maybe_sent=True,
    )
    with pytest.raises(InvariantBroken, match="under way"):
        ledger.questioned(before, "w", now_ms=NOW - 1, busy_until_ms=9_000)


def test_taking_back_is_an_intent_of_its_own_and_keeps_its_first_reason() -> None:
    before = entry(S.FAILED, fence=1, steps_done=1, undo_attempts=0, reason="last words")
    first = ledger.taking_back(before, "w", "broken", now_ms=NOW, busy_until_ms=9_000)
    assert first == structs.replace(
        before,
        state=S.INTENT,
        changed_ms=NOW,
        worker="w",
        fence=2,
        busy_until_ms=9_000,
        undoing=True,
        undo_attempts=1,
        reason="broken",
    )
    again = ledger.taking_back(first, "v", "other", now_ms=NOW + 1, busy_until_ms=9_001)
    assert (again.reason, again.undo_attempts, again.fence, again.worker) == ("broken", 2, 3, "v")


@pytest.mark.parametrize("also", [{"steps_done": 0}, {"steps_done": 1, "closed": True}])
def test_what_was_not_done_or_has_ended_is_not_taken_back(also: dict[str, Any]) -> None:
    with pytest.raises(InvariantBroken, match="nothing to take back"):
        ledger.taking_back(entry(S.FAILED, **also), "w", "why", now_ms=NOW, busy_until_ms=9_000)


def test_a_request_that_left_is_sent() -> None:
    before = entry(S.INTENT)
    assert ledger.sent(before, now_ms=NOW) == structs.replace(before, state=S.SENT, changed_ms=NOW)


@pytest.mark.parametrize(
    ("state", "after", "maybe_sent"),
    [(S.INTENT, S.INTENT, False), (S.SENT, S.INTENT, False), (S.UNKNOWN, S.UNKNOWN, True)],
)
def test_after_a_step_the_next_was_not_sent_unless_it_was_found_out_later(
    state: CommandState, after: CommandState, maybe_sent: bool
) -> None:
    before = entry(state, steps=3, steps_done=1, maybe_sent=not maybe_sent)
    assert ledger.step_done(before, now_ms=NOW) == structs.replace(
        before, state=after, changed_ms=NOW, steps_done=2, maybe_sent=maybe_sent
    )


@pytest.mark.parametrize("state", sorted(UNDER_WAY))
def test_with_its_last_step_a_command_is_done(state: CommandState) -> None:
    before = entry(state, steps=2, steps_done=1, maybe_sent=True)
    assert ledger.step_done(before, now_ms=NOW) == structs.replace(
        before, state=S.DONE, changed_ms=NOW, steps_done=2, closed=True, maybe_sent=False
    )


@pytest.mark.parametrize("also", [{"steps_done": 2}, {"steps_done": 3}, {"steps_done": 1, "undoing": True}])
def test_no_step_is_done_beyond_the_last_or_while_steps_are_taken_back(also: dict[str, Any]) -> None:
    with pytest.raises(InvariantBroken, match="no step is left"):
        ledger.step_done(entry(S.INTENT, steps=2, **also), now_ms=NOW)


def test_a_step_that_is_taken_back_counts_down() -> None:
    before = entry(S.INTENT, steps=3, steps_done=3, undoing=True)
    assert ledger.step_undone(before, now_ms=NOW) == structs.replace(before, changed_ms=NOW, steps_done=2)


@pytest.mark.parametrize("also", [{"steps_done": 1}, {"undoing": True}])
def test_nothing_is_counted_down_that_is_not_being_taken_back(also: dict[str, Any]) -> None:
    with pytest.raises(InvariantBroken, match="nothing is being taken back"):
        ledger.step_undone(entry(S.INTENT, **also), now_ms=NOW)


@pytest.mark.parametrize(
    ("state", "undoing", "attempts"),
    [
        (S.AUTHORISED, False, 3),  # refused before it was claimed: that counts
        (S.FAILED, False, 3),
        (S.FAILED, True, 2),
        (S.INTENT, False, 2),
        (S.SENT, False, 2),
        (S.UNKNOWN, False, 2),
        (S.INTENT, True, 2),
    ],
)
def test_a_failure_waits_for_its_time_and_counts_what_was_not_claimed(
    state: CommandState, undoing: bool, attempts: int
) -> None:
    before = entry(state, attempts=2, undoing=undoing, busy_until_ms=9_000, maybe_sent=True)
    assert ledger.failed(before, "busy", now_ms=NOW, due_ms=6_000) == structs.replace(
        before, state=S.FAILED, changed_ms=NOW, due_ms=6_000, busy_until_ms=0, attempts=attempts, reason="busy"
    )


def test_what_is_unknown_is_left_alone_until_its_time() -> None:
    before = entry(S.SENT, busy_until_ms=9_000)
    after = structs.replace(
        before, state=S.UNKNOWN, changed_ms=NOW, due_ms=6_000, busy_until_ms=6_000, maybe_sent=True, reason="lost"
    )
    assert ledger.unknown(before, "lost", now_ms=NOW, due_ms=6_000) == after
    assert ledger.cleared_up(after) == structs.replace(after, maybe_sent=False)
    assert ledger.delayed(after, due_ms=8_000) == structs.replace(after, due_ms=8_000)


@pytest.mark.parametrize(
    ("letter", "maybe_sent", "end"),
    [(True, True, S.DEAD), (True, False, S.DEAD), (False, True, S.UNKNOWN), (False, False, S.FAILED)],
)
def test_without_a_letter_a_command_ends_as_what_is_known_of_it(
    letter: bool, maybe_sent: bool, end: CommandState
) -> None:
    before = entry(S.INTENT, maybe_sent=not maybe_sent, letter=not letter)
    assert ledger.given_up(before, "why", now_ms=NOW, letter=letter, maybe_sent=maybe_sent) == structs.replace(
        before, state=end, changed_ms=NOW, closed=True, letter=letter, maybe_sent=maybe_sent, reason="why"
    )


def test_a_reason_is_kept_up_to_its_limit() -> None:
    long = ledger.given_up(entry(), "x" * 600, now_ms=NOW, letter=False, maybe_sent=False)
    assert long.reason == "x" * 500


# People


def test_an_approval_names_the_hash_and_the_person() -> None:
    waits = entry(S.AWAIT_CONFIRM, mode=Mode.CONFIRM)
    assert ledger.approved(waits, waits.digest, "amina " * 50, now_ms=29_999) == structs.replace(
        waits,
        state=S.AUTHORISED,
        changed_ms=29_999,
        approved_digest=waits.digest,
        approved_by=("amina " * 50)[:200],
    )


def refusal(way: Callable[[], object]) -> tuple[str, str, str]:
    with pytest.raises(HarchError) as caught:
        way()
    return caught.value.code, caught.value.message, caught.value.hint or ""


def test_what_cannot_be_approved_is_refused_with_its_reason() -> None:
    waits = entry(S.AWAIT_CONFIRM, mode=Mode.CONFIRM)
    for state in set(CommandState) - {S.AWAIT_CONFIRM}:
        other = structs.replace(waits, state=state)
        code, message, hint = refusal(lambda other=other: ledger.approved(other, waits.digest, "amina", now_ms=NOW))
        assert (code, hint) == ("E0772", "list it again")
        assert message == f"command `{waits.cmd_id[:16]}…` is {state} and cannot be approved"
    late = refusal(lambda: ledger.approved(waits, waits.digest, "amina", now_ms=30_000))
    assert late == ("E0772", "the command has expired", "wait for the next decision")
    unsigned = refusal(lambda: ledger.approved(waits, waits.digest, " \t", now_ms=NOW))
    assert unsigned == ("E0201", "an approval needs the name of a person", "name the approver")
    wrong = refusal(lambda: ledger.approved(waits, "f" * 64, "amina", now_ms=NOW))
    assert wrong[:2] == ("E0773", f"`{'f' * 16}…` is not the hash of the pending command")
    changed = structs.replace(waits, command=structs.replace(waits.command, priority=0))
    assert refusal(lambda: ledger.approved(changed, waits.digest, "amina", now_ms=NOW))[0] == "E0773"


@pytest.mark.parametrize(
    "also",
    [{"closed": True}, {"steps_done": 1}, {"maybe_sent": True}, {"state": S.INTENT}, {"state": S.SENT}],
)
def test_what_may_have_been_sent_or_has_ended_is_not_rejected(also: dict[str, Any]) -> None:
    code, message, _ = refusal(
        lambda: ledger.rejected(structs.replace(entry(S.FAILED, reason="busy"), **also), "no", now_ms=NOW)
    )
    assert code == "E0772"
    assert message.endswith("(busy) and cannot be rejected")


@pytest.mark.parametrize("state", sorted(set(CommandState) - {S.INTENT, S.SENT}))
def test_what_was_not_sent_may_be_rejected_by_whoever_says_no(state: CommandState) -> None:
    before = entry(state, approved_by="amina")
    after = structs.replace(before, state=S.REJECTED, changed_ms=NOW, closed=True, reason="rain")
    assert ledger.rejected(before, "rain", now_ms=NOW) == after
    assert ledger.rejected(before, "rain", now_ms=NOW, by="binta") == structs.replace(after, approved_by="binta")


def test_only_what_is_unsent_and_overdue_expires() -> None:
    before = entry(S.AUTHORISED)
    assert ledger.expired(before, now_ms=30_000) == structs.replace(
        before, state=S.EXPIRED, changed_ms=30_000, closed=True, reason="expired before it was sent"
    )
    for also, now_ms in (
        ({}, 29_999),
        ({"closed": True}, 30_000),
        ({"steps_done": 1}, 30_000),
        ({"maybe_sent": True}, 30_000),
    ):
        with pytest.raises(InvariantBroken, match="unsent, overdue"):
            ledger.expired(structs.replace(before, **also), now_ms=now_ms)


def letter(**also: Any) -> LedgerEntry:
    """A command that was given up."""
    return entry(**{"state": S.DEAD, "closed": True, "letter": True, "reason": "no such valve", **also})


def test_a_letter_that_is_replayed_starts_over_with_its_fence() -> None:
    before = letter(attempts=3, questions=2, due_ms=9, busy_until_ms=9, fence=5)
    assert ledger.replayed(before, now_ms=29_999, not_carried_out=False) == structs.replace(
        before,
        state=S.AUTHORISED,
        changed_ms=29_999,
        closed=False,
        letter=False,
        attempts=0,
        questions=0,
        due_ms=0,
        busy_until_ms=0,
        reason="replayed",
    )
    doubtful = ledger.replayed(letter(maybe_sent=True), now_ms=NOW, not_carried_out=True)
    assert (doubtful.maybe_sent, doubtful.state) == (False, S.AUTHORISED)


def test_what_cannot_be_replayed_is_refused_with_its_reason() -> None:
    def replayed(one: LedgerEntry, now_ms: int = NOW) -> tuple[str, str, str]:
        return refusal(lambda: ledger.replayed(one, now_ms=now_ms, not_carried_out=False))

    for one in (letter(letter=False), letter(state=S.FAILED)):
        assert replayed(one)[1].endswith("cannot be replayed")
    empty = structs.replace(letter(), command=command(steps=()))
    assert replayed(empty) == (
        "E0772",
        "no command could be created from this input",
        "fix the cause: no such valve",
    )
    assert replayed(letter(undo_attempts=1)) == (
        "E0772",
        "it was undone, and its keys are used up",
        "wait for the next decision",
    )
    assert replayed(letter(), 30_000) == ("E0772", "the command has expired", "drop the letter")
    assert replayed(letter(maybe_sent=True)) == (
        "E0774",
        "it may have been executed",
        "check the device, then replay with `not_carried_out`",
    )


def test_a_letter_is_dropped_and_the_end_of_its_command_stays() -> None:
    assert ledger.dropped(letter(), now_ms=NOW) == letter(letter=False, changed_ms=NOW)
    for one in (letter(letter=False), letter(state=S.FAILED)):
        assert refusal(lambda one=one: ledger.dropped(one, now_ms=NOW))[1].endswith("cannot be dropped")


@pytest.mark.parametrize(
    ("also", "expected"),
    [
        ({}, False),
        ({"state": S.INTENT}, True),
        ({"state": S.SENT}, True),
        ({"state": S.UNKNOWN}, True),
        ({"maybe_sent": True}, True),
        ({"undoing": True}, True),
        ({"steps_done": 1}, True),
        ({"state": S.INTENT, "maybe_sent": True, "undoing": True, "steps_done": 1, "closed": True}, False),
    ],
)
def test_a_device_may_be_in_the_middle_of_what_was_begun_and_has_not_ended(
    also: dict[str, Any], expected: bool
) -> None:
    assert ledger.unresolved(structs.replace(entry(S.FAILED), **also)) is expected


# The command itself


def test_a_command_says_when_it_ends_and_what_its_steps_are_called() -> None:
    made = command(issued_ms=1_000, ttl_s=2.5004, again="replay-1", juris_mask=3, policy_version=4, priority=2)
    assert (made.expires_ms, made.again, made.juris_mask, made.policy_version, made.priority) == (
        3_500,
        "replay-1",
        3,
        4,
        2,
    )
    assert (made.expired(3_499), made.expired(3_500)) == (False, True)
    assert made.key(1) == f"{made.cmd_id}:1"
    assert made.key(1, undo=True) == f"{made.cmd_id}:1:undo"
    assert ledger.is_itself(made)
    assert made.cmd_id != command(issued_ms=1_000).cmd_id, "carried out once more"
    assert not ledger.is_itself(structs.replace(made, again=""))


def test_an_argument_that_would_take_a_step_back_must_be_a_number_too() -> None:
    with pytest.raises(ValueError, match="`low` is not a finite number"):
        command(steps=(CommandStep("valve", {"value": 1.0}), CommandStep("valve", {}, {"low": float("inf")})))
