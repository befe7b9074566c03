"""Whose turn it is: urgency, age, one command per device, and doubt before anything new."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from harch.pipelines.act import ledger
from harch.pipelines.act.ledger import CommandState
from harch.pipelines.act.stage import Agenda
from harch.pipelines.act.store import StoredEntry
from unit.pipelines.act.act_builders import command


def stored(
    device: int, window: int = 1, *, due_ms: int = 0, priority: int = 5, state: CommandState | None = None
) -> StoredEntry:
    one = structs.replace(command(device, window=window), priority=priority)
    entry = ledger.authorised(ledger.proposed(one, now_ms=0), now_ms=0)
    return StoredEntry(structs.replace(entry, due_ms=due_ms, state=state or entry.state), 1)


def closed(one: StoredEntry) -> StoredEntry:
    return StoredEntry(structs.replace(one.entry, state=CommandState.DONE, closed=True), 2)


def test_what_is_due_later_is_not_taken_now() -> None:
    agenda = Agenda(10)
    agenda.add(stored(1, due_ms=500), now_ms=0)
    assert agenda.take() is None
    assert agenda.next_due_ms == 500
    assert agenda.ripen(now_ms=499) == 0
    assert agenda.ripen(now_ms=500) == 1
    assert agenda.take() is not None


def test_a_device_in_doubt_after_a_restart_is_cleared_up_before_anything_new() -> None:
    agenda = Agenda(10)
    agenda.add(stored(1, window=2), now_ms=0)
    doubt = stored(1, window=1, state=CommandState.UNKNOWN, due_ms=100)
    agenda.add(doubt, now_ms=0)
    assert agenda.take() is None
    agenda.ripen(now_ms=100)
    first = agenda.take()
    assert first is not None
    assert first.entry.command.window == 1
    assert agenda.take() is None
    agenda.settle(closed(first), now_ms=100)
    second = agenda.take()
    assert second is not None
    assert second.entry.command.window == 2


def test_a_flood_leaves_room_for_what_is_urgent() -> None:
    agenda = Agenda(20)
    for number in range(18):
        agenda.add(stored(number), now_ms=0)
    assert (agenda.room(5), agenda.room(1), agenda.room(0)) == (0, 2, 2)


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 300), st.booleans(), st.booleans()),
        max_size=40,
    ),
    seed=st.randoms(),
)
def test_everything_gets_its_turn_and_no_device_two_at_a_time(
    jobs: list[tuple[int, int, int, bool, bool]], seed: object
) -> None:
    agenda = Agenda(100)
    for number, (device, priority, due_ms, in_doubt, _) in enumerate(jobs):
        state = CommandState.UNKNOWN if in_doubt else None
        agenda.add(stored(device, number, due_ms=due_ms, priority=priority, state=state), now_ms=0)
    again = {number for number, job in enumerate(jobs) if job[4]}
    working: list[StoredEntry] = []
    now_ms, turns = 0, 0
    while len(agenda) and turns < 1000:
        turns += 1
        now_ms += 10
        agenda.ripen(now_ms=now_ms)
        while (one := agenda.take()) is not None:
            working.append(one)
        devices = [one.entry.command.device for one in working]
        assert len(devices) == len(set(devices))
        if working:
            one = working.pop(seed.randrange(len(working)))  # type: ignore[attr-defined]
            number = one.entry.command.window
            if number in again:
                again.discard(number)
                later = structs.replace(one.entry, due_ms=now_ms + 50)
                agenda.settle(StoredEntry(later, one.revision), now_ms=now_ms)
            else:
                agenda.settle(closed(one), now_ms=now_ms)
    assert len(agenda) == 0
    assert agenda.room(0) == 100
