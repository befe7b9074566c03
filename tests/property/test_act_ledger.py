"""Whatever is asked of an entry of ACT's ledger, in whatever order: some things never happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from harch.base.errors import HarchError, InvariantBroken
from harch.pipelines.act import ledger
from harch.pipelines.act.ledger import CommandState, CommandStep, LedgerEntry, digest, make_command
from harch.pipelines.act.settings import Mode

TTL_S = 10
Ask = Callable[[LedgerEntry, int], LedgerEntry]

ASKS: dict[str, Ask] = {
    "authorised": lambda entry, now: ledger.authorised(entry, now_ms=now),
    "approved": lambda entry, now: ledger.approved(entry, entry.digest, "amina", now_ms=now),
    "approved other": lambda entry, now: ledger.approved(entry, "0" * 64, "amina", now_ms=now),
    "approved by nobody": lambda entry, now: ledger.approved(entry, entry.digest, " ", now_ms=now),
    "rejected": lambda entry, now: ledger.rejected(entry, "no", now_ms=now),
    "expired": lambda entry, now: ledger.expired(entry, now_ms=now),
    "claimed": lambda entry, now: ledger.claimed(entry, "w", now_ms=now, busy_until_ms=now + 500),
    "questioned": lambda entry, now: ledger.questioned(entry, "w", now_ms=now, busy_until_ms=now + 500),
    "taking back": lambda entry, now: ledger.taking_back(entry, "w", "why", now_ms=now, busy_until_ms=now + 500),
    "sent": lambda entry, now: ledger.sent(entry, now_ms=now),
    "step done": lambda entry, now: ledger.step_done(entry, now_ms=now),
    "step undone": lambda entry, now: ledger.step_undone(entry, now_ms=now),
    "unknown": lambda entry, now: ledger.unknown(entry, "no answer", now_ms=now, due_ms=now + 100),
    "failed": lambda entry, now: ledger.failed(entry, "busy", now_ms=now, due_ms=now + 100),
    "given up": lambda entry, now: ledger.given_up(
        entry, "enough", now_ms=now, letter=True, maybe_sent=entry.maybe_sent
    ),
    "replayed": lambda entry, now: ledger.replayed(entry, now_ms=now, not_carried_out=False),
    "replayed by a person": lambda entry, now: ledger.replayed(entry, now_ms=now, not_carried_out=True),
    "dropped": lambda entry, now: ledger.dropped(entry, now_ms=now),
    "altered": lambda entry, now: structs.replace(entry, command=structs.replace(entry.command, device="other")),
}


def new(mode: Mode, steps: int) -> LedgerEntry:
    asked = tuple(CommandStep(f"s{number}", {"value": number}) for number in range(steps))
    command = make_command(
        pipeline="p", device="d", action="a", steps=asked, window=1, mode=mode, issued_ms=0, ttl_s=TTL_S
    )
    return ledger.proposed(command, now_ms=0)


@given(
    mode=st.sampled_from(list(Mode)),
    steps=st.integers(1, 3),
    walk=st.lists(st.tuples(st.sampled_from(sorted(ASKS)), st.integers(0, 3000)), max_size=60),
)
def test_no_walk_breaks_what_the_ledger_promises(mode: Mode, steps: int, walk: list[tuple[str, int]]) -> None:
    entry, now_ms = new(mode, steps), 0
    for name, pause_ms in walk:
        now_ms += pause_ms
        try:
            after = ASKS[name](entry, now_ms)
        except (HarchError, InvariantBroken):
            continue
        check(name, entry, after, now_ms)
        entry = after


def check(name: str, before: LedgerEntry, after: LedgerEntry, now_ms: int) -> None:
    assert after.fence >= before.fence
    if before.closed:
        assert name in ("replayed", "replayed by a person", "dropped", "altered")
    if before.state in (CommandState.DONE, CommandState.REJECTED, CommandState.EXPIRED):
        assert after.state is before.state
    if after.approved_digest != before.approved_digest:
        assert name == "approved"
        assert after.approved_digest == digest(after.command)
    if name == "claimed":  # the one door to a sink
        assert after.fence == before.fence + 1
        assert not after.command.expired(now_ms)
        assert digest(after.command) == after.digest
        if after.command.mode is Mode.CONFIRM:
            assert after.approved_digest == after.digest
    if after.state in (CommandState.EXPIRED, CommandState.REJECTED) and not before.closed:
        assert not ledger.unresolved(before), "what may have happened neither expires nor is rejected"
    if name in ("replayed", "replayed by a person"):
        assert before.letter
        assert not after.command.expired(now_ms)
        assert name == "replayed by a person" or not before.maybe_sent


@given(mode=st.sampled_from(list(Mode)), steps=st.integers(1, 3), data=st.data())
def test_an_entry_comes_back_from_its_bytes_as_it_was(mode: Mode, steps: int, data: Any) -> None:
    entry, now_ms = new(mode, steps), 0
    for name in data.draw(st.lists(st.sampled_from(sorted(ASKS)), max_size=20)):
        now_ms += 600
        try:
            entry = ASKS[name](entry, now_ms)
        except (HarchError, InvariantBroken):
            continue
    again = ledger.decode_entry(ledger.encode_entry(entry))
    assert again == entry
    assert digest(again.command) == digest(entry.command)
