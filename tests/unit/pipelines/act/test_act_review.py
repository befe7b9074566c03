"""What a person sees, decides and is refused: approvals and dead letters, exactly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from harch.base.errors import HarchError
from harch.pipelines.act import ledger, review
from harch.pipelines.act.ledger import ActionCommand, CommandState, LedgerEntry
from harch.pipelines.act.review import DeadLetter, PendingApproval
from harch.pipelines.act.settings import Mode
from harch.pipelines.act.store import StoredEntry
from unit.pipelines.act.act_builders import Chain, MemoryLedger, command

AT = datetime(2026, 1, 1, 0, 0, 1, 250_000, tzinfo=UTC)
AT_MS = 1_767_225_601_250


async def pending(store: MemoryLedger, number: int, **changes: Any) -> LedgerEntry:
    """A command that waits for a person."""
    made = command(number, **{"mode": Mode.CONFIRM, "issued_ms": AT_MS, "ttl_s": 30, **changes})
    entry = ledger.authorised(ledger.proposed(made, now_ms=AT_MS), now_ms=AT_MS)
    return (await store.put(entry, revision=0)).entry


async def dead(store: MemoryLedger, number: int, **also: Any) -> LedgerEntry:
    entry = ledger.proposed(command(number, issued_ms=AT_MS, juris_mask=3), now_ms=AT_MS)
    entry = ledger.given_up(entry, "no such valve", now_ms=AT_MS + number, letter=True, maybe_sent=False)
    return (await store.put(structs.replace(entry, attempts=2, **also), revision=0)).entry


async def test_a_person_sees_what_they_would_approve() -> None:
    store = MemoryLedger()
    entry = await pending(store, 1, priority=3, juris_mask=1, model="m", dry_run=True)
    made: ActionCommand = entry.command
    assert await review.waiting(store, now=AT) == [
        PendingApproval(
            cmd_id=made.cmd_id,
            digest=ledger.digest(made),
            pipeline="irrigation",
            device="d1",
            action="open",
            steps=made.steps,
            issued_ms=AT_MS,
            expires_ms=AT_MS + 30_000,
            priority=3,
            model="m",
            juris_mask=1,
            dry_run=True,
        )
    ]


async def test_the_most_urgent_waits_first_then_what_expires_first_and_what_has_expired_not_at_all() -> None:
    store = MemoryLedger()
    for number, (priority, ttl_s) in enumerate([(5, 20), (5, 10), (1, 30), (0, 0.25), (5, 0.251)]):
        await pending(store, number, priority=priority, ttl_s=ttl_s, issued_ms=AT_MS - 250)
    seen = await review.waiting(store, now=AT)
    assert [one.device for one in seen] == ["d2", "d4", "d1", "d0"]
    assert [one.device for one in await review.waiting(store, now=AT, limit=2)] == ["d2", "d4"]


async def test_no_more_than_a_hundred_are_listed_unless_more_are_wanted() -> None:
    store = MemoryLedger()
    for number in range(101):
        await pending(store, number)
        await dead(store, 1000 + number)
    assert len(await review.waiting(store, now=AT)) == 100
    assert len(await review.waiting(store, now=AT, limit=101)) == 101
    assert len(await review.letters(store)) == 100
    assert len(await review.letters(store, limit=101)) == 101


async def test_who_approves_is_written_to_the_audit_chain_and_to_the_ledger() -> None:
    store, chain = MemoryLedger(), Chain()
    entry = await pending(store, 1, juris_mask=255, policy_version=7, trace="tr", model="m")
    after = await review.approve(store, entry.cmd_id, entry.digest, by="amina", now=AT, audit_to=chain)
    assert after == structs.replace(
        entry,
        state=CommandState.AUTHORISED,
        changed_ms=AT_MS,
        approved_digest=entry.digest,
        approved_by="amina",
    )
    assert store.rows[entry.cmd_id] == StoredEntry(after, 2)
    (draft,) = chain.drafts
    assert (draft.kind, draft.subject, draft.verdict, draft.actor) == (
        "action.approved",
        entry.cmd_id,
        "allowed",
        "amina",
    )
    assert (draft.authority, draft.policy_version) == ("irrigation", "7")
    assert draft.details == {
        "action": "open",
        "attempts": 0,
        "device": "d1",
        "digest": entry.digest,
        "dry_run": False,
        "juris_mask": "ff",
        "mode": "confirm-and-execute",
        "model": "m",
        "sinks": ("valve",),
        "state": "authorised",
        "trace": "tr",
    }


@pytest.mark.parametrize(("reason", "kept"), [("rain", "rain"), ("", "rejected by a person")])
async def test_who_says_no_is_written_down_with_the_reason(reason: str, kept: str) -> None:
    store, chain = MemoryLedger(), Chain()
    entry = await pending(store, 1)
    after = await review.reject(store, entry.cmd_id, by="binta", reason=reason, now=AT, audit_to=chain)
    assert after == structs.replace(
        entry, state=CommandState.REJECTED, changed_ms=AT_MS, closed=True, reason=kept, approved_by="binta"
    )
    assert store.rows[entry.cmd_id].entry == after
    (draft,) = chain.drafts
    assert (draft.kind, draft.verdict, draft.actor) == ("action.refused", "refused", "binta")


async def code_of(awaited: Any) -> tuple[str, str]:
    with pytest.raises(HarchError) as caught:
        await awaited
    return caught.value.code, caught.value.message


async def test_what_does_not_wait_for_a_person_cannot_be_rejected_by_one() -> None:
    store, chain = MemoryLedger(), Chain()
    entry = ledger.authorised(ledger.proposed(command(issued_ms=AT_MS), now_ms=AT_MS), now_ms=AT_MS)
    await store.put(entry, revision=0)
    code, message = await code_of(review.reject(store, entry.cmd_id, by="b", now=AT, audit_to=chain))
    assert (code, message) == ("E0772", f"command `{entry.cmd_id[:16]}…` is authorised and cannot be rejected")
    unknown = await code_of(review.approve(store, "f" * 80, "d", by="b", now=AT, audit_to=chain))
    assert unknown == ("E0771", f"the ledger has no command `{'f' * 64}`")
    assert chain.drafts == []


async def test_who_decides_too_late_is_told_that_somebody_was_faster() -> None:
    class Faster(MemoryLedger):
        async def get(self, cmd_id: str) -> StoredEntry | None:
            found = await super().get(cmd_id)
            return None if found is None else StoredEntry(found.entry, found.revision - 1)

    store = Faster()
    entry = await pending(store, 1)
    code, message = await code_of(review.approve(store, entry.cmd_id, entry.digest, by="a", now=AT, audit_to=Chain()))
    assert (code, message) == ("E0772", "the command was changed concurrently")


async def test_a_letter_says_what_was_given_up_when_and_where_it_may_be_kept() -> None:
    store = MemoryLedger()
    later, first = await dead(store, 2), await dead(store, 1, maybe_sent=True)
    await dead(store, 3, letter=False)
    assert await review.letters(store) == [
        DeadLetter(
            cmd_id=one.cmd_id,
            reason="no such valve",
            at_ms=AT_MS + number,
            attempts=2,
            maybe_sent=maybe_sent,
            command=one.command,
            juris_mask=3,
            expires_ms=AT_MS + 30_000,
        )
        for number, one, maybe_sent in ((1, first, True), (2, later, False))
    ]
    assert [one.cmd_id for one in await review.letters(store, limit=1)] == [first.cmd_id]


async def test_replaying_and_dropping_are_written_with_their_time() -> None:
    store = MemoryLedger()
    doubtful, other = await dead(store, 1, maybe_sent=True), await dead(store, 2)
    assert (await code_of(review.replay(store, doubtful.cmd_id, now=AT)))[0] == "E0774"
    again = await review.replay(store, doubtful.cmd_id, now=AT, not_carried_out=True)
    assert (again.state, again.changed_ms) == (CommandState.AUTHORISED, AT_MS)
    assert store.rows[doubtful.cmd_id] == StoredEntry(again, 2)
    gone = await review.drop(store, other.cmd_id, now=AT)
    assert gone == structs.replace(other, changed_ms=AT_MS, letter=False)
    assert store.rows[other.cmd_id] == StoredEntry(gone, 2)
    for decide in (review.replay, review.drop):
        assert (await code_of(decide(store, "nothing", now=AT)))[0] == "E0771"
