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


def taken(agenda: Agenda) -> list[tuple[str, int]]:
    """Device and window of all that can be taken now, in order."""
    found = []
    while (one := agenda.take()) is not None:
        found.append((one.entry.command.device, one.entry.command.window))
    return found


def issued(device: int, issued_ms: int, *, priority: int = 5, **also: int) -> StoredEntry:
    made = command(device, issued_ms=issued_ms, priority=priority)
    return StoredEntry(structs.replace(ledger.proposed(made, now_ms=0), state=CommandState.AUTHORISED, **also), 1)


def test_the_most_urgent_goes_first_then_the_oldest_then_who_came_first() -> None:
    agenda = Agenda(10)
    for one in (issued(1, 50), issued(2, 40), issued(3, 40), issued(4, 90, priority=4), issued(5, 10)):
        agenda.add(one, now_ms=0)
    assert [device for device, _ in taken(agenda)] == ["d4", "d5", "d2", "d3", "d1"]


def test_what_is_open_is_counted_by_priority_and_by_age() -> None:
    agenda = Agenda(10)
    assert (agenda.depths(), agenda.oldest_issued_ms(), agenda.next_due_ms, len(agenda)) == ({}, None, None, 0)
    for one in (issued(1, 50), issued(2, 40), issued(3, 90, priority=0)):
        agenda.add(one, now_ms=0)
    assert (agenda.depths(), agenda.oldest_issued_ms(), len(agenda)) == ({5: 2, 0: 1}, 40, 3)
    assert issued(1, 50).entry.cmd_id in agenda
    assert issued(9, 50).entry.cmd_id not in agenda


def test_room_ends_at_its_limit_and_a_tenth_of_it_is_for_what_is_urgent() -> None:
    agenda = Agenda(30)
    assert [agenda.room(priority) for priority in (0, 1, 2, 9)] == [30, 30, 27, 27]
    for number in range(28):
        agenda.add(stored(number), now_ms=0)
    assert [agenda.room(priority) for priority in (0, 1, 2, 9)] == [2, 2, 0, 0]
    for number in range(28, 33):
        agenda.add(stored(number), now_ms=0)
    assert agenda.room(0) == 0


def test_a_command_is_due_when_its_time_has_come_and_its_request_is_over() -> None:
    for due_ms, busy_until_ms, now_ms, ready in ((5, 0, 5, True), (5, 0, 4, False), (0, 7, 6, False), (3, 7, 7, True)):
        agenda = Agenda(10)
        agenda.add(issued(1, 0, due_ms=due_ms, busy_until_ms=busy_until_ms), now_ms=now_ms)
        assert agenda.next_due_ms == (None if ready else max(due_ms, busy_until_ms))
        assert bool(taken(agenda)) is ready


def test_everything_that_is_due_ripens_at_once() -> None:
    agenda = Agenda(10)
    for number, due_ms in enumerate((30, 10, 20, 40)):
        agenda.add(stored(number, due_ms=due_ms), now_ms=0)
    assert agenda.next_due_ms == 10
    assert agenda.ripen(now_ms=30) == 3
    assert [device for device, _ in taken(agenda)] == ["d1", "d2", "d0"]
    assert agenda.next_due_ms == 40


def test_a_newer_state_of_a_command_replaces_the_older_and_gives_no_second_turn() -> None:
    agenda = Agenda(10)
    first = stored(1)
    newer = StoredEntry(structs.replace(first.entry, attempts=3), 2)
    agenda.add(first, now_ms=0)
    agenda.add(newer, now_ms=0)
    assert len(agenda) == 1
    assert agenda.take() == newer
    agenda.add(first, now_ms=0)  # its turn has begun
    agenda.settle(closed(newer), now_ms=0)
    assert (len(agenda), agenda.take()) == (0, None)


def test_a_device_has_one_turn_at_a_time_and_the_next_follows_when_it_is_over() -> None:
    agenda = Agenda(10)
    for window in (1, 2, 3):
        agenda.add(stored(1, window), now_ms=0)
    agenda.add(stored(2, 9), now_ms=0)
    assert taken(agenda) == [("d1", 1), ("d2", 9)]
    agenda.forget(stored(1, 1))
    assert taken(agenda) == [("d1", 2)]
    again = StoredEntry(structs.replace(stored(1, 2).entry, due_ms=50), 2)
    agenda.settle(again, now_ms=10)
    assert taken(agenda) == [("d1", 3)]
    assert agenda.next_due_ms == 50


def test_a_device_in_doubt_about_two_commands_is_free_when_both_are_cleared_up() -> None:
    agenda = Agenda(10)
    doubts = [stored(1, window, state=CommandState.UNKNOWN) for window in (1, 2)]
    for one in (stored(1, 3), *doubts):
        agenda.add(one, now_ms=0)
    for number, one in enumerate(doubts, 1):
        assert taken(agenda) == [("d1", number)]
        agenda.settle(closed(one), now_ms=0)
    assert taken(agenda) == [("d1", 3)]


def test_who_is_still_in_doubt_after_its_turn_keeps_its_device() -> None:
    agenda = Agenda(10)
    doubt = stored(1, 1, state=CommandState.UNKNOWN)
    agenda.add(doubt, now_ms=0)
    agenda.add(stored(1, 2), now_ms=0)
    assert taken(agenda) == [("d1", 1)]
    agenda.settle(StoredEntry(structs.replace(doubt.entry, due_ms=100), 2), now_ms=0)
    assert taken(agenda) == []
    agenda.ripen(now_ms=100)
    assert taken(agenda) == [("d1", 1)]
